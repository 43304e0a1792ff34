"""A potential as a program in C: its text, its constants, and the library that is compiled of both."""

from __future__ import annotations

import ctypes
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from eqlayers_kernels.c.build import compiler as toolchain
from eqlayers_kernels.c.run import edges as c_edges

from ..core.backends.registry import as_backend_error
from ..core.traces.simplify import simplify
from ..models.compiled import inner_graph
from .compiler import VECTOR, Compiler
from .sizes import parts
from .values import TYPES, Buffer

if TYPE_CHECKING:
    from torch import fx

    from ..models import Potential

#: What a program returns: nothing wrong, no memory, an end of an edge that is no atom.
DONE, MEMORY, END = 0, 1, 2


def graph_of(potential: Potential) -> fx.GraphModule:
    """The inner graph of a potential with its weights as constants; ConfigError if it cannot be traced."""
    inner = inner_graph(potential)
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
    return module


class Program:
    """The C program of a graph.

    Args:
        compiled: Its steps.
    """

    def __init__(self, compiled: Compiler) -> None:
        self.steps, self.kernels = compiled.steps, compiled.kernels
        live = {id(one): one for step in self.steps for one in (*step.reads, *step.writes)}
        self.constants = [one for one in compiled.buffers if id(one) in live and one.constant is not None]
        self.first, self.last = dict[int, int](), dict[int, int]()
        for number, step in enumerate(self.steps):
            for one in (*step.reads, *step.writes):
                self.first.setdefault(id(one), number)
                self.last[id(one)] = number
        self.temporary = [
            one for one in compiled.buffers if id(one) in live and one.constant is None and not one.outside
        ]
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
        lines, offset = [], 0
        for one in self.constants:
            kind = TYPES[one.dtype]
            lines.append(f"const {kind} *const {one.name} = (const {kind} *)(constants + {offset});")
            size = one.size * one.dtype.itemsize
            offset += size + -size % 64
        rows = []
        for number, one in enumerate(self.temporary):
            kind = TYPES[one.dtype]
            lines.append(f"{kind} *const {one.name} = ({kind} *)(memory + places[{number}]);")
            edges, atoms, rest = parts(one.size)
            ends = self.first[id(one)], self.last[id(one)]
            rows.append(f"{{{edges}, {atoms}, {rest}, {one.dtype.itemsize}, {ends[0]}, {ends[1]}}}")
        arguments = [
            f"{'' if view in self.outputs else 'const '}{TYPES[view.dtype]} *const {view.buffer.name}"
            for view in (*self.inputs, *self.outputs)
        ]
        kernels = "\n".join(
            f"int64_t {name}_run(const int64_t *, int64_t, int64_t);" for name in self.kernels.values()
        )
        sorts = c_edges._SOURCE.replace(toolchain.EXPORT, "static __attribute__((unused))")
        gemms = "".join(GEMM.replace("TYPE", kind) for kind in ("float", "double"))
        steps = "\n  ".join(step.text for step in self.steps)
        return (
            f"{HEAD}{sorts}{gemms}{kernels}\n"
            f"enum {{ EQLAYERS_DONE = {DONE}, EQLAYERS_MEMORY = {MEMORY}, EQLAYERS_END = {END} }};\n"
            f"#define BUFFERS {len(self.temporary)}\n"
            f"static const int64_t buffers[BUFFERS + 1][6] = {{{', '.join([*rows, '{0}'])}}};\n{PLAN}"
            f"{toolchain.EXPORT} int64_t evaluate(const char *constants, char *memory, const int64_t *places, "
            f"int64_t A, int64_t E, {', '.join(arguments)}) {{\n  (void)places; (void)memory; (void)constants;\n  "
            + "\n  ".join(lines)
            + f"\n  {steps}\n  return EQLAYERS_DONE;\n}}\n"
        )

    def units(self) -> list[str]:
        """The C source files: the program, and its kernels with names of their own."""
        units = [self.text()]
        for sources, name in self.kernels.items():
            for source in sources:
                functions = sorted(set(re.findall(r"\b(p\d+)\(", source)))
                renamed = "".join(f"#define {one} {name}_{one}\n" for one in ("run", "work", *functions))
                units.append(renamed + source)
        return units

    def library(self) -> ctypes.CDLL:
        """The compiled program; BackendError if there is no compiler, or if it fails."""
        with as_backend_error():
            return toolchain.load_many(self.units(), "potential")


def _bytes(t: Tensor | None) -> np.ndarray[Any, Any]:
    assert t is not None
    return t.detach().cpu().contiguous().reshape(-1).numpy().view(np.uint8)


