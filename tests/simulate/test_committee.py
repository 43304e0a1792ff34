"""Committees in the commands of potentials: the models that are typed, and what commands write, print and return."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from eqlayers.errors import ConfigError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential, load_potential, save_potential
from eqlayers.models.committee import MARK
from eqlayers.simulate import DynamicsSettings, run_dynamics
from eqlayers.simulate.options import is_model, one_option_each
from eqlayers.simulate.predict import Compared
from eqlayers.testing import ToyNetwork

from .test_cli import out, rows

MODELS = ["1.pt", "2.pt", "3.pt"]
M = f"-m {' '.join(MODELS)}"


@pytest.fixture(autouse=True)
def members(place: Path) -> list[Potential]:
    """Three potentials in files, which are also the folder of a committee."""
    for number in range(1, 4):
        toy = Potential(ToyNetwork(2, cutoff=3.5, seed=number), [1, 8], {8: -432.0}, 0.5).double().eval()
        save_potential(toy, f"{number}.pt")
        folder = Path(f"run/member-{number}")
        folder.mkdir(parents=True)
        save_potential(toy, folder / "potential.pt")
    Path("run", MARK).write_text(json.dumps({"members": 3}))
    return [load_potential(name) for name in MODELS]


def test_predict_writes_means_and_deviations(capsys: pytest.CaptureFixture[str], members: list[Potential]) -> None:
    """Deviations of atoms are arrays; labels make a correlation, which is 1 where the error is the deviation."""
    frames = []
    for seed in range(4):
        atoms = ase.io.read("water.xyz")
        atoms.rattle(0.05, seed=seed)
        atoms.calc = Calculator(members)
        forces, deviation = atoms.get_forces(), atoms.calc.results["forces_deviation"]
        error = np.zeros((3, 3))
        error[:, 0] = 2 * deviation
        energy = atoms.get_potential_energy()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces - error)
        frames.append(atoms)
    ase.io.write("labelled.xyz", frames)
    found = rows(out(capsys, f"predict labelled.xyz {M} -o out.xyz"))
    text = found["deviation of forces"]
    assert re.fullmatch(
        r"mean \S+, largest \S+ meV/A; its correlation with the error is 1\.00, errors are 2\.0 times as large", text
    )
    assert re.fullmatch(r"mean \S+, largest \S+ meV/atom; its correlation .*", found["deviation of energy"])
    for name in ("run", "'?.pt'"):
        assert (
            rows(out(capsys, f"predict labelled.xyz -m {name} -o out.xyz --overwrite"))["deviation of forces"] == text
        )
    for atoms, predicted in zip(frames, ase.io.read("out.xyz", ":"), strict=True):
        atoms.calc = Calculator(members)
        np.testing.assert_allclose(predicted.get_forces(), atoms.get_forces(), atol=1e-5)
        results = atoms.calc.results
        np.testing.assert_allclose(predicted.arrays["forces_deviation"], results["forces_deviation"], atol=1e-5)
        assert predicted.info["energy_deviation"] == pytest.approx(results["energy_deviation"], abs=1e-5)
        assert not [name for name in (*predicted.info, *predicted.arrays) if name.endswith("_members")]


def test_one_model_has_no_deviation(capsys: pytest.CaptureFixture[str]) -> None:
    assert "deviation" not in out(capsys, "predict water.xyz -m 1.pt -o out.xyz")


def test_relax_says_how_far_members_are_apart(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(out(capsys, f"relax {M} water.xyz --optimizer bfgs"))
    assert found["model"] == "1.pt 2.pt 3.pt, 3 members in float64 on cpu"
    assert re.fullmatch(r"\S+ eV/A of forces at most, \S+ eV of the energy", found["deviation"])
    assert ase.io.read("water_relaxed.xyz").arrays["forces_deviation"].shape == (3,)


def test_md_logs_the_largest_deviation(capsys: pytest.CaptureFixture[str], members: list[Potential]) -> None:
    line = f"md water.xyz {M} --steps 4 --interval 2 -o way.traj --log md.log"
    found = rows(out(capsys, line))
    assert re.fullmatch(r"\S+ eV/A of forces at most, in this run", found["deviation"])
    head, *lines = Path("md.log").read_text().splitlines()
    assert head.endswith(" T[K] Fdev[eV/A]")
    frames = ase.io.read("way.traj", ":")
    assert len(lines) == len(frames) == 3
    for text, atoms in zip(lines, frames, strict=True):
        atoms.calc = Calculator(members)
        deviation = atoms.calc.get_property("forces_deviation", atoms).max()
        assert float(text.split()[-1]) == pytest.approx(deviation, abs=1e-4)


def test_md_stops_where_members_disagree(capsys: pytest.CaptureFixture[str], members: list[Potential]) -> None:
    """With the frame kept, whatever the interval; a restart with the same bound stops at once."""
    water = ase.io.read("water.xyz")
    settings = DynamicsSettings(steps=15, temperature=600.0)
    whole = run_dynamics(water, Calculator(members), settings)
    begun = run_dynamics(water, Calculator(members), DynamicsSettings(steps=0, temperature=600.0))
    assert begun.deviation < whole.deviation
    bound = 0.5 * (begun.deviation + whole.deviation)
    line = f"md water.xyz {M} --steps 15 --interval 100 --temperature 600 -o way.traj --max-deviation {bound}"
    text = out(capsys, line, status=1)
    step, apart, atom = re.search(r"Stopped at step (\d+): .* by (\S+) eV/A in the force on atom (\d)", text).groups()
    assert "way.traj ends with this frame" in text
    last = ase.io.read("way.traj")
    assert last.info["step"] == int(step) > 0
    last.calc = Calculator(members)
    deviations = last.calc.get_property("forces_deviation", last)
    assert deviations.argmax() == int(atom)
    assert deviations.max() == pytest.approx(float(apart), rel=1e-3)
    assert deviations.max() > bound
    again = out(capsys, f"{line} --restart", status=1)
    assert f"Stopped at step {step}:" in again
    assert len(ase.io.read("way.traj", ":")) == 2


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), "x", True])
def test_a_bound_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="max_deviation must"):
        DynamicsSettings(max_deviation=wrong)


def test_one_potential_has_no_bound(water: Atoms, members: list[Potential]) -> None:
    with pytest.raises(ConfigError, match="max_deviation must"):
        run_dynamics(water, Calculator(members[0]), DynamicsSettings(max_deviation=0.5))


def test_check_looks_at_every_member(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    text = out(capsys, "check 1.pt 2.pt crystal.xyz --seed 3")
    assert text.count("22 of 22 properties hold") == 2
    assert text.splitlines()[-1] == "2 of 2 members have all properties, and so has their mean"
    assert "member 1.pt" in text


def test_info_says_what_members_share(capsys: pytest.CaptureFixture[str]) -> None:
    found = rows(out(capsys, "info run"))
    assert (found["members"], found["species"], found["parameters"]) == ("3", "H, O", "48")
    assert found["network"].startswith("1: eqlayers.testing.ToyNetwork(")


@pytest.mark.parametrize(
    ("typed", "first", "expected"),
    [
        ("-m a.pt b.pt x.xyz", False, "-m a.pt -m b.pt x.xyz"),
        ("x.xyz -m a b.ckpt --steps 3", False, "x.xyz -m a -m b.ckpt --steps 3"),
        ("--model=a.pt b.pt x.xyz", False, "--model=a.pt -m b.pt x.xyz"),
        ("-m a.pt x.xyz b.pt", False, "-m a.pt x.xyz b.pt"),
        ("-m -m", False, "-m -m"),
        ("a.pt b.pt x.xyz --seed 3", True, "a.pt x.xyz --seed 3 -m b.pt"),
        ("--device cpu a.pt -m b.pt c.pt", True, "--device cpu a.pt -m b.pt -m c.pt"),
        ("a b", True, "a b"),
    ],
)
def test_models_that_are_typed_one_after_the_other(typed: str, first: bool, expected: str) -> None:
    assert one_option_each(typed.split(), first) == expected.split()


def test_models_are_told_from_structures_by_their_ending_or_by_the_mark_of_a_run(tmp_path: Path) -> None:
    (tmp_path / MARK).write_text("{}")
    words = ["a.pt", "b.ckpt", "c.pth", str(tmp_path), "water.xyz", "a.pt.xyz", str(tmp_path / "none")]
    assert [is_model(word) for word in words] == [True] * 4 + [False] * 3


def test_errors_and_deviations_of_structures_are_put_together() -> None:
    """Two structures of two atoms, one of which has no label; the third structure has none at all."""
    compared = Compared("forces", "meV/A")
    assert compared.error_rows() == compared.deviation_rows() == []
    nan = [np.nan] * 3
    compared.add(np.array([[0.003, 0, 0], nan]), [0.001, 0.1])
    compared.add(np.array([[0.0, -0.006, 0], [0, 0, 0.012]]), np.array([0.002, 0.004]))
    compared.add(None, [0.005, 0.006])
    ((name, text),) = compared.error_rows()
    assert name == "error of forces"
    # 9 components of three atoms: 3, 6 and 12 meV/A, and zeros
    assert text == f"mean {21 / 9:.4g}, root mean square {(189 / 9) ** 0.5:.4g} meV/A"
    ((name, text),) = compared.deviation_rows()
    assert text.startswith(f"mean {118 / 6:.4g}, largest 100 meV/A; its correlation with the error is 1.00, ")
    assert text.endswith("errors are 3.0 times as large")
    energies = Compared("energy", "meV/atom")
    energies.add(np.array([0.008]), 0.002, per=4)
    assert energies.error_rows() == [("error of energy", "mean 2, root mean square 2 meV/atom")]
    assert energies.deviation_rows()[0][1].startswith("mean 0.5, largest 0.5 meV/atom")
