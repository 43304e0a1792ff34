"""Compiled calls give the numbers of the module itself, for all sizes, and follow its weights and modes."""

import copy
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from eqlayers.errors import ConfigError, DTypeError, EqlayersWarning, IndexRangeError, ShapeError
from eqlayers.models import MACE, TFN, Committee, Equiformer, MoleculeNetwork, NequIP, Potential, Structures
from eqlayers.models.compiled import Compiled, inner_graph
from eqlayers.models.structures import NeighborLists, collate
from eqlayers.nn import ZBL
from eqlayers.testing import ToyNetwork

pytestmark = pytest.mark.kernels
SPECIES = [1, 6, 8, 29]
TINY = {"hidden": "2x0e + 2x1o", "layers": 2, "cutoff": 4.0, "radial_hidden": (4,)}
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "MACE": lambda: MACE(SPECIES, lmax=2, correlation=2, **TINY),
    "MACE, tables": lambda: MACE(SPECIES, lmax=2, correlation=2, knots=32, **TINY),
    "MACE, tables of pairs": lambda: MACE(
        SPECIES, lmax=1, correlation=2, knots=32, distance_transform="agnesi", **TINY | {"layers": 1}
    ),
    "MACE, tensors": lambda: MACE(
        SPECIES,
        lmax=2,
        correlation=2,
        properties=["energy", "dipole", "polarizability"],
        **TINY | {"hidden": "2x0e + 2x1o + 2x2e"},
    ),
    "NequIP": lambda: NequIP(SPECIES, lmax=2, **TINY),
    "TFN": lambda: TFN(SPECIES, lmax=2, **TINY),
    "Equiformer": lambda: Equiformer(SPECIES, heads=2, **TINY | {"layers": 1}),
    "toy": lambda: ToyNetwork(4),
}
#: One atom, no edge, as many atoms as structures, as channels, with and without cells that have a volume.
BATCHES: dict[str, Callable[[], list[Atoms]]] = {
    "three molecules": lambda: [molecule(name) for name in ("H2O", "CH4", "C6H6")],
    "one atom": lambda: [molecule("H")],
    "two atoms": lambda: [molecule("H"), molecule("O")],
    "a molecule of two": lambda: [molecule("CO")],
    "a crystal": lambda: [bulk("Cu")],
    "crystals": lambda: [bulk("Cu", cubic=True) * (2, 1, 1), bulk("Cu")],
    "a molecule and a crystal": lambda: [molecule("H2O"), bulk("Cu", cubic=True)],
}


def batch_of(model: Any, structures: list[Atoms]) -> Structures:
    """Structures as one batch."""
    return collate(model, structures, [NeighborLists(model.cutoff)(atoms) for atoms in structures])


def made(name: str = "NequIP", repulsion: bool = False) -> Potential:
    """A potential with weights that are always the same."""
    torch.manual_seed(3)
    return Potential(NETWORKS[name](), SPECIES, {1: -13.6}, 0.7, repulsion=ZBL() if repulsion else None)


def learned(model: nn.Module, results: dict[str, Tensor]) -> list[Tensor | None]:
    """Gradients of a loss of all results by all weights."""
    model.zero_grad()
    weighted = [(torch.cos(torch.arange(t.numel())).view(t.shape) * t).double().sum() for t in results.values()]
    torch.stack(weighted).sum().backward()
    return [weight.grad for weight in model.parameters()]


def assert_alike(compiled: list[Tensor | None], eager: list[Tensor | None], rounding: float = 100.0) -> None:
    """Equal to rounding of the largest number."""
    assert [one is None for one in compiled] == [one is None for one in eager]
    pairs = [
        (one.detach(), other.detach())
        for one, other in zip(compiled, eager, strict=True)
        if one is not None and other is not None
    ]
    most = max([float(t.abs().max()) for _, t in pairs if t.numel()], default=0.0)
    eps = max(torch.finfo(t.dtype).eps for _, t in pairs)  # energies are float64 in networks of float32
    for one, other in pairs:
        assert one.dtype == other.dtype
        assert one.shape == other.shape
        assert one.numel() == 0 or float((one - other).abs().max()) <= rounding * eps * most


