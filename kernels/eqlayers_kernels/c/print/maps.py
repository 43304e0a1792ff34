"""C for programs that are linear maps: a matrix of weights for each path, of all rows or of all rows of a node.

Value, gradients and second derivatives are sums of three products of matrices (`Product`), each over tiles of rows, so
that a weight is read once for several rows. The text is the same for all maps: a table says which blocks of columns a
path has, so one compiled kernel serves every layer.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import NamedTuple

from ...arithmetic.writer import RESULTS, Task
from ...forms.program import Path, Program
from .layout import TYPES, head
from .loops import DONE, NO_MEMORY, SEGMENT, WRONG_TABLES, run_function

ROWS = (8, 6, 4, 1)  # whose sums are in registers, for two vectors of columns; 8 where there are 32 registers, else 6
PANEL_BYTES = 128  # of a row of a panel, for all processors
PACKED = 2  # added to the first number of the table: weights are in panels, with their factors


class Product(IntEnum):
    """Products of matrices that maps consist of: ``c += a b`` by path."""

    VALUE = 0  # a of the rows of x, b the weights, c of the rows of z
    BACK = 1  # a of the rows of z, b the transposed weights, c of the rows of x
    WEIGHTS = 2  # a the transposed rows of x, b of the rows of z, c the weights


class MatrixPath(NamedTuple):
    """Columns of a path: its blocks of x and z, first weight, channels of x and z, components, and constant factor."""

    x: int
    z: int
    weight: int
    mul_in: int
    mul_out: int
    dim: int
    factor: float


def matrix_path(path: Path) -> MatrixPath | None:
    """The path as a map by one matrix of weights, or None if it is more than that."""
    mul_in, mul_out, dim = path.x.mul, path.z.mul, path.z.dim
    steps = {(mul_in, 1, 0, mul_out, 0): mul_in, (mul_out, 0, 0, 1, 1): mul_out}
    axes = [(axis.extent, *axis.steps) for axis in path.axes if axis.extent > 1 and not axis.pairs]
    factors = {s for *_, s in path.terms}
    if (
        path.weight is None
        or len(axes) != len(path.axes)
        or sorted(axes) != sorted(one for one, extent in steps.items() if extent > 1)
        or [term[:3] for term in path.terms] != [(m, 0, m) for m in range(dim)]
        or (path.x.dim, path.y.dim, path.y.mul, len(factors)) != (dim, 1, 1, 1)
    ):
        return None
    return MatrixPath(path.x.start, path.z.start, path.weight, mul_in, mul_out, dim, factors.pop())


@dataclass(frozen=True)
class MapKernel:
    """A kernel of a map, with the interface of :class:`.printer.Kernel`; `of` says whether there is one."""

    program: Program
    task: Task
    dtype: str  # 'float32' or 'float64'
    traversal: str  # 'rows', or 'by_src' for weights of every sender

    @staticmethod
    def of(program: Program, task: Task) -> bool:
        """Whether the program is a map, and the task needs no derivative by y."""
        moving = {*task.results, *task.tangents}
        alike = len({path.y for path in program.paths}) == 1
        return bool(moving) and "y" not in moving and alike and all(map(matrix_path, program.paths))

    @property
    def name(self) -> str:
        """Identifier for files and profilers."""
        return f"maps_{self.traversal}_{self.dtype}"

    @property
    def transposed(self) -> tuple[str, ...]:
        """Operands that a caller must transpose: none."""
        return ()

    @property
    def shared(self) -> bool:
        """Whether one row of weights serves all rows."""
        return self.traversal == "rows"

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """The C source; arguments as of :class:`.printer.Kernel`, with the address of `table` before the pointers."""
        ctype, item = TYPES[self.dtype]
        graph = self.traversal != "rows"
        return ("\n".join([head(ctype), SEGMENT if graph else "", _product(item), _RUN, run_function(_lines(graph))]),)

    @cached_property
    def table(self) -> array[int]:
        """Sizes, products and paths as int64, in the order in which the C text reads them."""
        paths = [path for path in map(matrix_path, self.program.paths) if path is not None]
        position = {name: number for number, (name, _) in enumerate(self.task.pointers)}
        products = [(kind, *(position[name] for name in names)) for kind, *names in self._products()]
        rows = [position[RESULTS[name]] for name in self.task.results if name != "w"]
        widths = dict(zip("xywz", self.program.widths, strict=True))
        operands = [widths[operand] for _, operand in self.task.pointers]
        mul_ir = int(self.program.layout == "mul_ir")
        gw = position.get("gw", -1)
        out = array("q", [mul_ir, position["y"], self.program.paths[0].y.start, gw, len(operands), *operands])
        out.extend([len(rows), *rows, len(products), *(number for product in products for number in product)])
        out.append(len(paths))
        for path in paths:
            out.extend([*path[:6], *struct.unpack("q", struct.pack("d", path.factor))])
        return out

    @property
    def matrices(self) -> list[tuple[MatrixPath, bool]]:
        """Each path, and whether its weights are transposed, in the order in which they can be packed before a call.

        The list is empty unless one product reads weights that all rows share.
        """
        kinds = [kind for kind, *_ in self._products()]
        if len(kinds) != 1 or kinds[0] is Product.WEIGHTS or not self.shared:
            return []
        return [(path, kinds[0] is Product.BACK) for path in map(matrix_path, self.program.paths) if path is not None]

    def _products(self) -> Iterator[tuple[Product, str, str, str]]:
        """The products of the task: kind, and the pointers a, b and c."""
        task = self.task
        moving = {"g" if name == "z" else name: f"d{name}" for name in task.tangents}
        shapes = {"z": (Product.VALUE, "x", "w"), "x": (Product.BACK, "g", "w"), "w": (Product.WEIGHTS, "x", "g")}
        for result in task.results:
            kind, a, b = shapes[result]
            pairs = [(a, b)] if task.order < 2 else []
            pairs += [(moving[a], b)] if a in moving else []
            pairs += [(a, moving[b])] if b in moving else []
            for one, other in pairs:
                yield kind, one, other, RESULTS[result]


_PARAMETERS = """int64_t rows, int dim, int inner, %sconst T *restrict a, int64_t a_row, int64_t a_dim, int64_t a_inner,
    const T *restrict b, int64_t b_inner, %sT *restrict c, int64_t c_row, int64_t c_dim"""


def _product(item: int) -> str:
    """The C function ``product``, which adds to each ``c[r, d, j]`` the sum of all ``a[r, d, m] b[m, j]``.

    b consists of panels of PANEL columns at distance ``b_panel``, whose rows have distance ``b_inner``. A panel stays
    in the nearest cache for all rows and components.
    """
    narrow = [(f"V{size}", 1, f"{size // item}") for size in (32, 16, 8) if size > item]
    kinds = [("V", 2, "LANES"), ("V", 1, "LANES"), *narrow, ("T", 1, "1")]
    parts, calls = [_PANEL], []
    for number, (kind, count, lanes) in enumerate(kinds):
        groups = [f"for (; i + {rows} <= rows; i += {rows}) {_block(rows, kind, count, lanes)}" for rows in ROWS]
        groups[0] = f"if (MANY) {groups[0]} else {groups.pop(1)}"
        parts.append(f"""static void columns{number}({_PARAMETERS % ("", "")}) {{
  for (int d = 0; d < dim; d++, a += a_dim, c += c_dim) {{
    int64_t i = 0;
    {" ".join(groups)}
  }}
}}""")
        call = f"columns{number}(rows, dim, inner, a, a_row, a_dim, a_inner, b + j, b_inner, c + j, c_row, c_dim);"
        calls.append(f"for (; j + {count} * {lanes} <= width; j += {count} * {lanes}) {call}")
    parameters = _PARAMETERS % ("int columns, ", "int64_t b_panel, ")
    parts.append(f"""static __attribute__((noinline)) void product({parameters}) {{
  for (int start = 0; start < columns; start += PANEL, b += b_panel, c += PANEL) {{
    const int width = columns - start < PANEL ? columns - start : PANEL;
    int j = 0;
    {" ".join(calls)}
  }}
}}""")
    return "\n".join(parts)


def _block(rows: int, kind: str, count: int, lanes: str) -> str:
    """A C block that sums ``count`` vectors of columns for some rows from row i on."""
    pairs = [(i, n) for i in range(rows) for n in range(count)]
    at = {(i, n): f"*({kind} *)(to + {i} * c_row + {n} * {lanes})" for i, n in pairs}
    lines = [
        "const T *p = a + i * a_row, *q = b; T *const to = c + i * c_row;",
        *(f"{kind} s{i}{n} = {at[i, n]};" for i, n in pairs),
        "for (int m = 0; m < inner; m++, p += a_inner, q += b_inner) {",
        *(f"const {kind} b{n} = *(const {kind} *)(q + {n} * {lanes});" for n in range(count)),
        *(f"const T a{i} = p[{i} * a_row];" for i in range(rows)),
        *(f"s{i}{n} += a{i} * b{n};" for i, n in pairs),
        "}",
        *(f"{at[i, n]} = s{i}{n};" for i, n in pairs),
    ]
    return f"{{ {' '.join(lines)} }}"


#: Columns of a panel, and whether eight rows of two vectors fit the registers.
_PANEL = f"""#define PANEL ((int)({PANEL_BYTES} / sizeof(T)))
#if VECTOR == 64 || defined(__aarch64__)
#define MANY 1
#else
#define MANY 0
#endif"""
_RUN = """
#define TILE (MANY ? 32 : 48)
typedef struct { int64_t x, z, weight, in, out, dim; double factor; } Path;
typedef struct { int64_t kind, a, b, c; } Pass;
static int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t packed_size(int64_t inner, int64_t columns) { return inner * ((columns + PANEL - 1) / PANEL) * PANEL; }
static void pack(const T *restrict from, int64_t row, int64_t column, T factor, T *restrict to,
                 int64_t inner, int64_t columns) {
  for (int64_t j = 0; j < columns; j += PANEL, to += inner * PANEL) {
    const int64_t width = columns - j < PANEL ? columns - j : PANEL;
    if (column == 1)
      for (int64_t m = 0; m < inner; m++)
        for (int64_t l = 0; l < width; l++) to[m * PANEL + l] = factor * from[m * row + j + l];
    else
      for (int64_t l = 0; l < width; l++)
        for (int64_t m = 0; m < inner; m++) to[m * PANEL + l] = factor * from[m * row + (j + l) * column];
  }
}
"""


