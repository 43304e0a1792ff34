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
from eqlayers.native.elements import formula, number
from eqlayers.native.operators import in_panels, strides_of
from eqlayers.native.program import Program, graph_of
from eqlayers.native.sizes import ATOMS, EDGES, text_of
from eqlayers.native.values import View, steps
from eqlayers_kernels.c.build import compiler as toolchain

from .conftest import NETWORKS, SPECIES, STRUCTURES, edges_of, made

pytestmark = pytest.mark.kernels


class Watched:
    """A program that keeps all its values, and those of the graph run by torch."""

    def __init__(self, module: fx.GraphModule) -> None:
        self.module, self.compiled = module, Compiler(module)
        self.program = Program(self.compiled)
        for one in self.program.temporary:  # no memory is used twice
            self.program.first[id(one)], self.program.last[id(one)] = 0, len(self.program.steps)
        self.library = toolchain.load_many(self.program.units(), "watched")
        self.library.plan.restype = ctypes.c_int64

    def values(self, z: Tensor, vectors: Tensor, ends: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """The stored values of nodes, each with torch's."""
        atoms, edges = len(z), ends.shape[1]
        places = torch.zeros(len(self.program.temporary) + 1, dtype=torch.int64)
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        room = self.library.plan(size(atoms), size(edges), pointer(places.data_ptr()))
        memory = torch.full((room + 64,), 255, dtype=torch.uint8)  # not numbers, where nothing is written
        constants = torch.from_numpy(self.program.constants_as_bytes)
        kept = torch.zeros(len(constants) + 64, dtype=torch.uint8)
        aligned = kept[-kept.data_ptr() % 64 :][: len(constants)].copy_(constants)
        base = -memory.data_ptr() % 64
        out = [torch.zeros(atoms, dtype=torch.float64), torch.zeros(edges, 3, dtype=vectors.dtype)]
        status = self.library.evaluate(
            *(pointer(address) for address in (aligned.data_ptr(), memory.data_ptr() + base, places.data_ptr())),
            *(size(atoms), size(edges)),
            *(pointer(t.data_ptr()) for t in (z, vectors, ends, *out)),
        )
        assert status == 0
        at = {id(one): base + int(place) for one, place in zip(self.program.temporary, places, strict=False)}

        def count(coded: int) -> int:
            return coded // EDGES * edges + coded % EDGES // ATOMS * atoms + coded % EDGES % ATOMS

        def read(view: View) -> Tensor | None:
            if id(view.buffer) not in at:
                return None
            begin, length = at[id(view.buffer)], count(view.buffer.size) * view.dtype.itemsize
            flat = memory[begin : begin + length].clone().view(view.dtype)
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


def test_sizes_in_c() -> None:
    assert text_of(3 * EDGES) == "(3 * E)"
    assert text_of(ATOMS) == "A"
    assert text_of(8 * EDGES + 2 * ATOMS + 7) == "(8 * E + 2 * A + 7)"


@pytest.mark.parametrize(
    ("shape", "strides", "new", "want"),
    [
        ([ATOMS, 12], [12, 1], [ATOMS, 3, 4], [12, 4, 1]),
        ([ATOMS, 3, 4], [12, 4, 1], [ATOMS, 12], [12, 1]),
        ([ATOMS, 3, 4], [20, 4, 1], [3 * ATOMS, 4], None),
        ([ATOMS, 1, 4], [20, 7, 1], [ATOMS, 4, 1], [20, 1, 0]),
        ([6], [2], [2, 3], [6, 2]),
        ([4, 3], [3, 1], [6, 2], [2, 1]),
        ([4, 3], [1, 4], [12], None),
        ([4, 9], [9, 1], [6, 6], [6, 1]),
    ],
)
def test_strides_of_views(shape: list[int], strides: list[int], new: list[int], want: list[int] | None) -> None:
    made_ = strides_of(shape, strides, new)
    assert made_ == want or (want is not None and made_ is None and strides == steps(shape)), made_


def test_panels() -> None:
    weight = torch.arange(3.0 * 37).view(3, 37)
    panels = in_panels(weight)
    assert panels.shape == (2, 3, 32)
    assert torch.equal(panels.permute(1, 0, 2).reshape(3, 64)[:, :37], weight)
    assert not panels[1, :, 5:].any()


def test_numbers_in_c() -> None:
    made_ = [number(value, torch.float64) for value in (0.1, float("nan"), float("inf"), float("-inf"))]
    assert made_ == ["((double)0.1)", "NAN", "INFINITY", "(-INFINITY)"]
    assert number(3, torch.float32) == "((float)3.0)"
    assert (number(3, torch.int64), number(True, torch.bool)) == ("INT64_C(3)", "1")
    assert formula("exp", ["x"], torch.float32, {}) == "expf(x)"
    assert formula("nothing", ["x"], torch.float32, {}) is None