HEAD = f"""#include <math.h>
#include <stdint.h>
#include <string.h>
#define VECTOR {VECTOR}
"""
#: Rows times packed weights: ``c[i] = a[i] b``, each sum in one order, whatever the number of rows.
GEMM = r"""
typedef TYPE V_TYPE __attribute__((vector_size(VECTOR), aligned(sizeof(TYPE)), may_alias));
#define COLUMNS_TYPE ((int)(2 * VECTOR / sizeof(TYPE)))
#define MICRO_TYPE(M) \
static __attribute__((noinline)) void micro_TYPE_##M(const TYPE *a, int64_t step, const TYPE *b, TYPE *c, int64_t n, int k, int width) { \
  V_TYPE s[M][2]; \
  for (int i = 0; i < M; i++) s[i][0] = s[i][1] = (V_TYPE){0}; \
  for (int p = 0; p < k; p++, b += COLUMNS_TYPE) { \
    const V_TYPE b0 = *(const V_TYPE *)b, b1 = *(const V_TYPE *)(b + COLUMNS_TYPE / 2); \
    for (int i = 0; i < M; i++) { const TYPE v = a[i * step + p]; s[i][0] += v * b0; s[i][1] += v * b1; } \
  } \
  for (int i = 0; i < M; i++) { \
    if (width == COLUMNS_TYPE) { *(V_TYPE *)(c + i * n) = s[i][0]; *(V_TYPE *)(c + i * n + COLUMNS_TYPE / 2) = s[i][1]; } \
    else { TYPE out[2 * VECTOR / sizeof(TYPE)]; memcpy(out, s[i], sizeof out); memcpy(c + i * n, out, width * sizeof(TYPE)); } \
  } \
}
MICRO_TYPE(1) MICRO_TYPE(2) MICRO_TYPE(4) MICRO_TYPE(8)
static __attribute__((unused)) void gemm_TYPE(const TYPE *a, int64_t step, TYPE *c, int64_t rows, const TYPE *b, int k, int n) {
  for (int64_t r = 0; r < rows;) {
    const int64_t left = rows - r, m = left >= 8 ? 8 : left >= 4 ? 4 : left >= 2 ? 2 : 1;
    for (int u = 0; u < n; u += COLUMNS_TYPE) {
      const TYPE *const panel = b + (int64_t)u * k, *const from = a + r * step;
      const int width = n - u < COLUMNS_TYPE ? n - u : COLUMNS_TYPE;
      TYPE *const to = c + r * n + u;
      if (m == 8) micro_TYPE_8(from, step, panel, to, n, k, width);
      else if (m == 4) micro_TYPE_4(from, step, panel, to, n, k, width);
      else if (m == 2) micro_TYPE_2(from, step, panel, to, n, k, width);
      else micro_TYPE_1(from, step, panel, to, n, k, width);
    }
    r += m;
  }
}
"""
#: Where buffers lie: each at the first free bytes while it is used.
PLAN = r"""
static int64_t bytes_of(int n, int64_t A, int64_t E) {
  return ((buffers[n][0] * E + buffers[n][1] * A + buffers[n][2]) * buffers[n][3] + 127) / 64 * 64;
}
__attribute__((visibility("default"))) int64_t plan(int64_t A, int64_t E, int64_t *places) {
  /* the bytes of memory that an evaluation needs */
  int64_t top = 0;
  for (int n = 0; n < BUFFERS; n++) {
    const int64_t size = bytes_of(n, A, E);
    int64_t at = 0;
    for (int moved = 1; moved;) {
      moved = 0;
      for (int m = 0; m < n; m++) {
        const int together = buffers[m][5] >= buffers[n][4] && buffers[m][4] <= buffers[n][5];
        const int64_t end = places[m] + bytes_of(m, A, E);
        if (together && places[m] < at + size && at < end) { at = end; moved = 1; }
      }
    }
    places[n] = at;
    if (at + size > top) top = at + size;
  }
  return top;
}
"""


class Native:
    """A native program of a potential in this process: energies of atoms, and slopes by the vectors of edges.

    Args:
        potential: In evaluation mode; its dtype is that of the program.

    Raises:
        ConfigError: The network cannot be traced, or has an operator that no program has; with its name.

    Example:
        >>> from eqlayers.models import NequIP, Potential
        >>> potential = Potential(NequIP([1], hidden="4x0e + 4x1o", lmax=1, layers=1), species=[1]).eval()
        >>> vectors, pair = torch.tensor([[0.0, 0.0, 0.9], [0.0, 0.0, -0.9]]), torch.tensor([[0, 1], [1, 0]])
        >>> energies, slopes = Native(potential)(torch.tensor([1, 1]), vectors, pair)
        >>> energies.shape, slopes.shape
        (torch.Size([2]), torch.Size([2, 3]))
    """

    def __init__(self, potential: Potential) -> None:
        self.dtype = potential.dtype
        self.program = Program(Compiler(graph_of(potential)))
        library = self.program.library()
        self._plan, self._evaluate = library.plan, library.evaluate
        self._plan.argtypes = [ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self._evaluate.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_int64] * 2 + [ctypes.c_void_p] * 5
        self._plan.restype = self._evaluate.restype = ctypes.c_int64
        constants = torch.from_numpy(self.program.constants_as_bytes)
        self._room = torch.empty(len(constants) + 64, dtype=torch.uint8)
        start = -self._room.data_ptr() % 64
        self._constants = self._room[start : start + len(constants)].copy_(constants)
        self._places = torch.zeros(len(self.program.temporary) + 1, dtype=torch.int64)
        self._memory, self._for = torch.empty(0, dtype=torch.uint8), (-1, -1)

    def __call__(self, z: Tensor, vectors: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        """Energies ``[A]`` float64 in eV and slopes ``[E, 3]`` in eV/Angstrom.

        Args:
            z: ``[A]`` int64 atomic numbers.
            vectors: ``[E, 3]`` Angstrom, from senders to receivers.
            edge_index: ``[2, E]`` int64.
        """
        atoms, edges = z.shape[0], edge_index.shape[1]
        if self._for != (atoms, edges):
            bytes_ = self._plan(atoms, edges, self._places.data_ptr())
            if bytes_ + 64 > len(self._memory):
                self._memory = torch.empty(bytes_ + bytes_ // 8 + 64, dtype=torch.uint8)
            self._for = atoms, edges
        energies, slopes = torch.empty(atoms, dtype=torch.float64), torch.empty(edges, 3, dtype=self.dtype)
        memory = self._memory.data_ptr()
        operands = [t.contiguous() for t in (z, vectors, edge_index)]
        status = self._evaluate(
            self._constants.data_ptr(),
            memory + -memory % 64,
            self._places.data_ptr(),
            atoms,
            edges,
            *(t.data_ptr() for t in (*operands, energies, slopes)),
        )
        if status:
            raise RuntimeError(status)
        return energies, slopes
