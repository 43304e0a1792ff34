"""Recorded calls: the numbers of the potential itself, for other atoms and weights in the memory of one recording.

On a CPU a stand-in computes every replay again in the same memory, and overwrites what other recordings left there.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule
from torch import Tensor

from eqlayers.core.traces import recorded
from eqlayers.errors import ConfigError, EqlayersWarning
from eqlayers.integrations.ase import Calculator
from eqlayers.models import MACE, Committee, MoleculeNetwork, NequIP, Potential
from eqlayers.models.structures import NeighborLists, Structures, collate
from tests.stand_in import StandIn

OUTPUTS = ("energy", "energies", "forces", "virials")
Results = dict[str, Tensor]


@pytest.fixture
def recordings(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that were recorded."""
    made: list[object] = []
    make = StandIn if device.type == "cpu" else recorded.CudaGraphs

    class Counted(make):  # type: ignore[misc, valid-type]
        def __call__(self, call: Callable[[], list[Any]]) -> tuple[list[Any], Callable[[], object]]:
            made.append(call)
            result: tuple[list[Any], Callable[[], object]] = super().__call__(call)
            return result

    monkeypatch.setitem(recorded.RECORDERS, device.type, Counted)
    return made


def potential_on(device: torch.device, name: str, seed: int = 0) -> Potential:
    torch.manual_seed(seed)
    options = {"lmax": 1, "layers": 2, "cutoff": 4.0, "num_basis": 4, "radial_hidden": (8,)}
    network = (
        MACE([8, 13], "4x0e + 4x1o", correlation=2, **options)
        if name == "MACE"
        else NequIP([8, 13], "4x0e + 4x1o", **options)
    )
    return Potential(network, [8, 13]).to(device, torch.float64)


def of_atoms(potential: Any, several: list[Atoms]) -> Structures:
    lists = NeighborLists(potential.cutoff)
    return collate(potential, several, [lists(atoms) for atoms in several])


def shaken(atoms: Atoms, seed: int) -> Atoms:
    """Moved atoms, of species in another order."""
    atoms.rattle(0.1, seed=seed)
    atoms.numbers[:] = np.random.default_rng(seed).permutation([8, 13] * len(atoms))[: len(atoms)]
    return atoms


def crystal(seed: int, stretch: float = 1.0) -> Atoms:
    return shaken(bulk("Al", cubic=True, a=4.05 * stretch), seed)


def cluster(seed: int) -> Atoms:
    return shaken(molecule("O3"), seed)


def assert_same(got: Results, want: Results) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-11, atol=1e-11)


def by_python(potential: Potential, call: Callable[[], Any]) -> Any:
    """The result of a call while the potential is not compiled."""
    compiled, potential._compiled = potential._compiled, None
    result = call()
    potential._compiled = compiled
    return result


def loss(potential: Potential, structures: Structures) -> Tensor:
    results = potential(structures, ("energy", "energies", "forces"))
    return results["energy"].square().sum() + results["energies"].cos().sum() + results["forces"].sin().sum()


def slopes(potential: Potential, structures: Structures) -> list[Tensor]:
    """Gradients of a loss of energies and forces by all weights."""
    weights = [weight for weight in potential.parameters() if weight.requires_grad]
    return list(torch.autograd.grad(loss(potential, structures), weights, materialize_grads=True))


def assert_equal_slopes(got: list[Tensor], want: list[Tensor]) -> None:
    most = max(float(t.abs().max()) for t in want)
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-13 * most)


@pytest.mark.parametrize("name", ["MACE", "NequIP"])
@pytest.mark.parametrize("kind", [crystal, cluster])
def test_results_are_those_of_the_potential(
    kind: Callable[[int], Atoms], name: str, device: torch.device, recordings: list[object]
) -> None:
    potential = potential_on(device, name).eval().requires_grad_(False)
    potential.compile()
    for seeds in ([1, 2], [3, 4], [5, 6]):
        batch = of_atoms(potential, [kind(seed) for seed in seeds])
        got = potential(batch, OUTPUTS)
        assert_same(got, by_python(potential, lambda batch=batch: potential(batch, OUTPUTS)))
    assert len(recordings) == 1
    assert got["forces"].any()