def _lines(graph: bool) -> list[str]:
    """The C lines of ``run``: by chunks of rows, or of nodes with weights of their own, whose rows are gathered."""
    row = "edges[n + r]" if graph else "(n + r)"
    return [
        _READ,
        *([_READ_GRAPH] if graph else []),
        _SCRATCH,
        f"int64_t status = {DONE};",
        "for (int64_t chunk = begin; chunk < end; chunk++) {",
        *([_SEGMENTS] if graph else ["const int64_t node = 0, own = chunk, start = arg[0] * chunk / arg[1],",
                                     "stop = arg[0] * (chunk + 1) / arg[1];"]),
        _ENTER,
        "for (int64_t n = start; n < stop; n += TILE) {",
        "const int rows = stop - n < TILE ? (int)(stop - n) : TILE;",
        _TILE.replace("ROW", row).replace("GATHERED", str(int(graph))),
        "}",
        _LEAVE,
        "}",
        *(["}", "leave:"] if graph else []),
        "free(scratch);",
        "return status;",
    ]  # fmt: skip


_READ = f"""#define AT(k) ((T *)arg[5 + 2 * (k)])
  #define STEP(k) arg[6 + 2 * (k)]
  const int64_t *t = (const int64_t *)arg[3];
  const int64_t mul_ir = t[0] & 1, packed = t[0] & {PACKED};
  const int64_t y_at = t[1], y_column = t[2], gw_at = t[3], operands = t[4];
  const int64_t *const width = t + 5;
  t += 5 + operands;
  const int64_t results = *t++, *const result = t;
  t += results;
  const int64_t jobs = *t++;
  const Pass *const job = (const Pass *)t;
  t += 4 * jobs;
  const int64_t paths = *t++;
  const Path *const path = (const Path *)t;"""
