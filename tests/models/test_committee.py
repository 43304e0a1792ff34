"""Committees: means and deviations against the members one by one, shared edges, files, and members that disagree."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("vesin")

from ase.build import bulk, molecule

from eqlayers import Graph
from eqlayers.errors import ConfigError, EqlayersError
from eqlayers.models import Committee, NequIP, Potential, Structures, load_committee, save_potential
from eqlayers.models.committee import MARK, committee_files
from eqlayers.models.structures import NeighborLists, collate
from eqlayers.nn import EdgeGeometry
from eqlayers.testing import ToyNetwork

OUTPUTS = ("energy", "energies", "forces", "stress", "virials")
CUTOFFS = (3.5, 3.5, 3.0)


def toy(seed: int = 0, cutoff: float = 3.5, species: tuple[int, ...] = (1, 8), **options: Any) -> Potential:
    shifts = {species[0]: -0.1 * seed}
    return Potential(ToyNetwork(len(species), cutoff=cutoff, seed=seed), species, shifts, **options).double().eval()


@pytest.fixture(scope="module")
def members() -> list[Potential]:
    """Three members; the last one has a smaller cutoff and another order of species."""
    return [toy(0), toy(1), toy(2, 3.0, (8, 1))]


@pytest.fixture(scope="module")
def committee(members: list[Potential]) -> Committee:
    return Committee(members)


def structures(potential: Any) -> Structures:
    """A molecule and a crystal."""
    water, crystal = molecule("H2O"), bulk("O", "fcc", a=3.4, cubic=True)
    for seed, atoms in enumerate((water, crystal)):
        atoms.rattle(0.1, seed=seed)
    lists = [NeighborLists(potential.cutoff)(atoms) for atoms in (water, crystal)]
    return collate(potential, [water, crystal], lists)


def test_means_and_deviations_are_those_of_the_members(committee: Committee, members: list[Potential]) -> None:
    """Each member alone has a neighbour list of its own cutoff; rounding of sums over other orders."""
    found = committee(structures(committee), OUTPUTS)
    alone = [member(structures(member), OUTPUTS) for member in members]
    for name in OUTPUTS:
        values = torch.stack([one[name] for one in alone])
        torch.testing.assert_close(found[name], values.mean(0), rtol=1e-12, atol=1e-12, equal_nan=True)
        components = tuple(range(1, values.ndim - 1))
        variance = values.var(0, correction=1)
        expected = variance.sum(components).sqrt() if components else variance.sqrt()
        torch.testing.assert_close(found[f"{name}_deviation"], expected, rtol=1e-10, atol=1e-10, equal_nan=True)
    assert found["forces_deviation"].shape == (7,)
    assert found["stress_deviation"].shape == (2,)
    assert float(found["forces_deviation"].min()) > 1e-3
    torch.testing.assert_close(found["forces"].sum(0), torch.zeros(3).double(), atol=1e-10, rtol=0)


def test_members_with_other_cutoffs_are_not_traced(members: list[Potential]) -> None:
    """Numbers decide which edges are theirs."""
    committee = Committee(members)
    committee.compile()
    with pytest.raises(ConfigError, match=r"must have one cutoff, got 3 and 3.5 Angstrom.*do not compile"):
        committee(structures(committee))


def test_edges_are_made_once_for_a_cutoff(committee: Committee, monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs with their sorting, and vectors with harmonics: two cutoffs here, of three members."""
    made: dict[str, int] = {"graphs": 0, "geometry": 0}
    graph, geometry = Graph.__init__, EdgeGeometry.forward

    def counting_graph(*args: Any, **options: Any) -> None:
        made["graphs"] += 1
        graph(*args, **options)

    def counting_geometry(*args: Any, **options: Any) -> Any:
        made["geometry"] += 1
        return geometry(*args, **options)

    monkeypatch.setattr(Graph, "__init__", counting_graph)
    monkeypatch.setattr(EdgeGeometry, "forward", counting_geometry)
    committee(structures(committee))
    assert made == {"graphs": len(set(CUTOFFS)), "geometry": len(set(CUTOFFS))}


def test_members_with_other_harmonics_do_not_share_edges() -> None:
    """The cutoff is the same: each member has the harmonics of its own degrees."""
    torch.manual_seed(0)
    small = {"hidden": "2x0e + 2x1o", "layers": 2, "radial_hidden": [4], "cutoff": 3.5}
    pair = [Potential(NequIP([1, 8], lmax=lmax, **small), [1, 8]).double().eval() for lmax in (1, 2)]
    for members in (pair, pair[::-1]):
        batch = structures(members[0])
        wanted = torch.stack([member(batch, ("forces",))["forces"] for member in members]).mean(0)
        torch.testing.assert_close(Committee(members)(batch, ("forces",))["forces"], wanted, rtol=1e-10, atol=1e-12)


