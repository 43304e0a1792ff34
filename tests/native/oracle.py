"""Compares the values of a native program with those of its graph, which torch runs."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor, fx

from eqlayers.models import Potential
from eqlayers.models.compiled import inner_graph
from eqlayers.native.compiler import Compiler
from eqlayers.native.program import CProgram, graph_of
from eqlayers.native.sizes import ATOMS, EDGES
from eqlayers.native.values import View
from eqlayers_kernels.c.build import compiler as toolchain


class Watched:
    """A program that keeps all its values, and those of the graph run by torch."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.compiled = module, Compiler(module)
        self.program = CProgram(self.compiled)
        self.library = toolchain.load_many(self.program.units(), "potential")  # compiled once, as for deploy

    def values(self, large: int, z: Tensor, vectors: Tensor, ends: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The stored values of nodes, each with torch's; the structure is one part without ghosts."""
        atoms, edges = len(z), ends.shape[1]
        self.inputs = inputs = z, vectors, ends, torch.linspace(-1, 2, atoms, dtype=vectors.dtype)

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
                *(size(stage), pointer(aligned.data_ptr()), pointer(at.data_ptr()), size(large)),
                *(size(atoms), size(atoms), size(edges)),
                *(pointer(t.data_ptr()) for t in (*inputs, *out)),
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

        self.results = Run(self.module).run(*inputs), out
        pairs = {}
        for node, value in self.compiled.values.items():
            for number_, one in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(one, View) and (mine := read(one)) is not None:
                    theirs = wanted[node][number_] if isinstance(value, list) else wanted[node]
                    pairs[f"{node.name}[{number_}] = {node.target}"] = mine, theirs
        return pairs


def compare_values(potential: Potential, structures: dict[str, tuple[Tensor, ...]]) -> Watched:
    """Assert that all stored values are those of their nodes, of structures (species, vectors, ends) and of none.

    The results are those of the potential's inner graph, too, of which `graph_of` makes another one.
    """
    watched, dtype, inner = Watched(graph_of(potential)), potential.dtype, inner_graph(potential)
    assert {step.kind for step in watched.program.steps} >= {"loop"}
    assert not watched.compiled.undivided
    nothing = torch.zeros(0).long(), torch.zeros(0, 3, dtype=dtype), torch.zeros(2, 0).long()
    for what, structure in {**structures, "nothing": nothing}.items():
        compared = watched.values(len(what) % 2, *structure)
        assert len(compared) > 20
        for node, (mine, theirs) in compared.items():
            assert mine.shape == theirs.shape, (what, node)
            if not mine.is_floating_point():
                assert torch.equal(mine, theirs.to(mine.dtype)), (what, node)
                continue
            most = float(theirs.abs().max()) if theirs.numel() else 0.0
            roundings, least = (10_000, 1.0) if dtype == torch.float64 else (500, 1e-2)  # powers and cancelled ones
            near = roundings * torch.finfo(dtype).eps * max(most, least)
            close = torch.isclose(mine, theirs, rtol=0, atol=near, equal_nan=True)
            assert close.all(), (what, node, float((mine - theirs).abs().max()), near)
        whole = [one.detach() for one in inner(potential, *watched.inputs)]
        for mine, *both in zip(*reversed(watched.results), whole, strict=True):
            for theirs, roundings in zip(both, (200, 1000), strict=True):
                most = max(float(theirs.abs().max()) if theirs.numel() else 0.0, 1e-3)
                torch.testing.assert_close(mine, theirs, rtol=0, atol=roundings * torch.finfo(dtype).eps * most)
    return watched
