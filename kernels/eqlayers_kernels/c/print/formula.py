"""Prints a formula as C: one function for a vector of lanes, and a driver that brings lanes to it and results back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...forms.expression import FUNCTIONS, SMALLEST_SQUARE, Node, is_number
from ...forms.formula import Formula
from .functions import functions
from .lanes import ByChannel, ByRow
from .layout import HEAD, print_squares, print_transposes
from .loops import INCLUDES, indent

TYPES = {"float32": ("float", 4, "__builtin_sqrtf"), "float64": ("double", 8, "__builtin_sqrt")}

#: C has names of its own for functions of one number.
NAMES = {"sigmoid": "sigmoid", "tanh": "hyperbolic_tangent"}

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
    """The formula for one vector of lanes: components are ``p<n>[i * s<n>]``, results ``r<n>[i * t<n>]``."""
    uses = [0] * len(base.nodes)
    for node in base.nodes:
        for arg in node.args if not is_number(node) else ():
            uses[arg] += 1
    stores: dict[int, list[str]] = {}
    for number, (outputs, adds) in enumerate(zip(base.outputs, added, strict=True)):
        for component, place in enumerate(outputs):
            if place is not None:
                uses[place] += 1
                stores.setdefault(place, []).append(f"AT(r{number}, {component} * t{number}) {'+=' if adds else '='} ")
    names: list[str] = []
    lines: list[str] = []
    for place, node in enumerate(base.nodes):
        text, plain = _text(node, names), is_number(node)
        if node.kind == "constant" or (uses[place] == 1 and (plain or node.kind == "multiply")):
            names.append(text if plain else f"({text})")  # products stand in their sum, to be contracted
        else:
            names.append(f"v{place}")
            lines.append(f"const V v{place} = {text};")
        value = f"ALL({names[place]})" if node.kind == "constant" else names[place]
        lines += [f"{target}{value};" for target in stores.get(place, ())]
    return lines


def _text(node: Node, names: Sequence[str]) -> str:
    if node.kind == "load":
        operand, component = node.args
        return f"AT(p{operand}, {component} * s{operand})"
    if node.kind == "constant":
        return f"(T){node.args[0]!r}"
    args = [names[arg] for arg in node.args]
    if node.kind == "inverse_length":
        return f"inverse_length({' + '.join(f'{a} * {a}' for a in args)})"
    if node.kind in FUNCTIONS:
        return f"{NAMES[node.kind]}(ALL({args[0]}))"
    return f" {'+' if node.kind == 'add' else '*'} ".join(args)


@dataclass(frozen=True)
class FormulaKernel:
    """One kernel."""

    formula: Formula
    dtype: str  # 'float32' or 'float64'
    walk: str = "rows"  # 'rows', 'by_src' or 'by_dst'. Results summed at nodes must belong to the walk

    @property
    def name(self) -> str:
        """Identifier for files and profilers."""
        return f"formula_{self.walk}_{self.dtype}"

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """C with the driver ``run(arguments, begin, end)``.

        ``arguments`` are int64: rows (or nodes of the walk), chunks, 0, then for each operand and result its address
        and row step (of results 'one' a row per chunk), then by nodes the addresses of ptr, edges and others, the
        number of rows, and of nodes at their other ends. It returns one of the numbers in ``loops``.
        """
        base = self.formula
        ctype, item, sqrt = TYPES[self.dtype]
        driver = (ByChannel if base.channels else ByRow)(base, self.walk)
        run = driver.text()
        parameters = [f"const T *restrict p{n}, const int64_t s{n}" for n in range(len(base.operands))]
        parameters += [f"T *restrict r{n}, const int64_t t{n}" for n in range(len(base.results))]
        body = tile_body(base, [driver.adds(one) for one in base.results])
        head = f"""{INCLUDES}
typedef {ctype} T;
#define EXPORT __attribute__((visibility("default")))
{HEAD}
#define AT(p, place) (*(V *)((T *)(p) + (place)))
#define ALL(value) ((V){{0}} + (value))
{_PRIMITIVES.format(sqrt=sqrt, tiny=f"(T){SMALLEST_SQUARE[self.dtype]!r}")}
{functions(self.dtype) if any(node.kind in FUNCTIONS for node in base.nodes) else ""}
{print_transposes(driver.inward, driver.outward, item)}
{print_squares(item) if driver.squares else ""}
static __attribute__((noinline)) void tile({", ".join(parameters)}) {{
  {indent(body, 2)}
}}
"""
        return (f"{head}{run}",)
