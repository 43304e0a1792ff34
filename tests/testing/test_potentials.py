"""Potentials that break one law each: the check names it, and names nothing else; jumps at the cutoff."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase.build import bulk, molecule

from eqlayers.errors import ConfigError, IndexRangeError
from eqlayers.models import MACE, Potential, Structures
from eqlayers.testing import PotentialReport, PotentialRow, ToyNetwork, check_potential
from eqlayers.testing.potentials import cutoff_rows
from tests.each import each


def potential(network: torch.nn.Module | None = None) -> Potential:
    return Potential(network or ToyNetwork(2, cutoff=3.5), [1, 8], {1: -13.6, 8: -2041.3}, {1: 0.4, 8: 2.0})


class Broken(ToyNetwork):
    """The toy, with a term added to its numbers."""

    def __init__(self, term: Callable[..., Tensor]) -> None:
        super().__init__(2, cutoff=3.5)
        self.term = term

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        return super().forward(kind, edges, graph) + 0.1 * self.term(self, kind, edges, graph)


def pooled(values: Tensor, kind: Tensor, graph: Any) -> Tensor:
    return values.new_zeros(len(kind)).index_add(0, graph.edge_index[1], values)


class Detached(torch.autograd.Function):
    """A value whose gradient is a little off, as a wrong kernel gives it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0] * 1.001