@pytest.mark.parametrize("name", NETWORKS)
def test_all_sizes_run_by_one_trace(name: str) -> None:
    """In training and in evaluation, whatever the first batch was."""
    potential = made(name, repulsion=name == "toy").double()
    potential.network.again = next(potential.network.children())  # a module that is used twice keeps its weights
    outputs = ["energy", "energies", "forces", "virials"]
    if name == "MACE, tensors":
        outputs = ["energy", "forces", "dipole", "polarizability", "born_charges"]
    for training in (True, False):
        potential.train(training).compile()
        compiled = potential._compiled
        assert compiled is not None
        for atoms in BATCHES.values():
            batch, both = batch_of(potential, atoms()), []
            for way in (compiled, None):
                potential._compiled = way
                results = potential(batch, outputs)
                both.append([*results.values(), *(learned(potential, results) if training else [])])
            assert_alike(*both)
        assert len(compiled._traces) == 2, "with mirrored edges, and with few edges"


@pytest.mark.parametrize("name", NETWORKS)
def test_the_inner_graph_has_energies_and_forces(name: str) -> None:
    """Forces are sums of slopes by the vectors of edges, virials are products of both, and factors are of energies."""
    potential = made(name, repulsion=name == "toy").double().eval()
    potential.network.again = next(potential.network.children())
    inner = inner_graph(potential)
    for atoms in BATCHES.values():
        batch = batch_of(potential, atoms())
        src, dst = batch.edge_index
        assert batch.cell is not None
        assert batch.batch is not None
        assert batch.shifts is not None
        shifts = torch.einsum("ei,eij->ej", batch.shifts.double(), batch.cell[batch.batch[dst]])
        vectors = batch.pos[dst] - batch.pos[src] + shifts
        ones = torch.ones(len(batch.z)).double()
        energies, slopes = inner(potential, batch.z, vectors, batch.edge_index, ones)
        forces = torch.zeros_like(batch.pos).index_add(0, src, slopes).index_add(0, dst, -slopes)
        expected = potential(batch, ["energies", "forces", "virials"])
        assert_alike([energies, forces], [expected["energies"], expected["forces"]], rounding=1e3)
        products = -torch.einsum("ei,ej->eij", vectors, slopes)
        virials = torch.zeros_like(expected["virials"]).index_add(0, batch.batch[dst], products)
        scale = expected["energies"].abs().max()
        assert (0.5 * (virials + virials.mT) - expected["virials"]).abs().max() <= 1e-12 * scale
        factors = torch.linspace(-1, 2, len(ones)).double()
        slopes = inner(potential, batch.z, vectors, batch.edge_index, factors)[1]
        forces = torch.zeros_like(batch.pos).index_add(0, src, slopes).index_add(0, dst, -slopes)
        pos = batch.pos.clone().requires_grad_()
        summed = (factors * potential.atomic_energies(batch._replace(pos=pos))).sum()
        wanted = torch.autograd.grad(summed, pos)[0]
        torch.testing.assert_close(-forces, wanted, rtol=0, atol=1e-12 * float(scale))


def test_traces_are_forgotten_with_the_coefficients_that_they_hold() -> None:
    """A state dict may have coefficients of other signs, which layers follow, and a potential other lone atoms."""
    potential = made("MACE").double().eval()
    batch = batch_of(potential, BATCHES["three molecules"]())
    potential.compile()
    potential(batch)
    state = {name: -t if "U_matrix_2" in name else t for name, t in potential.state_dict().items()}
    assert sum("U_matrix_2" in name for name in state)
    within = {name.removeprefix("network."): t for name, t in potential.state_dict().items() if "network." in name}
    for load, subtracted in ((potential, True), (None, False), (potential.network, False), (None, True)):
        if load is not None:
            load.load_state_dict(state if load is potential else within)
        potential.subtract_isolated = subtracted
        results = potential(batch)
        compiled, potential._compiled = potential._compiled, None
        assert compiled is not None
        assert_alike(list(results.values()), list(potential(batch).values()))
        potential._compiled = compiled


def test_no_atoms_and_no_structures() -> None:
    potential = made()
    nothing = Structures(torch.empty(0, dtype=torch.int64), torch.empty(0, 3), torch.empty(2, 0, dtype=torch.int64))
    both = []
    for compiled in (True, False):
        potential.compile(compiled)
        listed = []
        for count in (0, 1, 2):
            results = potential(nothing._replace(num_graphs=count))
            listed += [*results.values(), *learned(potential, results)]
        both.append([torch.zeros(()) if one is None else one for one in listed])
    assert_alike(*both)