_READ_GRAPH = f"""const int64_t *const tables = arg + 5 + 2 * operands;
  const int64_t *const ptr = (const int64_t *)tables[0], *const edges = (const int64_t *)tables[1];
  const int64_t *const others = (const int64_t *)tables[2], count = tables[3], nodes = tables[4], all = ptr[arg[0]];
  if (!(ptr[0] == 0 && all >= 0 && all <= count && ptr[arg[0] + 1] == -1 - nodes)) return {WRONG_TABLES};"""
_SCRATCH = f"""int64_t size = 0, widest = 0;
  for (int64_t k = 0; k < operands; k++) if (k != gw_at) widest = most(widest, width[k]);
  for (const Pass *j = job; j < job + jobs; j++)
    for (const Path *p = path; p < path + paths && j->kind < {Product.WEIGHTS} && !packed; p++)
      size += j->kind == {Product.BACK} ? packed_size(p->out, p->in) : packed_size(p->in, p->out);
  T *const scratch = aligned_alloc(64, ((size + 4 * TILE * widest) * sizeof(T) + 64) / 64 * 64);
  if (scratch == NULL) return {NO_MEMORY};
  T *const as = scratch + size, *const bs = as + TILE * widest, *const cs = bs + TILE * widest;
  T *const block = cs + TILE * widest;"""
_SEGMENTS = f"""const int64_t first = segment(ptr, arg[0], arg[1], chunk);
  const int64_t last = segment(ptr, arg[0], arg[1], chunk + 1);
  for (int64_t node = first; node < last; node++) {{
  const int64_t own = node, start = ptr[node], stop = ptr[node + 1];
  if (outside(edges, others, start, stop, count, nodes)) {{ status = {WRONG_TABLES}; goto leave; }}"""
