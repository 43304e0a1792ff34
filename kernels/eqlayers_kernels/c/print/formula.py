"""Prints a formula as C: one function on vectors of lanes, and a driver that loads lanes and stores results.

Sigmoid and hyperbolic tangent are printed as well, because C's own functions take one number at a time. Both come from
one exponential: the argument is split into n ln 2 + r with an integer n and abs(r) <= ln 2 / 2, as in Cody and Waite
(1980), whose two parts of ln 2 are used; exp(r) - 1 is its Taylor series.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...forms.expression import FUNCTIONS, SMALLEST_SQUARE, Node, is_number
from ...forms.formula import Formula
from .lanes import ByChannel, ByRow
from .layout import TYPES, head, print_squares, print_transposes
from .loops import indent

#: Keeps the order of sums, which other kernels leave to the compiler. It holds for the rest of the file, because
#: compilers do not inline functions with other options.
STRICT = """#ifdef __clang__
#pragma clang fp reassociate(off)
#else
#pragma GCC optimize("no-associative-math")
#endif
"""

#: Integer of the same size, bits of a mantissa, terms of the series, bounds of the argument of exp and of a hyperbolic
#: tangent (beyond them results differ in denormal numbers only), and the two parts of ln 2.
_CONSTANTS = {
    "float32": ("int32_t", 23, 7, (-87.0, 88.0), 20.0, (0.693359375, -2.12194440e-4)),
    "float64": ("int64_t", 52, 13, (-708.0, 709.0), 44.0, (6.93147180369123816490e-01, 1.90821492927058770002e-10)),
}


def functions(dtype: str) -> str:
    """C source of the functions of one number for vectors of 'float32' or 'float64'."""
    integer, bits, terms, (low, high), end, (upper, lower) = _CONSTANTS[dtype]
    series = f"ALL((T){1 / math.factorial(terms)!r})"
    for k in range(terms - 1, 0, -1):
        series = f"({series} * r + (T){1 / math.factorial(k)!r})"
    return f"""{STRICT}typedef {integer} W __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