class Curved(torch.autograd.Function):
    """The square of a length, with a right gradient whose own gradient is wrong."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * grads[0] * x.detach()


def smooth(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled(self.envelope(edges.lengths), kind, graph)


def along_x(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled(edges.vectors[:, 0] ** 2 * self.envelope(edges.lengths), kind, graph)


def handed(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    """The determinant of three sums of neighbours, which changes its sign in a mirror."""
    fades = [self.envelope(edges.lengths) * torch.exp(-k * edges.lengths) for k in (0.0, 0.5, 1.0)]
    sums = [
        edges.vectors.new_zeros(len(kind), 3).index_add(0, graph.edge_index[1], edges.vectors * fade[:, None])
        for fade in fades
    ]
    return 10 * (sums[0] * torch.linalg.cross(sums[1], sums[2])).sum(1)


def wrong_gradient(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled(Detached.apply(self.envelope(edges.lengths)), kind, graph)


def wrong_hessian(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled(Curved.apply(self.envelope(edges.lengths)), kind, graph)


def by_number(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return smooth(self, kind, edges, graph) * torch.arange(len(kind)).cos()


def by_size(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return smooth(self, kind, edges, graph) / len(kind)


def jump(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled((edges.lengths < self.cutoff) * torch.exp(-edges.lengths), kind, graph)


def kink(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled((self.cutoff - edges.lengths).clamp(min=0), kind, graph)


def bias(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return 0 * smooth(self, kind, edges, graph) + 1.0 + kind


def bend(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled((self.cutoff - edges.lengths).clamp(min=0) ** 2, kind, graph)


def endless(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    return pooled(torch.exp(-edges.lengths), kind, graph)


def rounded(self: Any, kind: Tensor, edges: Any, graph: Any) -> Tensor:
    """A coefficient of an angle in float32, as tables of group theory are in some models."""
    x, y, z = edges.directions.unbind(1)
    fourth = x**4 + y**4 + z**4 + 2 * (x * x * y * y + torch.tensor(1.0 + 1e-7).double() * z * z * (x * x + y * y))
    return pooled(fourth * self.envelope(edges.lengths), kind, graph)


SLOPES = {"forces are slopes of the energy", "virials are slopes by strain"}
HESSIAN = {"the Hessian is the slope of forces"}
ROTATION = {"rotation: energy", "rotation: forces", "torques sum to zero"}
CUTOFF = ["energy at the cutoff", "slope at the cutoff", "curvature at the cutoff"]
COPIES = {"two copies: energy", "two copies: forces"}
BEYOND = {"edges beyond the cutoff: energy", "edges beyond the cutoff: forces"}
# the term, what must fail, what may as well
LAWS = [
    (smooth, set(), set()),
    (along_x, ROTATION, set()),
    (handed, {"inversion: energy", "inversion: forces"}, set()),
    (wrong_gradient, SLOPES, HESSIAN),
    (wrong_hessian, HESSIAN, {"the Hessian is symmetric", CUTOFF[2]}),
    # numbers and sizes are other ones in a batch, and an edge may cross the cutoff in a difference
    (by_number, {"permutation: energy", "permutation: forces"}, COPIES | SLOPES | HESSIAN | set(CUTOFF)),
    (by_size, COPIES, SLOPES | HESSIAN),
    (jump, set(CUTOFF), SLOPES | HESSIAN),
    (kink, {CUTOFF[1]}, SLOPES | HESSIAN),
    (bias, {"energies of lone atoms are shifts"}, set()),  # in a network that says that there is none
    (bend, {CUTOFF[2]}, SLOPES | HESSIAN),
    (endless, BEYOND | set(CUTOFF), set()),
    (rounded, {"rotation: energy", "rotation: forces"}, {"torques sum to zero"}),
]


@pytest.mark.parametrize(("term", "must", "may"), LAWS, ids=[law[0].__name__ for law in LAWS])
def test_a_broken_law_is_named(term: Any, must: set[str], may: set[str]) -> None:
    failed = {row.name for row in check_potential(potential(Broken(term))).failures}
    assert must <= failed
    assert failed <= must | may


def test_energies_of_lone_atoms_that_a_converted_model_keeps_are_shown() -> None:
    network = MACE([1, 8], "2x0e", correlation=1, lmax=1, layers=1, cutoff=3.5, radial_hidden=[4])
    for subtract in (True, False):
        report = check_potential(Potential(network, [1, 8], {8: -5.0}, subtract_isolated=subtract))
        (row,) = [row for row in report.rows if "lone" in row.name]
        assert report.ok
        assert (row.measured > 1e-3) is not subtract


def test_an_asymmetric_hessian_is_named() -> None:
    """Forces that follow from no energy: one direction is weighed."""

    class Curl(Potential):
        def forward(self, structures: Structures, *args: Any, **options: Any) -> dict[str, Tensor]:
            predictions = super().forward(structures, *args, **options)
            if "forces" in predictions:
                predictions["forces"] = predictions["forces"] * torch.tensor([1.0, 1.0, 0.99]).double()
            return predictions

    failed = {row.name for row in check_potential(Curl(ToyNetwork(2), [1, 8])).failures}
    assert {"the Hessian is symmetric", "forces are slopes of the energy"} <= failed


@pytest.mark.parametrize("factor", [-1.0, 2.0, 1.0 + 1e-9])
def test_a_wrong_stress_is_named(factor: float) -> None:
    class Pressed(Potential):
        def forward(self, structures: Structures, *args: Any, **options: Any) -> dict[str, Tensor]:
            predictions = super().forward(structures, *args, **options)
            return predictions | ({"stress": factor * predictions["stress"]} if "stress" in predictions else {})

    report = check_potential(Pressed(ToyNetwork(2), [1, 8]))
    assert [row.name for row in report.failures] == ["stress is -virials / volume"]


def test_what_must_hold_is_within_a_fraction_of_its_bound() -> None:
    """A bound that anything meets would be worth nothing; a report that fails by luck as well."""
    report, *others = (check_potential(potential(), seed=seed) for seed in range(4))
    assert report.ok
    assert [row.name for other in others for row in other.failures] == []
    assert len(report.rows) == 23
    assert {row.unit for row in report.rows} == {"eV", "eV/A", "eV/A^2", "eV/A^3"}
    assert all(row.bound < (1e-2 if "Hessian" in row.name else 1e-5) for row in report.rows)
    assert len(str(report).splitlines()) == 23


def test_the_users_structures_and_potential_stay() -> None:
    mine = potential().train()
    crystal = bulk("O", "fcc", a=3.0)
    report = check_potential(mine, [crystal], rattle=0.0, seed=3)
    assert report.ok
    assert "torques sum to zero" not in {row.name for row in report.rows}  # a cell has no angular momentum
    assert (mine.training, mine.dtype, crystal.positions.tolist()) == (True, torch.float32, [[0.0, 0.0, 0.0]])


def test_many_species_are_sampled() -> None:
    assert check_potential(Potential(ToyNetwork(20), range(1, 21))).ok


class Repulsion(torch.nn.Module):
    """A pair potential of plain numbers."""

    cutoff, irreps_sh = 4.0, "0e"

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        return pooled((1 - edges.lengths / self.cutoff).clamp(min=0) ** 4 / edges.lengths, kind, graph)


def test_networks_without_parameters() -> None:
    plain = Potential(Repulsion(), [1, 8])
    assert (plain.dtype, plain.double().dtype) == (torch.float32, torch.float64)
    assert check_potential(plain).ok


def test_nan_is_a_failure() -> None:
    report = PotentialReport((PotentialRow("energy", float("nan"), 1.0, "eV"), PotentialRow("force", 0.5, 1.0, "eV")))
    assert not report.ok
    assert str(report).splitlines() == ["FAIL energy  nan of 1.0e+00 eV", "ok   force   5.0e-01 of 1.0e+00 eV"]


def test_arguments_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="potential must"):
        check_potential(ToyNetwork(1))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="structures must"):
        check_potential(potential(), [])
    with pytest.raises(IndexRangeError, match=r"structures\[1\] must .*got also C"):
        check_potential(potential(), [molecule("H2O"), molecule("CH4")])
    with pytest.raises(ConfigError, match="step must"):
        check_potential(potential(), step=0.1)
    with pytest.raises(ConfigError, match="rattle must"):
        check_potential(potential(), rattle=3)


class Tensors(ToyNetwork):
    """Dipoles and polarizabilities of pairs, which fade with a power of the distance to the cutoff."""

    def __init__(self, power: int, properties: tuple[str, ...]) -> None:
        super().__init__(2, cutoff=3.5)
        self.power, self.properties = power, properties

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        fade = ((self.cutoff - edges.lengths).clamp(min=0) ** self.power) * (edges.lengths < self.cutoff)
        made = {"energy": super().forward(kind, edges, graph)[:, None]}
        weight = fade * (1 + kind[graph.edge_index[0]])
        made["dipole"] = pooled_rows(edges.vectors * weight[:, None], kind, graph)
        trace = pooled_rows(fade[:, None], kind, graph)
        made["polarizability"] = torch.cat([trace, 0 * made["dipole"], 0 * trace, 0 * trace], 1)
        columns = [made[name][:, :1] for name in self.properties if name != "dipole"]
        columns += [made[name] for name in self.properties if name == "dipole"]
        return torch.cat(columns + [made[name][:, 1:] for name in self.properties if name == "polarizability"], 1)


def pooled_rows(values: Tensor, kind: Tensor, graph: Any) -> Tensor:
    return values.new_zeros(len(kind), values.shape[1]).index_add(0, graph.edge_index[1], values)


ALL = ("energy", "dipole", "polarizability")


@each("power, properties", [(0, ALL), (1, ALL), (2, ALL), (3, ALL), (1, ("dipole",)), (2, ("polarizability",))])
def test_tensors_fade_at_the_cutoff(power: int, properties: tuple[str, ...]) -> None:
    failed = [row.name for row in check_potential(Potential(Tensors(power, properties), [1, 8])).failures]
    part = ("", "slope of the ", "curvature of the ")[power : power + 1]
    first = [f"{prefix}{name} at the cutoff" for name in properties if name != "energy" for prefix in part]
    assert set(first) <= set(failed)
    assert all("at the cutoff" in name or "Born" in name for name in failed)
    assert power < 3 or not failed


class Fading(torch.nn.Module):
    """Each edge adds a power of the distance to the cutoff to its receiver."""

    irreps_sh = "0e"

    def __init__(self, power: int, cutoff: float = 3.0) -> None:
        super().__init__()
        self.power, self.cutoff = power, cutoff

    def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
        fade = 0.25 * (self.cutoff - edges.lengths) ** self.power
        return fade.new_zeros(len(kind)).index_add(0, graph.edge_index[1], fade)


@each("power", [0, 1, 2, 3])
def test_jumps_have_the_size_that_the_formula_says(power: int) -> None:
    """Two atoms see each other, so that an edge counts twice; energies are scaled by 2 eV."""
    potential = Potential(Fading(power), [1, 8], {1: -13.6, 8: -2041.3}, {1: 2.0, 8: 2.0}).double().eval()
    rows = {name: (jump, bound) for name, (jump, bound), _ in cutoff_rows(potential, torch.Generator(), 1e-12)}
    assert list(rows) == ["energy at the cutoff", "slope at the cutoff", "curvature at the cutoff"]
    wanted = [2 * 2.0 * 0.25 * (1, 1, 2)[order] * (order == power) for order in range(3)]
    for (jump, bound), size in zip(rows.values(), wanted, strict=True):
        assert jump == pytest.approx(size, abs=bound)
        assert bound < 1e-6
    assert [unit for _, _, unit in cutoff_rows(potential, torch.Generator(), 1e-12)] == ["eV", "eV/A", "eV/A^2"]
