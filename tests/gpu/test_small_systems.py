"""A whole potential on a molecule, where a GPU is faster than the host that feeds it: one graph, replayed or compiled.

In the interpreter's turn the same calls run on a CPU, so that what is compared is known to be right.
"""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eqlayers.models import MACE, TFN, NequIP, Potential, Structures
from tests.gpu.test_streams import recorded

ATOMS = 12


NETWORKS: dict[str, Callable[[list[int]], torch.nn.Module]] = {
    "TFN": lambda species: TFN(species, "4x0e + 4x1o", lmax=1, layers=1, cutoff=5.0),
    "MACE": lambda species: MACE(species, "4x0e + 4x1o", lmax=1, layers=2, correlation=2, cutoff=5.0),
    "NequIP": lambda species: NequIP(species, "4x0e + 4x1o", lmax=1, layers=2, cutoff=5.0),
}


def potential_on(device: torch.device, name: str) -> Potential:
    torch.manual_seed(0)
    return Potential(NETWORKS[name]([1, 6, 8]), [1, 6, 8]).to(device, torch.float64).eval().requires_grad_(False)


def structures_on(device: torch.device) -> Structures:
    z = torch.tensor([1, 6, 8])[torch.arange(ATOMS) % 3]
    pos = 1.5 * torch.randn(ATOMS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.tensor([(i, j) for i in range(ATOMS) for j in range(ATOMS) if i != j]).t().contiguous()
    return Structures(z.to(device), pos.to(device), pairs.to(device))


def moved(structures: Structures, seed: int) -> None:
    """Other positions in the same memory."""
    shift = 0.1 * torch.randn(ATOMS, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    structures.pos.add_(shift.to(structures.pos.device))


def energy_and_forces(potential: Potential, structures: Structures) -> list[Tensor]:
    """By `torch.func`, so that forces are in one graph."""

    def energy(pos: Tensor) -> Tensor:
        return potential.atomic_energies(structures._replace(pos=pos)).sum()

    found, pull = torch.func.vjp(energy, structures.pos)
    return [found, -pull(torch.ones_like(found))[0]]


def assert_same(got: list[Tensor], want: list[Tensor]) -> None:
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("name", NETWORKS)
def test_energies_and_forces_are_recorded_and_replayed(name: str, device: torch.device) -> None:
    """Nothing in a whole potential waits for the device: such a call could not be recorded."""
    potential, structures = potential_on(device, name), structures_on(device)

    def call() -> list[Tensor]:
        found = potential(structures, ("energy", "forces"))
        return [found["energy"], found["forces"]]

    results, replay = recorded(call, device)
    before = [t.clone() for t in results]
    for seed in (1, 2):
        moved(structures, seed)
        replay()
        assert_same(results, call())
    assert not any(torch.equal(a, b) for a, b in zip(results, before, strict=True))


@pytest.mark.thinned(6)
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("name", ["TFN", *(pytest.param(name, marks=pytest.mark.gpu) for name in ("MACE", "NequIP"))])
def test_energies_and_forces_are_one_compiled_graph(name: str, mode: str | None, device: torch.device) -> None:
    """With 'reduce-overhead' in CUDA graphs."""
    potential, structures = potential_on(device, name), structures_on(device)
    options = {"mode": mode} if device.type == "cuda" else {"backend": "aot_eager"}
    torch._dynamo.reset()
    compiled: Callable[..., list[Tensor]] = torch.compile(energy_and_forces, fullgraph=True, **options)
    for seed in range(4 if device.type == "cuda" else 2):  # recording begins at the second call
        moved(structures, seed)
        got = [t.clone() for t in compiled(potential, structures)]
        found = potential(structures, ("energy", "forces"))
        assert_same(got, [found["energy"].sum(), found["forces"]])