def test_strided_inputs_and_weights() -> None:
    potential = made().eval()
    batch = batch_of(potential, BATCHES["three molecules"]())
    eager = [*potential(batch).values()]
    potential.compile()
    potential(batch)
    strided = batch._replace(
        pos=torch.cat([batch.pos, batch.pos], 1)[:, :3],
        edge_index=batch.edge_index.T.contiguous().T,
        z=batch.z.flip(0).flip(0),
    )
    assert_alike([*potential(strided).values()], eager)
    for weight in potential.parameters():
        if weight.ndim == 2:
            weight.data = weight.data.T.contiguous().T
    assert_alike([*potential(strided).values()], eager)


def test_a_trace_in_inference_mode() -> None:
    potential = made().eval()
    batch = batch_of(potential, BATCHES["crystals"]())
    eager = [*potential(batch).values()]
    potential.compile()
    with torch.inference_mode():
        assert_alike([t.clone() for t in potential(batch).values()], eager)
    assert_alike([*potential(batch).values()], eager)


def test_stress_and_structures_without_cell() -> None:
    potential = made("MACE").eval()
    crystal = batch_of(potential, [bulk("Cu"), bulk("Cu", cubic=True)])
    plain = batch_of(potential, [molecule("H2O")])._replace(cell=None, shifts=None)
    eager = [*potential(crystal, ["stress"]).values(), *potential(plain).values()]
    potential.compile()
    assert_alike([*potential(crystal, ["stress"]).values(), *potential(plain).values()], eager)
    with pytest.raises(ConfigError, match="cell"):
        potential(plain, ["stress"])


def test_molecules_with_further_outputs() -> None:
    torch.manual_seed(0)
    network = MoleculeNetwork(layers=1, hidden="2x0e + 2x1o", auxiliary={"charges": "atom", "dipole": "vector"})
    potential = made()  # for its dtype
    for names in (("H2O", "CH4"), ("CO",), ("H",)):
        batch, both = batch_of(potential, [molecule(name) for name in names]), []
        for compiled in (True, False):
            network.compile(compiled)
            results = network.outputs(*batch[:5])
            both.append([*results.values(), *learned(network, results)])
        assert_alike(*both)


def test_committees() -> None:
    committee = Committee([made("toy").train(), made("NequIP").train()])
    for atoms in (BATCHES["three molecules"], BATCHES["crystals"]):
        batch, both = batch_of(committee, atoms()), []
        for compiled in (True, False):
            committee.compile(compiled)
            results = committee(batch)
            both.append([*results.values(), *learned(committee, results)])
        assert_alike(*both)


def test_weights_are_read_at_every_call() -> None:
    """Steps of an optimizer, loaded weights, another dtype, other weights by assignment."""
    potential, other = made().train(), made()
    batch = batch_of(potential, BATCHES["three molecules"]())
    with torch.no_grad():
        for weight in other.parameters():
            weight.mul_(1.1)

    def changed(potential: Potential) -> Iterator[Structures]:
        optimizer = torch.optim.AdamW(potential.parameters(), lr=0.1)
        for _ in range(3):
            learned(potential, potential(batch))
            optimizer.step()
            yield batch
        potential.load_state_dict(other.state_dict())
        yield batch
        potential.network.load_state_dict(made().network.state_dict(), assign=True)
        yield batch
        potential.double()
        yield batch._replace(pos=batch.pos.double(), cell=batch.cell.double() if batch.cell is not None else None)

    both: list[list[Tensor | None]] = []
    for compiled in (True, False):
        potential = made().train()
        potential.compile(compiled)
        both.append([t for now in changed(potential) for t in potential(now).values()])
    assert_alike(*both)


def test_frozen_and_thawed_layers() -> None:
    potential = made().train()
    batch, part = batch_of(potential, BATCHES["three molecules"]()), next(potential.network.parameters())
    potential.compile()
    for free in (False, True, False, True):
        part.requires_grad_(free)
        gradients = learned(potential, potential(batch))
        assert [one is not None for one in gradients] == [p.requires_grad for p in potential.parameters()]
    for weight in potential.parameters():
        weight.requires_grad_(False)
    assert not potential(batch)["energy"].requires_grad
    with torch.no_grad():
        assert not potential(batch)["forces"].requires_grad