static inline V between(V q, T low, T high) {{
  const W under = (W)(q < low), over = (W)(q > high);  // neither of NaN
  q = (V)((under & (W)ALL(low)) | (~under & (W)q));
  return (V)((over & (W)ALL(high)) | (~over & (W)q));
}}
static inline V exponential(V q, V *minus_one) {{
  const V shifted = q * (T){1 / math.log(2)!r} + (T){1.5 * 2.0**bits!r};  // the last bits are the nearest integer
  const V n = shifted - (T){1.5 * 2.0**bits!r};
  const V r = (q - n * (T){upper!r}) - n * (T){lower!r};
  const V less = r * {series};
  const V power = (V)((W)ALL((T)1) + ((W)shifted << {bits}));
  *minus_one = power * less + (power - (T)1);
  return power * less + power;
}}
static inline V sigmoid(V x) {{
  V unused;
  return (T)1 / ((T)1 + exponential(between(-x, (T){low!r}, (T){high!r}), &unused));
}}
static inline V hyperbolic_tangent(V x) {{
  V e;
  exponential(between(x + x, (T){-2 * end!r}, (T){2 * end!r}), &e);
  return e / (e + (T)2);
}}
static inline V at_most_one(V x) {{
  const W over = (W)(x > (T)1);  // not of NaN
  return (V)((over & (W)ALL((T)1)) | (~over & (W)x));
}}
static inline V below_one(V x) {{ return (V)((W)(x < (T)1) & (W)ALL((T)1)); }}
"""


#: Names in C, which has a function tanh.
NAMES = {name: name for name in FUNCTIONS} | {"tanh": "hyperbolic_tangent"}

_PRIMITIVES = """static inline V inverse_length(V q) {{
  V h;
  for (int l = 0; l < LANES; l++) h[l] = q[l] <= {tiny} ? 0 : 1 / {sqrt}(q[l]);
  return h;
}}
static inline void pack(const T *restrict from, T *restrict to, int dim, int64_t component, int64_t channel,
                        int count) {{
  for (int i = 0; i < dim; i++)
    for (int l = 0; l < count; l++) to[i * LANES + l] = from[i * component + l * channel];
}}
static inline void unpack(const T *restrict from, T *restrict to, int dim, int64_t component, int64_t channel,
                          int count) {{
  for (int i = 0; i < dim; i++)
    for (int l = 0; l < count; l++) to[i * component + l * channel] = from[i * LANES + l];
}}
static inline void claim(T *to, int64_t n) {{
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(to + i, 1, 2);
}}
static inline void unpack_add(const T *restrict from, T *restrict to, int dim, int64_t component, int64_t channel,
                              int count) {{
  for (int i = 0; i < dim; i++)
    for (int l = 0; l < count; l++) to[i * component + l * channel] += from[i * LANES + l];
}}
"""


def tile_body(base: Formula, added: Sequence[bool]) -> list[str]:
    """C statements of a formula on a vector of lanes; components are ``p<n>[i * s<n>]``, results ``r<n>[i * t<n>]``."""
    uses = [0] * len(base.nodes)
    for node in base.nodes:
        for arg in node.args if not is_number(node) else ():
            uses[arg] += 1
    stores: dict[int, list[str]] = {}
    for number, (outputs, adds) in enumerate(zip(base.outputs, added, strict=True)):
        for component, index in enumerate(outputs):
            if index is not None:
                uses[index] += 1
                stores.setdefault(index, []).append(f"AT(r{number}, {component} * t{number}) {'+=' if adds else '='} ")
    names: list[str] = []
    lines: list[str] = []
    for index, node in enumerate(base.nodes):
        text, plain = _text(node, names), is_number(node)
        if node.op == "constant" or (uses[index] == 1 and (plain or node.op == "multiply")):
            names.append(text if plain else f"({text})")  # products stand in their sum, to be contracted
        else:
            names.append(f"v{index}")
            lines.append(f"const V v{index} = {text};")
        value = f"ALL({names[index]})" if node.op == "constant" else names[index]
        lines += [f"{target}{value};" for target in stores.get(index, ())]
    return lines


def _text(node: Node, names: Sequence[str]) -> str:
    if node.op == "load":
        operand, component = node.args
        return f"AT(p{operand}, {component} * s{operand})"
    if node.op == "constant":
        return f"(T){node.args[0]!r}"
    args = [names[arg] for arg in node.args]
    if node.op == "inverse_length":
        return f"inverse_length({' + '.join(f'{a} * {a}' for a in args)})"
    if node.op in FUNCTIONS:
        return f"{NAMES[node.op]}(ALL({args[0]}))"
    return f" {'+' if node.op == 'add' else '*'} ".join(args)


@dataclass(frozen=True)
class FormulaKernel:
    """A formula, a dtype and a traversal, from which one C kernel is printed."""

    formula: Formula
    dtype: str  # 'float32' or 'float64'
    traversal: str = "rows"  # 'rows', 'by_src' or 'by_dst', by which results of nodes are summed

    @property
    def name(self) -> str:
        """Identifier for files and profilers."""
        return f"formula_{self.traversal}_{self.dtype}"

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """C with the driver ``run(arguments, begin, end)``.

        ``arguments`` are int64: rows (or nodes), chunks, 0, then for each operand and result its address and row step
        (results with rows 'one' have a row per chunk), then by nodes the addresses of ptr, edges and others, the
        number of rows, and of nodes at the other endpoint. It returns one of the status numbers in ``loops``.
        """
        base = self.formula
        ctype, item = TYPES[self.dtype]
        sqrt = "__builtin_sqrtf" if item == 4 else "__builtin_sqrt"
        driver = (ByChannel if base.channels else ByRow)(base, self.traversal)
        run = driver.text()
        parameters = [f"const T *restrict p{n}, const int64_t s{n}" for n in range(len(base.operands))]
        parameters += [f"T *restrict r{n}, const int64_t t{n}" for n in range(len(base.results))]
        body = tile_body(base, [driver.adds(result) for result in base.results])
        start = f"""{head(ctype)}
#define AT(p, place) (*(V *)((T *)(p) + (place)))
#define ALL(value) ((V){{0}} + (value))
{_PRIMITIVES.format(sqrt=sqrt, tiny=f"(T){SMALLEST_SQUARE[self.dtype]!r}")}
{functions(self.dtype) if any(node.op in FUNCTIONS for node in base.nodes) else ""}
{print_transposes(driver.inward, driver.outward, item)}
{print_squares(item) if driver.squares else ""}
static __attribute__((noinline)) void tile({", ".join(parameters)}) {{
  {indent(body, 2)}
}}
"""
        return (f"{start}{run}",)
