"""Whole models by tables, made once or in every call, against the same models without."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import Graph
from eqlayers.errors import ConfigError, IndexRangeError, ShapeError
from eqlayers.layers.radial.module import ScalarNetwork
from eqlayers.models import (
    MACE,
    TFN,
    Equiformer,
    MoleculeNetwork,
    NequIP,
    Potential,
    Structures,
    compress,
    decompress,
    describe_potential,
    extend_potential,
    load_potential,
    recomputed,
    save_potential,
)
from eqlayers.nn import BesselBasis, EdgeGeometry, TabledBasis, TensorProductConv
from eqlayers.testing import ToyNetwork

CUTOFF = 4.0
SMALL: dict[str, Any] = {"species": [1, 8], "hidden": "4x0e + 4x1o", "lmax": 2, "layers": 2, "cutoff": CUTOFF}
MACES: dict[str, Any] = {**SMALL, "correlation": 2, "radial_hidden": (8, 8)}
DENSE = ["RealAgnosticDensityInteractionBlock", "RealAgnosticDensityResidualInteractionBlock"]
NETWORKS: dict[str, tuple[type[torch.nn.Module], dict[str, Any]]] = {
    "MACE": (MACE, MACES),
    "MACE of pairs": (MACE, {**MACES, "distance_transform": "agnesi", "interactions": DENSE}),
    "NequIP": (NequIP, SMALL),
    "TFN": (TFN, SMALL),
    "Equiformer": (Equiformer, {**{k: v for k, v in SMALL.items() if k != "lmax"}, "heads": 2}),
}
PATHS = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
ASKED = ("energy", "energies", "forces", "stress")


def potential(name: str, dtype: torch.dtype = torch.float64, **more: Any) -> Potential:
    kind, options = NETWORKS[name]
    torch.manual_seed(0)
    shifts = {1: -13.6, 8: -432.0}
    return Potential(kind(**options, **more), [1, 8], shifts, 0.7).to(dtype).eval()


def crystal(dtype: torch.dtype = torch.float64, count: int = 12) -> Structures:
    """Atoms in a cell with their images; edges up to half an Angstrom beyond the cutoff, one of them at it."""
    made = torch.Generator().manual_seed(3)
    cell = torch.diag(torch.tensor([6.0, 6.5, 7.0], dtype=torch.float64))
    pos = torch.rand(count, 3, dtype=torch.float64, generator=made) @ cell
    pos[1] = pos[0] + torch.tensor([CUTOFF, 0.0, 0.0])
    steps = torch.cartesian_prod(*[torch.arange(-1, 2)] * 3)
    vectors = pos[None, None] - pos[None, :, None] + (steps.double() @ cell)[:, None, None]
    lengths = vectors.norm(dim=-1)
    image, src, dst = ((lengths < CUTOFF + 0.5) & (lengths > 0)).nonzero(as_tuple=True)
    z = torch.tensor([1, 8, 1])[torch.arange(count) % 3]
    return Structures(z, pos.to(dtype), torch.stack([src, dst]), None, 1, cell[None].to(dtype), steps[image])


def parts(module: torch.nn.Module) -> list[str]:
    return [name for name in module.state_dict() if name.endswith("table")]


def compare(one: dict[str, Tensor], other: dict[str, Tensor], energy: float, force: float) -> None:
    """Deviations of predictions: energies per atom in eV, forces in eV/A, stress in eV/A^3."""
    limits = {"energy": energy * len(one["energies"]), "energies": energy, "forces": force, "stress": force}
    for name, limit in limits.items():
        assert float((one[name] - other[name]).detach().abs().max()) <= limit, name


@pytest.mark.thinned(3)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", NETWORKS)
def test_frozen_tables_give_the_numbers_of_the_network(name: str, dtype: torch.dtype) -> None:
    model, atoms = potential(name, dtype), crystal(dtype)
    exact = model(atoms, ASKED)
    report = compress(model)
    results = model(atoms, ASKED)
    compare(exact, results, 1e-5, 1e-4)
    assert all(max(row.error) <= 1e-4 for row in report.rows)
    assert [f"{row.name}.table" for row in report.rows] == parts(model)
    assert all(row.name in str(report) and f"{row.error.slopes:.1e}" in str(report) for row in report.rows)
    assert "errors are about these: sampled" in str(report)
    assert any(not torch.equal(exact[part], results[part]) for part in ("energies", "forces"))  # it does something
    decompress(model)
    again = model(atoms, ASKED)
    assert all(torch.equal(exact[part], again[part]) for part in ASKED)
    assert not parts(model)


def test_tables_that_are_made_in_inference_mode_outlive_it() -> None:
    model, atoms = potential("MACE"), crystal()
    with torch.inference_mode():
        report = compress(model)
    results = model(atoms, ASKED)
    decompress(model)
    assert [row.error for row in compress(model).rows] == [row.error for row in report.rows]
    assert all(torch.equal(results[part], value) for part, value in model(atoms, ASKED).items())


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", NETWORKS)
def test_live_tables_train_as_the_network_does(name: str) -> None:
    """Energies, forces, and the gradients of a loss of both with respect to every weight."""
    exact, live, atoms = potential(name).train(), potential(name, knots=400).train(), crystal()
    live.load_state_dict(exact.state_dict())
    gradients = []
    for model in (exact, live):
        results = model(atoms, ASKED)
        loss = results["energy"].sum() / 10 + results["forces"].square().sum() + results["stress"].square().sum()
        gradients.append(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))
    compare(exact(atoms, ASKED), live(atoms, ASKED), 1e-7, 1e-5)
    names = [name for name, _ in exact.named_parameters()]
    for path, wanted, results in zip(names, *gradients, strict=True):
        assert (wanted is None) == (results is None), path
        if wanted is not None:
            torch.testing.assert_close(results, wanted, rtol=1e-4, atol=1e-5 * float(wanted.abs().max()), msg=path)


@pytest.mark.parametrize("name", ["MACE", "NequIP"])
def test_second_derivatives_of_the_energy(name: str) -> None:
    model, atoms = potential(name), crystal(count=4)
    hessians = []
    for knots in (None, 400):
        if knots:
            compress(model, knots=knots)
        pos = atoms.pos.clone().requires_grad_()
        (first,) = torch.autograd.grad(
            model(atoms._replace(pos=pos), ("energy",))["energy"].sum(), pos, create_graph=True
        )
        rows = [torch.autograd.grad(one, pos, retain_graph=True)[0].flatten() for one in first.flatten()]
        hessians.append(torch.stack(rows))
    size = float(hessians[0].abs().max())
    torch.testing.assert_close(hessians[1], hessians[1].T, rtol=0, atol=1e-12 * size)
    torch.testing.assert_close(*hessians, rtol=0, atol=1e-3 * size)


def test_properties_of_molecules() -> None:
    torch.manual_seed(0)
    model = MoleculeNetwork([1, 8], "4x0e + 4x1o", lmax=1, layers=2, cutoff=CUTOFF).double()
    live = MoleculeNetwork([1, 8], "4x0e + 4x1o", lmax=1, layers=2, cutoff=CUTOFF, knots=256).double()
    live.load_state_dict(model.state_dict())
    z, pos = torch.tensor([8, 1, 1]), torch.tensor([[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]], dtype=torch.float64)
    pairs = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
    exact = model(z, pos, pairs)
    torch.testing.assert_close(live(z, pos, pairs), exact, rtol=0, atol=1e-6)
    compress(model)
    torch.testing.assert_close(model.eval()(z, pos, pairs), exact, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["MACE of pairs", "NequIP"])
def test_files_hold_the_tables(name: str, tmp_path: Path) -> None:
    model, atoms = potential(name, torch.float32), crystal(torch.float32)
    plain = model(atoms, ASKED)
    compress(model, knots=64)
    results = model(atoms, ASKED)
    save_potential(model, tmp_path / "small.pt")
    back = load_potential(tmp_path / "small.pt")
    again = back(atoms, ASKED)
    assert all(torch.equal(results[part], again[part]) for part in ASKED)
    assert parts(back) == parts(model)
    decompress(back)
    again = back(atoms, ASKED)
    assert all(torch.equal(plain[part], again[part]) for part in ASKED)
    content = torch.load(tmp_path / "small.pt", weights_only=True)
    content["state_dict"][f"network.{parts(model.network)[0]}"] = torch.zeros(3, 3)
    torch.save(content, tmp_path / "other.pt")
    with pytest.raises(ShapeError, match="the table must"):
        load_potential(tmp_path / "other.pt")(atoms)
    live = potential(name, knots=99)
    save_potential(live, tmp_path / "live.pt")
    assert load_potential(tmp_path / "live.pt").network.basis.knots.count == 99


def test_state_dicts_go_both_ways() -> None:
    one, other, atoms = potential("NequIP", knots=64), potential("NequIP", knots=64), crystal()
    compress(one, knots=64)
    with torch.no_grad():
        other.network.read.weight.mul_(2)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(atoms)["forces"], other(atoms)["forces"])
    assert parts(other) == parts(one) != []
    decompress(one)
    other.load_state_dict(one.state_dict())
    assert not parts(other)


def test_state_dicts_with_tables_of_pairs_fit_a_model_without() -> None:
    one, other, atoms = potential("MACE of pairs"), potential("MACE of pairs"), crystal()
    wanted = one(atoms)["forces"]
    compress(one, 1e-3)
    with torch.no_grad():
        next(other.parameters()).mul_(2)
    other.load_state_dict(one.state_dict())
    assert torch.equal(other(atoms)["forces"], wanted)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*basis\.others"):
        other.load_state_dict({**one.state_dict(), "network.basis.others": torch.ones(1)})


def test_a_frozen_model_is_not_trained_by_mistake() -> None:
    model, atoms = potential("NequIP"), crystal()
    compress(model)
    model.train()
    with pytest.raises(ConfigError, match=r"must not be trained, got a call in training mode\. Call eval\(\), or"):
        model(atoms)
    with torch.no_grad():
        model(atoms, ("energy",))
    model.requires_grad_(False)
    assert model(atoms)["forces"].isfinite().all()


@pytest.mark.slow
def test_other_species_and_less_memory() -> None:
    """Uses that copy a model or run its parts again."""
    model, atoms = potential("MACE"), crystal()
    plain = model(atoms, ASKED)
    compress(model)
    wider = extend_potential(model, [6])
    compare(plain, wider(atoms, ASKED), 1e-9, 1e-9)
    assert parts(model)
    assert not parts(wider)
    assert describe_potential(wider)["network"]["init_args"]["knots"] is None
    copied = copy.deepcopy(model)
    assert torch.equal(copied(atoms)["forces"], model(atoms)["forces"])
    live = potential("MACE", knots=128).train()
    wanted = live(atoms)["forces"]
    with recomputed(live.network):
        forces = live(atoms)["forces"]
    torch.testing.assert_close(forces, wanted, rtol=1e-12, atol=1e-13)
    weight = live.network.messages[1].radial.weights[0]
    (mine,), (theirs,) = (torch.autograd.grad(f.square().sum(), [weight]) for f in (forces, wanted))
    torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.kernels
@pytest.mark.slow
def test_fullgraph_compilation() -> None:
    torch.compiler.reset()
    network = NequIP(**SMALL, knots=64).double()
    geometry, edges, kind = (
        EdgeGeometry(network.irreps_sh),
        torch.tensor([[0, 1, 2], [1, 0, 0]]),
        torch.tensor([0, 1, 0]),
    )

    def energy(pos: Tensor) -> Tensor:
        graph = Graph(edges, 3)
        return network(kind, geometry(pos, graph), graph).sum()

    pos = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    values, wanted = (f(pos) for f in (torch.compile(energy, fullgraph=True), energy))
    torch.testing.assert_close(values, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(value, pos) for value in (values, wanted)))


def test_pairs_of_species_that_were_not_named() -> None:
    model, atoms = potential("MACE of pairs"), crystal()
    only = compress(model, species=[1])
    every = compress(model)
    assert 3 * only.rows[0].mebibytes == pytest.approx(every.rows[0].mebibytes, rel=1e-3)  # one row ends each
    compress(model, species=[1])
    with pytest.raises(IndexRangeError, match="pairs of species must"):
        model(atoms)
    hydrogen = atoms._replace(z=torch.ones_like(atoms.z))
    assert model(hydrogen)["forces"].isfinite().all()
    with pytest.raises(ConfigError, match="species must"):
        compress(model, species=[1, 6])
    many = MACE(list(range(1, 15)), hidden="2x0e", correlation=1, lmax=0, layers=1, distance_transform="agnesi")
    with pytest.raises(ConfigError, match="tables for pairs must be of at most 12 species, got 14"):
        compress(many)
    every_pair = NequIP(list(range(1, 15)), hidden="2x0e", lmax=0, layers=1)
    assert len(compress(every_pair).rows) == 1, "one table serves any number of species where none is for a pair"


class Own(torch.nn.Module):
    """A network of a user's, which knows no species."""

    def __init__(self) -> None:
        super().__init__()
        self.basis, self.radial = BesselBasis(6, cutoff=CUTOFF), ScalarNetwork([6, 8, 8])
        self.conv = TensorProductConv("4x0e", "0e + 1o", "4x0e + 4x1o", PATHS, shared_weights=False)

    def forward(self, x: Tensor, lengths: Tensor, harmonics: Tensor, edges: Tensor) -> Tensor:
        return self.conv(x, harmonics, self.radial(self.basis(lengths)), edges)