def test_one_weight_for_two_layers_and_then_two() -> None:
    potential, compiled, both = made().train(), Compiled(True, True), []
    batch = batch_of(potential, BATCHES["three molecules"]())
    first, second = (step.radial.weights for step in potential.network.steps)
    for weight in (first[0], nn.Parameter(2 * first[0].detach())):
        second[0] = weight
        for way in (compiled, None):
            potential._compiled = way
            results = potential(batch)
            both.append([*results.values(), *learned(potential, results)])
    assert_alike(*both[:2])
    assert_alike(*both[2:])


def test_threads_may_call_first_and_other_contexts_are_not_traced() -> None:
    """A checkpoint keeps what a call saves for its gradient, and anomalies are looked for in numbers."""
    potential = made().train().double()
    batches = [batch_of(potential, atoms()) for atoms in BATCHES.values()]
    weights = list(potential.parameters())

    def called(number: int) -> Any:
        results = checkpoint(lambda: list(potential(batches[number % len(batches)]).values()), use_reentrant=False)
        return list(torch.autograd.grad(results[0].sum() + results[1].square().sum(), weights, allow_unused=True))

    eager = [called(number) for number in range(len(batches))]
    potential.compile()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(called, range(3 * len(batches))))
    potential.compile()
    with torch.autograd.set_detect_anomaly(True):  # by one thread: torch's own notes of several wait for each other
        found += map(called, range(len(batches)))
    for number, gradients in enumerate(found):
        assert_alike(gradients, eager[number % len(batches)])


def test_modes_of_submodules_are_followed() -> None:
    class Noisy(ToyNetwork):
        def __init__(self) -> None:
            super().__init__(4)
            self.drop = nn.Dropout(0.5)

        def forward(self, atom_types: Tensor, edges: Any, graph: Any) -> Tensor:
            return self.drop(super().forward(atom_types, edges, graph))

    potential = Potential(Noisy(), SPECIES).train()
    batch = batch_of(potential, [bulk("Cu", cubic=True)])
    potential.compile()
    drawn = {float(potential(batch, ["energies"])["energies"][0].detach()) for _ in range(20)}
    assert len(drawn) == 2, "each call draws anew"
    potential.network.drop.eval()
    assert len({float(potential(batch, ["energies"])["energies"][0].detach()) for _ in range(9)}) == 1


def test_copies_are_independent() -> None:
    """Averages of weights are taken of copies, and read by them."""
    potential = made().train()
    batch = batch_of(potential, BATCHES["three molecules"]())
    potential.compile()
    before = potential(batch)["energy"]
    average = copy.deepcopy(potential)
    assert average._compiled is not potential._compiled
    with torch.no_grad():
        for weight in average.parameters():
            weight.mul_(1.1)
    after = average(batch)
    average.compile(False)
    assert_alike([*after.values()], [*average(batch).values()])
    assert not torch.allclose(after["energy"], before)
    assert torch.equal(potential(batch)["energy"], before)
    assert list(average.state_dict()) == list(made().state_dict())


def test_positions_that_require_gradients() -> None:
    potential = made().eval()
    batch, both = batch_of(potential, BATCHES["crystals"]()), []
    for compiled in (True, False):
        potential.compile(compiled)
        pos, cell = batch.pos.clone().requires_grad_(), batch.cell.clone().requires_grad_()  # type: ignore[union-attr]
        energy = potential(batch._replace(pos=pos, cell=cell), ["energy"])["energy"].sum()
        both.append(list(torch.autograd.grad(energy, [pos, cell])))
    assert_alike(*both)


def test_values_are_checked_before_a_trace_runs() -> None:
    potential = made().eval()
    batch = batch_of(potential, BATCHES["three molecules"]())
    potential.compile()
    potential(batch)
    with pytest.raises(IndexRangeError, match="species"):
        potential(batch._replace(z=batch.z + 1))
    with pytest.raises(IndexRangeError, match="edge_index"):
        potential(batch._replace(edge_index=batch.edge_index + len(batch.z) - 1))
    with pytest.raises(IndexRangeError, match="batch"):
        potential(batch._replace(num_graphs=1))
    with pytest.raises(ShapeError, match="shifts"):
        potential(batch._replace(shifts=batch.shifts[1:]))  # type: ignore[index]
    with pytest.raises(DTypeError, match="pos"):
        potential(batch._replace(pos=batch.pos.double()))


