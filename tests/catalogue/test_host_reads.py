"""No layer and no potential looks at a device's numbers: no GPU would be waited for, and a CUDA graph can capture it.

Tensors of the device `meta` have no numbers, so that whatever asks for one raises; what GPUs do in any order, sums by
atomics, is seen among the operations.
"""

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eqlayers import models
from eqlayers.models import Potential, Structures
from eqlayers.nn import ZBL, SpeciesLinear, SymmetricContraction
from tests.each import each

from .cases import Case, results
from .test_layers import CASES

#: Operations whose sums are in any order on a GPU, of values and of gradients, and those whose results have to be read.
ATOMIC = ("index_add", "scatter_add", "embedding_dense_backward")
READ = ("_local_scalar_dense", "nonzero", "unique", "bincount", "masked_select")
#: Gradients of torch's embedding are summed in a fixed order, it says, on CUDA.
ALLOWED = {"aten.embedding_dense_backward.default"}


class Operations(TorchDispatchMode):
    """Counts what is run."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] = self.seen.get(str(func), 0) + 1
        return func(*args, **(kwargs or {}))

    def named(self, words: tuple[str, ...]) -> list[str]:
        """Calls of these names that are not allowed."""
        return [name for name in self.seen if any(word in name for word in words) and name not in ALLOWED]


def gradients(values: list[Tensor], wanted: list[Tensor]) -> None:
    total = sum(value.float().square().sum() for value in values if value.requires_grad)
    if isinstance(total, Tensor) and wanted:
        torch.autograd.grad(total, wanted, allow_unused=True)


class Made(TorchDispatchMode):
    """Notes the tensors on a device that operations give."""

    def __init__(self) -> None:
        super().__init__()
        self.tensors: list[tuple[str, weakref.ref[Tensor]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in (out if isinstance(out, (tuple, list)) else [out]) if isinstance(t, Tensor)]
        self.tensors += [(str(func), weakref.ref(t)) for t in tensors if t.device.type == "meta"]
        return out

    def alive(self, besides: set[int]) -> list[str]:
        """Operations whose results are still there, but for tensors of these ids; cycles are collected first."""
        if any(tensor() is not None for _, tensor in self.tensors):
            gc.collect()
        left = ((name, tensor()) for name, tensor in self.tensors)
        return [name for name, tensor in left if tensor is not None and id(tensor) not in besides]


@each("case", CASES, ids=lambda case: case.name)
def test_layers(case: Case) -> None:
    """No look at a number; and nothing on the device outlives a call, which may run in a CUDA graph's memory pool."""
    layer = case.layer(dtype=torch.float32).to("meta")
    arguments = {name: value.to("meta") for name, value in case.arguments(dtype=torch.float32).items()}
    wanted = [arguments[name].requires_grad_() for name in case.gradients(arguments)]
    with Operations() as operations, Made() as made:
        gradients(list(results(layer(**arguments))), [*wanted, *(p for p in layer.parameters() if p.requires_grad)])
    del arguments, wanted
    assert operations.seen
    assert operations.named(ATOMIC + READ) == []
    assert made.tensors
    states = {id(state) for state in layer.state_dict(keep_vars=True).values()}  # statistics, written in place
    assert made.alive(besides=states) == []


def test_species_on_a_device_are_sorted_once_for_all_layers() -> None:
    layers = [SymmetricContraction("4x0e + 4x1o", "4x0e", 2, 3).to("meta") for _ in range(2)]
    x, kind = torch.empty(5, 16, device="meta"), torch.zeros(5, dtype=torch.int64, device="meta")

    def sorts() -> int:
        with Operations() as operations:
            for layer in layers:
                layer(x, kind)
        return operations.seen.get("aten.arange.default", 0)  # numbers of the atoms, which a sort begins with

    assert [sorts(), sorts()] == [1, 0]
    kind.zero_()
    assert sorts() == 1, "written to: other species"


NETWORKS: dict[str, Any] = {
    "TFN": lambda species: models.TFN(species, "2x0e + 2x1o", 1, 2, radial_hidden=[4]),
    "NequIP": lambda species: models.NequIP(species, "2x0e + 2x1o", 1, 2, radial_hidden=[4]),
    "MACE": lambda species: models.MACE(species, "2x0e + 2x1o", 2, 2, 2, radial_hidden=[4]),
    "MACE with density": lambda species: models.MACE(
        species, "2x0e + 2x1o", 2, 2, 2, radial_hidden=[4], interactions="RealAgnosticDensityInteractionBlock"
    ),
    "Equiformer": lambda species: models.Equiformer(species, "2x0e + 2x1o", 2, 2, radial_hidden=[4]),
    "tables": lambda species: models.NequIP(species, "2x0e + 2x1o", 1, 2, radial_hidden=[4], knots=64),
}


def structures(atoms: int = 7, edges: int = 30) -> Structures:
    """Two periodic ones without numbers."""
    index = {"dtype": torch.int64, "device": "meta"}
    return Structures(
        *(torch.empty(atoms, **index), torch.empty(atoms, 3, device="meta"), torch.empty(2, edges, **index)),
        *(torch.empty(atoms, **index), 2, torch.empty(2, 3, 3, device="meta"), torch.empty(edges, 3, device="meta")),
    )


@each("name, species", [*((name, 9) for name in NETWORKS), ("NequIP", 2), ("MACE", 2)])
def test_potentials(name: str, species: int) -> None:
    """Energies, forces and stress, and the gradient of a loss of all three."""
    listed = list(range(1, 1 + species))
    potential = Potential(NETWORKS[name](listed), listed, repulsion=ZBL()).to("meta").train()
    with Operations() as operations, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "new_tensor", None)  # a copy of a list, for which a GPU waits
        outputs = potential(structures(), ("energy", "forces", "stress"))
        gradients(list(outputs.values()), list(potential.parameters()))
    assert operations.named(ATOMIC + READ) == []


@pytest.mark.parametrize("species", [3, 7])
def test_maps_by_species_without_a_look(species: int) -> None:
    """The way that GPUs go gives the numbers and the gradients of the one that looks, whole and in pieces."""
    torch.manual_seed(0)
    layer = SpeciesLinear("4x0e + 2x1o", "3x0e + 2x1o", species).double()
    x = torch.randn(11, 10, dtype=torch.float64, requires_grad=True)
    kind = torch.randint(0, species, (11,))
    want = layer(x, kind)
    inputs = [x, layer.weight]
    slopes = torch.autograd.grad(want.square().sum(), inputs)
    for limit in (1 << 27, 3 * layer.linear.weight_numel):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eqlayers.layers.linear.structured_linear.GATHERED", limit)
            outputs = layer._of_any_species(x, kind)
        torch.testing.assert_close(outputs, want, rtol=1e-13, atol=1e-13)
        for a, b in zip(torch.autograd.grad(outputs.square().sum(), inputs), slopes, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    samples = torch.stack([kind, kind.flip(0)])
    outputs = torch.func.vmap(layer, in_dims=(None, 0))(x, samples)
    torch.testing.assert_close(outputs, torch.stack([layer(x, one) for one in samples]), rtol=1e-13, atol=1e-13)