def test_members_share_their_compiled_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second network of the same architecture compiles nothing."""
    from eqlayers_kernels.c.build import cache as disk

    small = {"hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1, "radial_hidden": [4], "cutoff": 3.5}
    pair = [Potential(NequIP([1, 8], **small), [1, 8]).eval() for _ in range(2)]
    pair[0](structures(pair[0]))
    before = disk.info().entries
    Committee(pair)(structures(pair[0]))
    assert disk.info().entries == before


def test_deviations_can_be_differentiated(committee: Committee) -> None:
    """Also where all members agree: the slope is 0 there, not NaN."""
    batch = structures(committee)
    batch = batch._replace(pos=batch.pos.requires_grad_())
    deviation = committee(batch, ("energy", "forces"), create_graph=True)["forces_deviation"]
    (slope,) = torch.autograd.grad(deviation.sum(), batch.pos)
    assert float(slope.abs().max()) > 1e-3
    same = Committee([toy(0), toy(0)])
    deviation = same(batch, ("forces",), create_graph=True)["forces_deviation"]
    assert torch.equal(torch.autograd.grad(deviation.sum(), batch.pos)[0], torch.zeros_like(batch.pos))


def test_the_hessian_is_the_mean(committee: Committee, members: list[Potential]) -> None:
    def water(potential: Any) -> Structures:
        atoms = molecule("H2O")
        return collate(potential, [atoms], [NeighborLists(potential.cutoff)(atoms)])

    expected = torch.stack([member.hessian(water(member)) for member in members]).mean(0)
    torch.testing.assert_close(committee.hessian(water(committee)), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ([], "a committee must have two members or more, got none"),
        ([toy()], "a committee must have two members or more, got one. Pass the potential itself"),
        ([toy(0), ToyNetwork(2)], r"members\[1\] must be a Potential, got a module of type ToyNetwork"),
        ([toy(0), toy(1, species=(1, 6))], r"the species must be the same .*, got \[1, 6\] in members\[1\]"),
        ([toy(0), toy(1).float()], r"the dtype must be the same .*, got torch.float32 in members\[1\]"),
        ("ab", "members must be a list of potentials"),
        (3, "members must be a list of potentials, got 3"),
    ],
    ids=["none", "one", "a network", "species", "dtype", "text", "a number"],
)
def test_members_that_make_no_committee(wrong: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Committee(wrong)


def test_members_that_predict_other_properties(members: list[Potential]) -> None:
    charged = NequIP([1, 8], hidden="2x0e + 2x1o", lmax=1, layers=1, radial_hidden=[4], properties=["energy", "dipole"])
    with pytest.raises(ConfigError, match=r"the properties must be the same .*'energy', 'dipole'"):
        Committee([members[0], Potential(charged, [1, 8]).double().eval()])
    with pytest.raises(ConfigError, match="must be different potentials, got one of them twice"):
        Committee([members[0], members[0]])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a committee of eleven members, two of which have another unit or other species."""
    monkeypatch.chdir(tmp_path)
    run = Path("runs/own")
    for number in range(1, 12):
        place = run / f"member-{number}"
        place.mkdir(parents=True)
        save_potential(toy(number), place / "potential.pt", {"units": "eV, Angstrom"})
    (run / MARK).write_text(json.dumps({"members": 11}))
    save_potential(toy(0), "kcal.pt", {"units": "kcal/mol, Angstrom"})
    save_potential(toy(0), "a.pt")
    return run


def test_names_of_files(folder: Path) -> None:
    """A folder, a pattern and a list; member-10 comes after member-2."""
    expected = [folder / f"member-{number}" / "potential.pt" for number in range(1, 12)]
    assert committee_files(folder) == expected
    assert committee_files(str(folder / "member-*" / "potential.pt")) == expected
    assert committee_files(["a.pt", folder]) == [Path("a.pt"), *expected]
    found = load_committee(folder, dtype=torch.float32)
    assert len(found) == 11
    assert found.dtype == torch.float32
    assert found.members[10].shifts.tolist() == toy(11).shifts.tolist()
    assert not found.training


@pytest.mark.parametrize(
    ("source", "match"),
    [
        ([], "two members or more, got none"),
        ("b*.pt", "a pattern must match files of potentials, got none for 'b*.pt'"),
        ("a*.pt", "two members or more, got one"),
        (["a.pt", "no.pt"], "a potential must be a file, got nothing at no.pt"),
        (["a.pt", "./a.pt"], "members must be different files"),
        (["runs/own/member-1/potential.pt", "kcal.pt"], "same units, got eV, Angstrom of runs/own.* kcal/mol"),
        ("runs", "a folder must be of a committee .*, got runs with no potential in it"),
        ("runs/own/member-1", "got runs/own/member-1 with potential.pt in it"),
        (3, "potentials must be the path of a file, a pattern, or the folder of a committee"),
    ],
    ids=["none", "no match", "one match", "no file", "twice", "units", "a folder", "a run", "a number"],
)
def test_files_that_make_no_committee(source: Any, match: str, folder: Path) -> None:
    with pytest.raises(EqlayersError) as caught:
        load_committee(source)
    assert re.search(match.replace("*.pt", r"\*.pt"), str(caught.value))


def test_a_committee_that_is_not_complete(folder: Path) -> None:
    (folder / "member-3" / "potential.pt").unlink()
    with pytest.raises(ConfigError, match=r"got runs/own, where 1 of 11 members lack a potential\.pt \(member-3\)"):
        load_committee(folder)
    (folder / MARK).write_text("[]")
    with pytest.raises(ConfigError, match="must hold the number of members"):
        load_committee(folder)