def test_second_derivatives_are_refused_and_hessians_are_not() -> None:
    potential = made().train()
    batch = batch_of(potential, [molecule("H2O")])
    hessian = potential.hessian(batch)
    potential.compile()
    assert torch.equal(potential.hessian(batch), hessian)
    with pytest.raises(ConfigError, match=r"compile\(False\)"):
        torch.autograd.grad(potential(batch)["energy"].sum(), [*potential.parameters()], create_graph=True)


def test_a_weight_that_changes_before_the_backward_pass_is_an_error() -> None:
    potential = made().train()
    potential.compile()
    loss = potential(batch_of(potential, [molecule("H2O")]))["forces"].square().sum()
    with torch.no_grad():
        for weight in potential.parameters():
            weight.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


class Reads(ToyNetwork):
    """A network that decides by numbers, by a number of atoms, or by nothing."""

    def __init__(self, what: str) -> None:
        super().__init__(4)
        self.what = what

    def forward(self, atom_types: Tensor, edges: Any, graph: Any) -> Tensor:
        atoms = super().forward(atom_types, edges, graph)
        if self.what == "nothing":  # but keeps a tensor of the first call
            self.kept = vars(self).get("kept", torch.arange(4).to(atoms))
            return atoms * self.kept[atom_types]
        if self.what == "numbers":
            return atoms * float(edges.lengths.detach().mean())
        return atoms * int(atom_types.shape[0]) if self.what == "sizes" else atoms * atom_types.numpy().shape[0]


def test_what_a_network_keeps_is_not_of_its_trace() -> None:
    hessians = []
    for compiled in (True, False):
        potential = Potential(Reads("nothing"), SPECIES).eval()
        batch = batch_of(potential, [molecule("H2O")])
        potential.compile(compiled)
        potential(batch)
        hessians.append(potential.hessian(batch))
    assert torch.equal(*hessians)


@pytest.mark.parametrize("what", ["numbers", "sizes", "arrays"])
def test_what_cannot_be_traced_is_named_with_its_line(what: str) -> None:
    potential = Potential(Reads(what), SPECIES).eval()
    batch = batch_of(potential, [molecule("H2O")])
    eager = potential(batch)
    potential.compile()
    with pytest.raises(ConfigError, match=r"test_compiled.py:\d+, forward"):
        potential(batch)
    potential.compile(required=False)
    with pytest.warns(EqlayersWarning, match=r"not compiled: .*test_compiled.py:\d+"):
        assert_alike([*potential(batch).values()], [*eager.values()])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        potential(batch)


@pytest.mark.parametrize("raised", [KeyError("a node"), RuntimeError("a device"), torch.OutOfMemoryError("full")])
def test_any_error_ends_compiling_unless_it_is_required(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    potential = made().eval()
    batch = batch_of(potential, [molecule("H2O")])
    eager = potential(batch)

    def broken(*args: Any) -> Any:
        raise raised

    monkeypatch.setattr("eqlayers.models.compiled.Derivable", broken)
    potential.compile()
    with pytest.raises(type(raised)):
        potential(batch)
    potential.compile(required=False)
    if isinstance(raised, torch.OutOfMemoryError):
        with pytest.raises(torch.OutOfMemoryError):
            potential(batch)
    else:
        with pytest.warns(EqlayersWarning, match="calls are not compiled: .*a (node|device)"):
            assert_alike([*potential(batch).values()], [*eager.values()])
    potential.compile(required=False)
    with pytest.raises(IndexRangeError):
        potential(batch._replace(z=torch.full_like(batch.z, 5)))


def test_other_ways_to_trace_see_the_module_itself() -> None:
    potential = made().eval()
    batch = batch_of(potential, [molecule("H2O")])
    potential.compile()
    weights = {name: p.detach() for name, p in potential.named_parameters()}

    def energy(weights: dict[str, Tensor]) -> Tensor:
        total: Tensor = torch.func.functional_call(potential, weights, (batch, ["energy"]))["energy"].sum()
        return total

    by_func = list(torch.func.grad(energy)(weights).values())
    potential.compile(False)
    assert_alike(by_func, learned(potential, potential(batch, ["energy"])))


def test_tables_of_too_many_pairs_are_refused() -> None:
    network = MACE(range(1, 14), lmax=1, correlation=1, knots=16, distance_transform="agnesi", **TINY | {"layers": 1})
    potential = Potential(network, range(1, 14))
    potential.compile()
    with pytest.raises(ConfigError, match="at most 12 species in a trace, got 13"):
        potential(batch_of(potential, [molecule("H2O")]))
