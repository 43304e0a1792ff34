"""A potential as a program in C: its source files and its constants."""

from __future__ import annotations

import copy
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from eqlayers_kernels.c.build import compiler as toolchain
from eqlayers_kernels.c.run import edges as c_edges

from ..core.traces.simplify import simplify
from ..layers.radial.module import ScalarNetwork
from ..models.compiled import inner_graph
from .compiler import Compiler
from .forms import VECTOR
from .species import look_up_species
from .stages import LARGE, SMALL, Stages
from .sums import add_operands, divide_slopes
from .values import TYPES, Buffer

if TYPE_CHECKING:
    from torch import fx

    from ..models import Potential


def graph_of(potential: Potential) -> fx.GraphModule:
    """The inner graph of a potential with its weights as constants; ConfigError if it cannot be traced.

    Energies of isolated atoms are among the constants: the network does not compute them in each call.
    """
    potential = copy.deepcopy(potential)
    potential.shifts.copy_(potential.shifts_of_network())
    potential.subtract_isolated = False
    for network in potential.modules():
        if isinstance(network, ScalarNetwork):  # a product by a constant matrix is faster than a map of any weights
            network._maps = (None,) * len(network._maps)
    inner = inner_graph(potential, Compiler.knows)
    named = dict(potential.named_parameters(remove_duplicate=False)) | dict(
        potential.named_buffers(remove_duplicate=False)
    )
    module = inner.graph
    placeholders = module.graph.find_nodes(op="placeholder")
    for number, (node, name) in enumerate(zip(placeholders, inner.weights, strict=False)):
        module.register_buffer(f"weight_{number}", named[name].detach().clone(), persistent=False)
        with module.graph.inserting_after(placeholders[-1]):
            constant = module.graph.get_attr(f"weight_{number}")
        constant.meta = node.meta
        node.replace_all_uses_with(constant)
        module.graph.erase_node(node)
    simplify(module)
    look_up_species(module, tuple(sorted(potential.species)))
    add_operands(module)
    divide_slopes(module)
    return module


class CProgram:
    """The C program of a graph.

    Args:
        compiled: Its steps.
    """

    def __init__(self, compiled: Compiler) -> None:
        self.stages, self.kernels = Stages(compiled), compiled.kernels
        self.steps = [step for steps in self.stages.steps for step in steps]
        live = {id(one) for step in self.steps for one in (*step.reads, *step.writes)}
        self.constants = [one for one in compiled.buffers if id(one) in live and one.constant is not None]
        self.inputs, self.outputs = compiled.inputs, compiled.outputs

    @property
    def constants_as_bytes(self) -> np.ndarray[Any, Any]:
        """All constants, each at a multiple of 64 bytes."""
        pieces = []
        for one in self.constants:
            data = _bytes(one.constant)
            pieces.append(np.concatenate([data, np.zeros(-len(data) % 64, np.uint8)]))
        return np.concatenate([np.zeros(0, np.uint8), *pieces])

    def text(self) -> str:
        """The program in C."""
        arguments = [
            f"{'' if view in self.outputs else 'const '}{TYPES[view.dtype]} *const {view.buffer.name}"
            for view in (*self.inputs, *self.outputs)
        ]
        sizes = "const char *constants, char *const *at, int64_t large, int64_t A, int64_t L, int64_t E"
        signature = f"({sizes}, {', '.join(arguments)})"
        ends = ", ".join(view.buffer.name for view in (*self.inputs, *self.outputs))
        names = f"constants, at, large, A, L, E, {ends}"
        stages = "".join(
            f"{PLAIN_LOOPS}static int64_t stage_{n}{signature} {{\n  {self._body(n)}\n  return DONE;\n}}\n"
            for n in range(len(self.stages.steps))
        )
        cases = " ".join(f"case {n}: return stage_{n}({names});" for n in range(len(self.stages.steps)))
        run = f"{PUBLIC} int64_t run_stage(int64_t stage, {signature[1:]} {{\n  switch (stage) {{ {cases} }}\n"
        kernels = "\n".join(f"int64_t {name}_run(const int64_t *, int64_t, int64_t);" for name in self.kernels.values())
        sorts = c_edges._SOURCE.replace(toolchain.EXPORT, "static __attribute__((unused))")
        gemms = "".join(GEMM.replace("TYPE", kind) for kind in ("float", "double"))
        tiles = files(__package__).joinpath("tiles.h").read_text()
        return (
            f"{HEAD}#define NUMBER {TYPES[self.inputs[1].dtype]}\n"
            f"#define CONSTANTS INT64_C({sum(map(_padded, self.constants))})\n{sorts}{gemms}{kernels}\n"
            f"{self.stages.tables()}{stages}{run}  return DONE;\n}}\n{tiles}"
        )

    def _body(self, number: int) -> str:
        """The steps of a stage in C, after the addresses of their buffers."""
        again, steps = self.stages.again[number], self.stages.steps[number]
        used = {id(one) for step in (*again, *steps) for one in (*step.reads, *step.writes)}
        lines, offset = ["(void)constants; (void)at; (void)large; (void)A; (void)L; (void)E;"], 0
        for one in self.constants:
            kind = TYPES[one.dtype]
            if id(one) in used:
                lines.append(f"const {kind} *const {one.name} = (const {kind} *)(constants + {offset});")
            offset += _padded(one)
        places: dict[Buffer, dict[int, int]] = {}  # in small and large structures, or in all
        for index, entry in enumerate(self.stages.entries):
            if id(entry.buffer) in used and entry.stage in (number, -1):
                places.setdefault(entry.buffer, {})[entry.when] = index
        for buffer, at in places.items():
            kind, last = TYPES[buffer.dtype], str(max(at.values()))
            chosen = f"large ? {at[LARGE]} : {at[SMALL]}" if len(at) > 1 else last
            lines.append(f"{kind} *const {buffer.name} = ({kind} *)at[{chosen}];")
        first = ["if (large) {", *(step.text for step in again), "}"] if again else []
        return "\n  ".join([*lines, *first, *(step.text for step in steps)])

    def units(self) -> list[str]:
        """The C source files: the program, what opens its file, and kernels with names of their own."""
        header = files(__package__).joinpath("eqlayers.h").read_text()
        units = [
            self.text(),
            f"{OPENS}{header}",
        ]
        for sources, name in self.kernels.items():
            for source in sources:
                functions = sorted(set(re.findall(r"\b(p\d+)\(", source)))
                renamed = "".join(f"#define {one} {name}_{one}\n" for one in ("run", "work", *functions))
                units.append(renamed + source)
        return units