def test_a_network_of_ones_own() -> None:
    model, edges = Own().double().eval(), torch.tensor([[0, 1, 2], [1, 2, 0]])
    inputs = torch.randn(3, 4).double(), torch.tensor([0.9, 2.0, 3.1]).double(), torch.randn(3, 4).double(), edges
    exact = model(*inputs)
    assert [row.name for row in compress(model, species=[1, 8]).rows] == ["radial"]
    results = model(*inputs)
    assert 0 < float((results - exact).detach().abs().max()) < 1e-4
    decompress(model)
    assert torch.equal(model(*inputs), exact)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_tables_of_splines_where_float32_has_their_digits(dtype: torch.dtype) -> None:
    """A third of the rows, unless knots are so near that differences of coefficients have lost theirs."""
    for knots, rows in ((64, 66), (2048, 3 * 2047 + 4)):
        model = potential("TFN", dtype)
        exact, report = model(crystal(dtype), ASKED), compress(model, knots=knots)
        assert {len(t) for name, t in model.state_dict().items() if name.endswith("table")} == {rows}
        compare(exact, model(crystal(dtype), ASKED), 1e-3, 1e-2)
        assert max(row.error.slopes for row in report.rows) < (0.1 if knots == 64 else 2e-6)


def test_tables_of_other_knots_are_refused() -> None:
    atoms, fine = crystal(), potential("NequIP")
    compress(fine, knots=128)
    coarse, live = potential("NequIP"), potential("NequIP", knots=64)
    compress(coarse, knots=64)
    for model in (coarse, live):
        model.load_state_dict(fine.state_dict())
        with pytest.raises(ShapeError, match="must have 66 rows, for 64 knots, got 130"):
            model(atoms, ASKED)