@pytest.mark.parametrize("name", ["MACE", "NequIP"])
def test_gradients_of_weights_are_those_of_the_potential(
    name: str, device: torch.device, recordings: list[object]
) -> None:
    """For other structures, after steps in the same memory, after new memory for weights, and with frozen weights."""
    potential = potential_on(device, name)
    potential.subtract_isolated = False  # energies of lone atoms, such as ghosts, depend on weights
    potential.compile()
    for number, atoms in enumerate(([crystal(0)], [cluster(1)], [cluster(2), crystal(3)], [cluster(4)], [crystal(5)])):
        batch = of_atoms(potential, atoms)
        assert_equal_slopes(slopes(potential, batch), by_python(potential, lambda g=batch: slopes(potential, g)))
        assert (loss(potential, batch) - by_python(potential, lambda g=batch: loss(potential, g))).abs() < 1e-9
        with torch.no_grad():
            for weight in potential.parameters():
                weight.add_(0.01)
                if number == 2:
                    weight.data = weight.data * 1.1
        if number == 3:
            next(potential.parameters()).requires_grad_(False)
    assert len(recordings) == 8  # both passes of a crystal, of two structures, with moved weights, with frozen ones


def test_sizes_that_were_met_are_not_recorded_again(
    device: torch.device, recordings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    potential = potential_on(device, "NequIP").eval().requires_grad_(False)
    potential.compile()
    steps = [  # atoms, outputs, recordings so far
        ([crystal(0)], OUTPUTS, 1),
        ([crystal(1, 0.7)], OUTPUTS, 2),  # more edges
        ([crystal(2)], OUTPUTS, 2),
        ([crystal(3)], ("energy",), 3),
        ([crystal(4), crystal(5)], ("energy",), 4),
        ([cluster(6)], None, 5),
        ([crystal(7, 0.7)], OUTPUTS, 5),
    ]
    for atoms, outputs, count in steps:
        batch = of_atoms(potential, atoms)
        want = by_python(potential, lambda batch=batch, outputs=outputs: potential(batch, outputs))
        assert_same(potential(batch, outputs), want)
        assert len(recordings) == count


def test_a_size_beyond_the_most_is_not_recorded(
    device: torch.device, recordings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the same numbers in the same memory."""
    monkeypatch.setattr(recorded, "MOST", 1)
    potential = potential_on(device, "NequIP")
    potential.compile()
    for number, atoms in enumerate(([crystal(0)], [cluster(1), crystal(2)], [crystal(3)], [cluster(4), cluster(5)])):
        batch = of_atoms(potential, atoms)
        assert_equal_slopes(slopes(potential, batch), by_python(potential, lambda g=batch: slopes(potential, g)))
        assert len(recordings) == 2, number  # both passes of the first


def test_results_and_gradients_are_not_overwritten_by_the_next_call(
    device: torch.device, recordings: list[object]
) -> None:
    potential = potential_on(device, "MACE")
    potential.compile()
    first = potential(of_atoms(potential, [crystal(0)]))
    gradients = slopes(potential, of_atoms(potential, [crystal(0)]))
    before = {name: value.detach().clone() for name, value in first.items()}, [t.clone() for t in gradients]
    slopes(potential, of_atoms(potential, [crystal(1)]))
    assert_same(first, before[0])
    assert_equal_slopes(gradients, before[1])


def test_backward_passes_in_any_order(device: torch.device, recordings: list[object]) -> None:
    """Two calls before their backward passes, of one size and of two, and two passes of one call."""
    potential = potential_on(device, "NequIP")
    weights = list(potential.parameters())
    potential.compile()
    for second in (crystal(1), cluster(1)):
        batch = [of_atoms(potential, [atoms]) for atoms in (crystal(0), second)]
        losses = [loss(potential, one) for one in batch]
        got = [torch.autograd.grad(one, weights, retain_graph=True, materialize_grads=True) for one in losses]
        got.append(torch.autograd.grad(losses[0], weights, materialize_grads=True))
        want = [by_python(potential, lambda one=one: slopes(potential, one)) for one in batch]
        for one, other in zip(got, [*want, want[0]], strict=True):
            assert_equal_slopes(list(one), other)


def test_calls_in_inference_mode_and_without(device: torch.device, recordings: list[object]) -> None:
    potential = potential_on(device, "NequIP").eval().requires_grad_(False)
    batch = of_atoms(potential, [crystal(0)])
    wanted = potential(batch)
    potential.compile()
    for mode in (torch.inference_mode, torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            assert_same(potential(batch), wanted)
    assert len(recordings) <= 2


class Network(torch.nn.Module):
    """Energies of atoms by their neighbours, with a module on scalars of all atoms."""

    cutoff, irreps_sh, lone_atoms_are_zero = 4.0, "0e", True

    def __init__(self, on_all: torch.nn.Module) -> None:
        super().__init__()
        self.mix, self.on_all, self.read = torch.nn.Linear(1, 4), on_all, torch.nn.Linear(4, 1)

    def forward(self, types: Tensor, edges: Any, graph: Any) -> Tensor:
        near = (edges.lengths - 1.0).square()
        x = near.new_zeros(types.shape[0]).index_add(0, graph.edge_index[1], near)[:, None] * 0.1 + types[:, None]
        result: Tensor = self.read(torch.tanh(self.on_all(self.mix(x))))[:, 0]
        return result


class LessMean(torch.nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


def test_means_over_all_atoms_are_not_recorded_and_told(device: torch.device, recordings: list[object]) -> None:
    potential = Potential(Network(LessMean()), [8, 13]).to(device, torch.float64)
    batch = of_atoms(potential, [crystal(0)])
    wanted = {name: value.detach() for name, value in potential(batch).items()}
    potential.compile()
    with pytest.raises(
        ConfigError, match="recorded results must equal the results of the network itself, got another energy"
    ):
        potential(batch)
    potential.compile(record=False)
    assert_same(potential(batch), wanted)


def test_random_numbers_are_not_recorded(device: torch.device, recordings: list[object]) -> None:
    """Two backward passes of one call have one mask."""
    potential = Potential(Network(torch.nn.Dropout(0.5)), [8, 13]).to(device, torch.float64)
    potential.compile()
    batch, other = (of_atoms(potential, [crystal(seed)]) for seed in (0, 1))
    value, weights = potential(batch)["energy"].sum(), list(potential.parameters())
    first = torch.autograd.grad(value, weights, retain_graph=True)
    potential(other)
    assert_equal_slopes(list(torch.autograd.grad(value, weights)), list(first))
    assert not recordings


def test_threads_share_the_memory_of_recordings(device: torch.device, recordings: list[object]) -> None:
    potential = potential_on(device, "NequIP")
    batches = [of_atoms(potential, [crystal(seed)]) for seed in range(4)]
    want = [slopes(potential, batch) for batch in batches]
    potential.compile()
    slopes(potential, batches[0])
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for got, other in zip(pool.map(lambda batch: slopes(potential, batch), batches), want, strict=True):
                assert_equal_slopes(got, other)


def test_weights_that_change_before_the_backward_pass_are_an_error(
    device: torch.device, recordings: list[object]
) -> None:
    potential = potential_on(device, "NequIP")
    potential.compile()
    value = loss(potential, of_atoms(potential, [crystal(0)]))
    with torch.no_grad():
        next(potential.parameters()).add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.backward()


def test_committees_molecules_and_calculators_record(device: torch.device, recordings: list[object]) -> None:
    members = [potential_on(device, "MACE", seed).eval() for seed in (0, 1)]
    committee = Committee(members).eval().requires_grad_(False)
    plain, fast = Calculator(committee), Calculator(Committee(members).eval(), compile=True)
    for seed in range(3):
        atoms = crystal(seed)
        for name in ("forces", "stress", "energy"):
            np.testing.assert_allclose(fast.get_property(name, atoms), plain.get_property(name, atoms), atol=1e-10)
    count = len(recordings)
    assert count in (1, 2)  # with weights that require gradients, of both passes
    torch.manual_seed(0)
    molecules = MoleculeNetwork([8, 13], "4x0e + 4x1o", layers=1, cutoff=4.0).double().to(device).eval()
    pair = of_atoms(potential_on(device, "NequIP"), [cluster(0), cluster(1)])
    wanted = molecules(*pair[:5])
    molecules.compile()
    torch.testing.assert_close(molecules(*pair[:5]), wanted, rtol=1e-12, atol=1e-12)
    assert len(recordings) > count


def test_what_cannot_be_recorded_is_named(
    device: torch.device, recordings: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    potential = potential_on(device, "NequIP").eval().requires_grad_(False)
    batch = of_atoms(potential, [crystal(0)])
    wanted = potential(batch)
    potential.compile(record=False)
    assert_same(potential(batch), wanted)
    assert not recordings

    def waits(device: torch.device) -> Any:
        def record(call: Callable[[], list[Any]]) -> Any:
            raise RuntimeError("operation not permitted when stream is capturing")

        return record

    monkeypatch.setitem(recorded.RECORDERS, device.type, waits)
    potential.compile()
    with pytest.raises(
        ConfigError, match=r"must not wait for the device .*got an error of the recording: .*record=False"
    ):
        potential(batch)
    potential.compile(required=False)
    with pytest.warns(EqlayersWarning, match="calls are not compiled: a call must not wait for the device"):
        assert_same(potential(batch), wanted)
    with pytest.raises(ConfigError, match="record must be"):
        potential.compile(record="yes")  # type: ignore[arg-type]