def _padded(one: Buffer) -> int:
    """Bytes of a constant, up to the next multiple of 64."""
    return -(-one.size * one.dtype.itemsize // 64) * 64


def _bytes(t: Tensor | None) -> np.ndarray[Any, Any]:
    assert t is not None
    return t.detach().cpu().contiguous().reshape(-1).numpy().view(np.uint8)


#: gcc 12 computed wrong elements of a loop of conditions in a loop of rows where it vectorized the outer one.
PLAIN_LOOPS = """#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("no-tree-loop-vectorize")))
#endif
"""
#: Before eqlayers.h in the library, whose functions Python calls.
OPENS = """#define EQLAYERS_IMPLEMENTATION
#define _POSIX_C_SOURCE 200809L
#pragma GCC visibility push(default)
"""
HEAD = f"""#define _POSIX_C_SOURCE 200809L
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#define VECTOR {VECTOR}
enum {{ DONE, MEMORY, END, STAGE = 4, ROW = 11 }};
"""
PUBLIC = '__attribute__((visibility("default")))'
#: Rows times packed weights: ``c[i] = a[i] b``, each sum in one order, whatever the number of rows.
GEMM = r"""
typedef TYPE V_TYPE __attribute__((vector_size(VECTOR), aligned(sizeof(TYPE)), may_alias));
#define COLUMNS_TYPE ((int)(2 * VECTOR / sizeof(TYPE)))
#define ROWS_TYPE(M) \
static __attribute__((noinline)) void rows_TYPE_##M(const TYPE *a, int64_t step, const TYPE *b, TYPE *c, int64_t n, \
                                                    int k, int width) { \
  V_TYPE s[M][2]; \
  for (int i = 0; i < M; i++) s[i][0] = s[i][1] = (V_TYPE){0}; \
  for (int p = 0; p < k; p++, b += COLUMNS_TYPE) { \
    const V_TYPE b0 = *(const V_TYPE *)b, b1 = *(const V_TYPE *)(b + COLUMNS_TYPE / 2); \
    for (int i = 0; i < M; i++) { const TYPE v = a[i * step + p]; s[i][0] += v * b0; s[i][1] += v * b1; } \
  } \
  for (int i = 0; i < M; i++) { \
    TYPE out[2 * VECTOR / sizeof(TYPE)]; \
    if (width == COLUMNS_TYPE) { \
      *(V_TYPE *)(c + i * n) = s[i][0]; \
      *(V_TYPE *)(c + i * n + COLUMNS_TYPE / 2) = s[i][1]; \
    } else { \
      memcpy(out, s[i], sizeof out); \
      memcpy(c + i * n, out, width * sizeof(TYPE)); \
    } \
  } \
}
ROWS_TYPE(1) ROWS_TYPE(2) ROWS_TYPE(4) ROWS_TYPE(8)
static __attribute__((unused)) void gemm_TYPE(const TYPE *a, int64_t step, TYPE *c, int64_t rows, const TYPE *b, int k,
                                              int n) {
  for (int64_t r = 0; r < rows;) {
    const int64_t left = rows - r, m = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int u = 0; u < n; u += COLUMNS_TYPE) {
      const TYPE *const panel = b + (int64_t)u * k, *const from = a + r * step;
      const int width = n - u < COLUMNS_TYPE ? n - u : COLUMNS_TYPE;
      TYPE *const to = c + r * n + u;
      if (m == 8) rows_TYPE_8(from, step, panel, to, n, k, width);
      else if (m == 4) rows_TYPE_4(from, step, panel, to, n, k, width);
      else if (m == 2) rows_TYPE_2(from, step, panel, to, n, k, width);
      else rows_TYPE_1(from, step, panel, to, n, k, width);
    }
    r += m;
  }
}
"""