def test_atoms_without_neighbours() -> None:
    alone = Structures(torch.tensor([8]), torch.zeros(1, 3).double(), torch.zeros(2, 0, dtype=torch.int64))
    for name in NETWORKS:
        exact, live = potential(name), potential(name, knots=64)
        live.load_state_dict(exact.state_dict())
        assert torch.equal(exact(alone)["energy"], live(alone)["energy"]), name
        compress(exact)
        assert torch.equal(exact(alone)["energy"], live(alone)["energy"]), name


def test_bad_input() -> None:
    with pytest.raises(ConfigError, match="model must"):
        compress(Potential(ToyNetwork(1), species=[29]))
    with pytest.raises(ConfigError, match="tolerance must"):
        compress(potential("TFN"), tolerance=0)
    with pytest.raises(ConfigError, match="knots must be an integer, at least 6"):
        compress(potential("TFN"), knots=3)
    with pytest.raises(ConfigError, match="knots must"):
        MACE(**MACES, knots=2.5)
    with pytest.raises(ConfigError, match="functions of a table must be 0 at the cutoff, 3 A"):
        TabledBasis(potential("TFN").network.basis, 16, cutoff=3.0)
    model = potential("TFN")
    assert decompress(model) is None


def test_tables_of_every_call_come_back(tmp_path: Path) -> None:
    """A model that was built with ``knots=``: the same numbers and keys as before, from a file as well."""
    model, atoms = potential("MACE", knots=48), crystal()
    wanted, keys = model(atoms, ASKED), list(model.state_dict())
    compress(model)
    compress(model, knots=200)
    save_potential(model, tmp_path / "frozen.pt")
    for one in (model, load_potential(tmp_path / "frozen.pt")):
        decompress(one)
        results = one(atoms, ASKED)
        assert all(torch.equal(results[part], wanted[part]) for part in ASKED)
        assert list(one.state_dict()) == keys
        assert one.network.options["knots"] == 48
    decompress(model)  # nothing is frozen
    assert model.network.basis.knots.count == 48