_ENTER = f"""T *v = scratch;
  for (const Pass *j = job; j < job + jobs && start < stop && !packed; j++)
    for (const Path *p = path; p < path + paths && j->kind < {Product.WEIGHTS}; p++) {{
      const T *const w = AT(j->b) + node * STEP(j->b) + p->weight;
      if (j->kind == {Product.BACK}) pack(w, 1, p->out, (T)p->factor, v, p->out, p->in);
      else pack(w, p->out, 1, (T)p->factor, v, p->in, p->out);
      v += j->kind == {Product.BACK} ? packed_size(p->out, p->in) : packed_size(p->in, p->out);
    }}
  T *const gw = gw_at < 0 ? NULL : AT(gw_at) + own * STEP(gw_at);
  if (gw != NULL) memset(gw, 0, width[gw_at] * sizeof(T));"""
_LEAVE = """for (const Path *p = path; p < path + paths && gw != NULL; p++)
    for (int64_t i = 0; i < p->in * p->out; i++) gw[p->weight + i] *= (T)p->factor;"""
_TILE = f"""int scaled = GATHERED;
  for (int r = 0; r < rows; r++) scaled |= AT(y_at)[ROW * STEP(y_at) + y_column] != 1;
  for (int64_t k = 0; k < results; k++)
    for (int r = 0; r < rows; r++)
      memset(AT(result[k]) + ROW * STEP(result[k]), 0, width[result[k]] * sizeof(T));
  const T *matrix = packed ? AT(job->b) : scratch;
  for (const Pass *j = job; j < job + jobs; j++) {{
    const T *a = AT(j->a) + n * STEP(j->a), *b = NULL;
    T *c = NULL;
    int64_t a_step = STEP(j->a), b_step = 0, c_step = 0;
    if (scaled) {{
      a = as, a_step = width[j->a];
      for (int r = 0; r < rows; r++) {{
        const T *const from = AT(j->a) + ROW * STEP(j->a), y = AT(y_at)[ROW * STEP(y_at) + y_column];
        for (int64_t i = 0; i < a_step; i++) as[r * a_step + i] = y * from[i];
      }}
    }}
    if (j->kind == {Product.WEIGHTS}) {{
      b_step = GATHERED ? width[j->b] : STEP(j->b), b = GATHERED ? bs : AT(j->b) + n * STEP(j->b);
      for (int r = 0; GATHERED && r < rows; r++)
        memcpy(bs + r * b_step, AT(j->b) + ROW * STEP(j->b), b_step * sizeof(T));
    }} else {{
      c_step = GATHERED ? width[j->c] : STEP(j->c), c = GATHERED ? cs : AT(j->c) + n * STEP(j->c);
      if (GATHERED) memset(cs, 0, rows * c_step * sizeof(T));
    }}
    for (const Path *p = path; p < path + paths; p++) {{
      const int64_t dim = p->dim, turned = mul_ir && dim > 1;
      if (j->kind == {Product.WEIGHTS}) {{
        const int64_t size = dim * p->out;
        for (int r = 0; turned && r < rows; r++)
          for (int64_t m = 0; m < dim; m++)
            for (int64_t i = 0; i < p->out; i++) block[r * size + m * p->out + i] = b[r * b_step + p->z + i * dim + m];
        for (int64_t m = 0; m < dim; m++) {{
          const T *const from = a + p->x + (mul_ir ? m : m * p->in);
          const T *const to = turned ? block + m * p->out : b + p->z + m * p->out;
          product(p->in, 1, rows, p->out, from, mul_ir ? dim : 1, 0, a_step, to, turned ? size : b_step, PANEL,
                  gw + p->weight, p->out, 0);
        }}
        continue;
      }}
      const int back = j->kind == {Product.BACK};
      const int64_t inner = back ? p->out : p->in, columns = back ? p->in : p->out, size = dim * columns;
      const int64_t a_start = back ? p->z : p->x, c_start = back ? p->x : p->z;
      if (turned) memset(block, 0, rows * size * sizeof(T));
      product(rows, (int)dim, inner, columns, a + a_start, a_step, mul_ir ? 1 : inner, mul_ir ? dim : 1, matrix, PANEL,
              inner * PANEL, turned ? block : c + c_start, turned ? size : c_step, columns);
      for (int r = 0; turned && r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
          for (int64_t m = 0; m < dim; m++) c[r * c_step + c_start + i * dim + m] += block[r * size + m * columns + i];
      matrix += packed_size(inner, columns);
    }}
    for (int r = 0; GATHERED && c != NULL && r < rows; r++) {{
      T *const to = AT(j->c) + ROW * STEP(j->c);
      for (int64_t i = 0; i < c_step; i++) to[i] += cs[r * c_step + i];
    }}
  }}"""
