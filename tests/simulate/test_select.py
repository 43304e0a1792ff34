"""`eqlayers select`: the largest deviations first, without copies of each other and of known structures."""

from __future__ import annotations

import shlex
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from eqlayers.cli.main import main
from eqlayers.integrations.ase import predict
from eqlayers.models import Committee, Potential, save_potential
from eqlayers.simulate.select import difference, lengths_within
from eqlayers.testing import ToyNetwork
from tests.each import each

from .test_cli import out, rows

pytestmark = pytest.mark.usefixtures("place")
M = "-m a.pt -m b.pt -m c.pt"


@pytest.fixture
def committee(place: Path) -> Committee:
    members = [Potential(ToyNetwork(2, cutoff=3.5, seed=seed), [1, 8], {}, 0.5).double().eval() for seed in range(3)]
    for name, member in zip("abc", members, strict=True):
        save_potential(member, f"{name}.pt")
    return Committee(members)


def rattled(atoms: Atoms, seed: int) -> Atoms:
    copy = atoms.copy()
    copy.rattle(0.1, seed=seed)
    return copy


def turned(atoms: Atoms) -> Atoms:
    """Rotate, move and mirror a structure, and permute its atoms."""
    copy = atoms.copy()
    copy.rotate(40, (1, 2, 3))
    copy.positions *= -1
    copy.translate((1, 2, 3))
    return copy[np.random.default_rng(1).permutation(len(copy))]


def test_the_largest_deviations_without_copies(capsys, committee: Committee, water: Atoms) -> None:
    pool = [rattled(water, seed) for seed in range(6)]
    pool += [turned(pool[2]), turned(pool[5])]
    deviations = [result["forces_deviation"].max() for result in predict(committee, pool)]
    for atoms in pool:  # results of a simulation, which are no labels
        atoms.calc = SinglePointCalculator(atoms, energy=1.0, forces=np.zeros((3, 3)))
        atoms.info["REF_energy"] = 2.0
    ase.io.write("pool.traj", pool)
    said = rows(out(capsys, f"select pool.traj {M} --most 4"))
    order = [row for row in np.argsort(deviations)[::-1] if row not in (6, 7)]  # copies have equal deviations
    selected = ase.io.read("pool_selected.xyz", ":")
    same = {6: 2, 7: 5}
    assert [same.get(atoms.info["pool_row"], atoms.info["pool_row"]) for atoms in selected] == order[:4]
    for atoms in selected:
        assert atoms.info["max_forces_deviation"] == pytest.approx(deviations[atoms.info["pool_row"]], rel=1e-6)
        assert atoms.calc is None
        assert "REF_energy" not in atoms.info
    assert said["selected"].startswith("4 structures, ")
    everything = rows(out(capsys, f"select pool.traj {M} -o all.xyz"))
    assert everything["selected"].startswith("6 structures, ")
    assert everything["copies"].startswith("2 left out")
    ase.io.write("known.xyz", [turned(pool[0]), pool[4]])
    out(capsys, f"select pool.traj {M} -o new.xyz --known known.xyz")
    assert {same.get(row, row) for row in (a.info["pool_row"] for a in ase.io.read("new.xyz", ":"))} == {1, 2, 3, 5}


def test_differences_of_structures(water: Atoms, crystal: Atoms) -> None:
    lengths = lengths_within(water, 3.5)
    rounding = 1e-13  # of distances of 1 to 4 A in float64
    assert difference(lengths, lengths_within(turned(water), 3.5)) < rounding
    longer = water.copy()
    longer.set_distance(0, 1, longer.get_distance(0, 1) + 0.25, fix=0)
    assert difference(lengths, lengths_within(longer, 3.5)) == pytest.approx(0.25, abs=0.2)
    assert difference(lengths, lengths_within(longer, 3.5)) >= 0.2
    far = water.copy()
    far.positions[1] += 50.0  # an atom without neighbours has no distance, and is an atom
    assert difference(lengths, lengths_within(far, 3.5)) > 1
    assert difference(lengths, lengths_within(water[[0, 1]], 3.5)) == np.inf
    whole = lengths_within(crystal, 3.5)
    wrapped = crystal.copy()
    wrapped.translate((0.3, 0.4, 1.1))
    wrapped.wrap()
    assert difference(whole, lengths_within(wrapped, 3.5)) < 10 * rounding
    at_the_cutoff = Atoms("O2", [[0, 0, 0], [0, 0, 3.49]])
    beyond = Atoms("O2", [[0, 0, 0], [0, 0, 3.51]])
    assert difference(*(lengths_within(one, 3.5) for one in (at_the_cutoff, beyond))) == pytest.approx(0.01)


@each(
    "words, message",
    [
        ("-m a.pt", "-m must be a committee"),
        (f"{M} --most 0", "--most must be"),
        (f"{M} --difference -1", "--difference must be"),
        (f"{M} -o water.xyz", "--output must be a new file"),
        (f"{M} --known none.xyz", "structures must be in a file"),
    ],
)
def test_bad_calls_write_nothing(capsys, committee: Committee, words: str, message: str) -> None:
    before = sorted(path.name for path in Path().iterdir())
    assert main(shlex.split(f"select water.xyz {words}")) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in Path().iterdir()) == before
