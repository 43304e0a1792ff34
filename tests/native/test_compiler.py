"""Every value of a native program is the value of its node in the graph."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from eqlayers.core.errors import ConfigError
from eqlayers.core.traces.trace import Refused
from eqlayers.native.compiler import Compiler
from eqlayers.native.program import CProgram, graph_of
from eqlayers.native.sizes import ATOMS, EDGES
from eqlayers.native.values import View
from eqlayers_kernels.c.build import compiler as toolchain

from .conftest import NETWORKS, SPECIES, STRUCTURES, edges_of, made

pytestmark = pytest.mark.kernels


class Watched:
    """A program that keeps all its values, and those of the graph run by torch."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.compiled = module, Compiler(module)
        self.program = CProgram(self.compiled)
        self.library = toolchain.load_many(self.program.units(), "potential")  # compiled once, as for deploy

    def values(self, z: Tensor, vectors: Tensor, ends: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The stored values of nodes, each with torch's; the structure is one part without ghosts."""
        atoms, edges = len(z), ends.shape[1]

        def count(coded: int) -> int:
            return coded // EDGES * edges + coded % EDGES // ATOMS * atoms + coded % EDGES % ATOMS

        memory = {  # not numbers, where nothing is written; no memory is used twice
            id(entry.buffer): torch.full((count(entry.buffer.size) * entry.buffer.dtype.itemsize,), 255).byte()
            for entry in self.program.stages.entries
        }
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        constants = torch.from_numpy(self.program.constants_as_bytes)
        kept = torch.zeros(len(constants) + 64, dtype=torch.uint8)
        aligned = kept[-kept.data_ptr() % 64 :][: len(constants)].copy_(constants)
        at = torch.tensor([memory[id(entry.buffer)].data_ptr() for entry in self.program.stages.entries] + [0])
        out = [torch.zeros(atoms, dtype=torch.float64), torch.zeros(edges, 3, dtype=vectors.dtype)]
        for stage in range(len(self.program.stages.steps)):
            status = self.library.run_stage(
                *(size(stage), pointer(aligned.data_ptr()), pointer(at.data_ptr())),
                *(size(atoms), size(atoms), size(edges)),
                *(pointer(t.data_ptr()) for t in (z, vectors, ends, *out)),
            )
            assert status == 0

        def read(view: View) -> Tensor | None:
            if id(view.buffer) not in memory:
                return None
            flat = memory[id(view.buffer)].clone().view(view.dtype)
            return flat.as_strided(list(map(count, view.shape)), list(map(count, view.strides)), count(view.offset))

        wanted: dict[fx.Node, Any] = {}

        class Run(fx.Interpreter):
            def run_node(self, n: fx.Node) -> Any:
                wanted[n] = super().run_node(n)
                return wanted[n].clone() if isinstance(wanted[n], Tensor) else wanted[n]

        self.results = Run(self.module).run(z, vectors, ends), out
        pairs = {}
        for node, value in self.compiled.values.items():
            for number_, one in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(one, View) and (mine := read(one)) is not None:
                    theirs = wanted[node][number_] if isinstance(value, list) else wanted[node]
                    pairs[f"{node.name}[{number_}] = {node.target}"] = mine, theirs
        return pairs


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("name", NETWORKS)
def test_values_of_nodes(name: str, dtype: torch.dtype) -> None:
    potential = made(name, dtype)
    watched = Watched(graph_of(potential))
    assert {step.kind for step in watched.program.steps} >= {"loop"}
    assert not watched.compiled.undivided
    for what, atoms in STRUCTURES.items():
        compared = watched.values(*edges_of(potential, atoms()))
        assert len(compared) > 20
        for node, (mine, theirs) in compared.items():
            assert mine.shape == theirs.shape, (what, node)
            if not mine.is_floating_point() or "tables" in node:
                assert torch.equal(mine, theirs.to(mine.dtype)), (what, node)
                continue
            most = float(theirs.abs().max()) if theirs.numel() else 0.0
            roundings, least = (10_000, 1.0) if dtype == torch.float64 else (500, 1e-2)  # powers and cancelled ones
            near = roundings * torch.finfo(dtype).eps * max(most, least)
            close = torch.isclose(mine, theirs, rtol=0, atol=near, equal_nan=True)
            assert close.all(), (what, node, float((mine - theirs).abs().max()), near)
        for mine, theirs in zip(*reversed(watched.results), strict=True):
            most = float(theirs.abs().max()) if theirs.numel() else 0.0
            torch.testing.assert_close(mine, theirs, rtol=0, atol=200 * torch.finfo(dtype).eps * max(most, 1e-3))


class Odd(torch.nn.Module):
    """A network with an operator that no program has."""

    irreps_sh, cutoff, species = "0e", 4.0, tuple(SPECIES)

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.weight = how, torch.nn.Parameter(torch.ones(3))

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        sums = torch.zeros(atom_types.shape[0], 3, dtype=edges.vectors.dtype).index_add(
            0, graph.ends[1], edges.vectors * self.weight
        )
        if self.how == "erfinv":
            return torch.special.erfinv(sums.tanh()).sum(1)
        if self.how == "largest":
            return sums.new_zeros(sums.shape[0]).scatter_reduce(0, graph.ends[1], edges.lengths, "mean")
        return (sums.sum(1) * float(sums.sum())).float()


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("erfinv", r"got aten.erfinv.default \(erfinv\): it is unknown. Run it by Python"),
        ("largest", "it is no largest value of rows"),
        ("reads", "without numbers of tensors in Python"),
    ],
)
def test_what_cannot_be_compiled_is_named(how: str, words: str) -> None:
    from eqlayers.models import Potential

    potential = Potential(Odd(how), SPECIES, subtract_isolated=False).eval()
    with pytest.raises(ConfigError, match=words) as caught:
        Compiler(graph_of(potential))
    assert isinstance(caught.value, Refused) == (how == "reads")
