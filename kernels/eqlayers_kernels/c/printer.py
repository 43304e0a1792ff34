"""Prints a channelwise program as C: one small function per path, and drivers that run all paths of a row.

Per path the operand without channels is contracted with the coefficients once, ``A[i, k] = sum_j s y[j]``; then per
channel only ``z[k] += A[i, k] x[i] w`` remains, a loop that the compiler vectorises with A in registers. The backward
is one pass: ``t[i] = sum_k A[i, k] g[k]`` gives gx and gw, and sums of ``x[i] w g[k]`` over channels fold back to gy.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..program import Path, Program, Slot

TYPES = {"float32": "float", "float64": "double"}

_HEAD = """#include <stdint.h>
typedef {ctype} T;
#define EXPORT __attribute__((visibility("default")))
#define PATH static void __attribute__((noinline))
"""


def print_forward(program: Program, dtype: str) -> str:
    """C source with ``forward(x, y, w, w_step, z, begin, end)``.

    ``w_step`` is the row stride of w, 0 for shared weights; rows ``begin`` to ``end`` are computed.
    """
    parts, calls, written = [_HEAD.format(ctype=TYPES[dtype])], [], set()
    for number, path in enumerate(program.paths):
        parts.append(_forward_path(number, path, program.layout, add=path.z in written))
        written.add(path.z)
        calls.append(f"p{number}({_at('x', path.x)}, {_at('y', path.y)}, w + {path.weight or 0}, {_at('z', path.z)});")
    gaps = _unwritten(written, program.widths[3], "z")
    d1, d2, _, d3 = program.widths
    parts.append(
        f"""EXPORT void forward(const T *X, const T *Y, const T *W, int64_t w_step, T *Z, int64_t begin, int64_t end) {{
  for (int64_t n = begin; n < end; n++) {{
    const T *x = X + n * {d1}, *y = Y + n * {d2}, *w = W + n * w_step;
    T *z = Z + n * {d3};
    {_lines([*gaps, *calls], 4)}
  }}
}}
"""
    )
    return "\n".join(parts)


def _lines(lines: Iterable[str], indent: int) -> str:
    return ("\n" + " " * indent).join(lines)


def _at(name: str, slot: Slot) -> str:
    return f"{name} + {slot.start}"


def _unwritten(slots: set[Slot], width: int, name: str) -> list[str]:
    """Statements that zero the columns that no path writes, as ranges."""
    covered = sorted((slot.start, slot.start + slot.mul * slot.dim) for slot in slots)
    gaps, position = [], 0
    for start, end in [*covered, (width, width)]:
        if start > position:
            gaps.append(f"for (int i = {position}; i < {start}; i++) {name}[i] = 0;")
        position = max(position, end)
    return gaps


def _element(name: str, slot: Slot, component: int, layout: str) -> str:
    """``name[component, u]`` of a slot; without channels the component alone."""
    if slot.mul == 1:
        return f"{name}[{component}]"
    return f"{name}[u * {slot.dim} + {component}]" if layout == "mul_ir" else f"{name}[u + {component * slot.mul}]"


def _sum(terms: Iterable[str]) -> str:
    return " + ".join(terms)


def _hoist(path: Path) -> tuple[str, Slot, str, dict[tuple[int, int], str]]:
    """(operand with channels, its slot, operand without, coefficients A[i, k] as expressions of the latter)."""
    swapped = path.hoisted == "x"
    many, one = ("y", "x") if swapped else ("x", "y")
    slot = path.y if swapped else path.x
    tables: dict[tuple[int, int], list[str]] = {}
    for i, j, k, s in path.terms:
        a, b = (j, i) if swapped else (i, j)
        tables.setdefault((a, k), []).append(f"(T){s!r} * {one}[{b}]")
    return many, slot, one, {key: _sum(terms) for key, terms in tables.items()}


def _forward_path(number: int, path: Path, layout: str, add: bool) -> str:
    weight = "" if path.weight is None else "w[u] * "
    store = "+=" if add else "="
    before: list[str] = []
    sums: dict[int, list[str]] = {k: [] for k in range(path.z.dim)}
    if path.hoisted is None:
        for i, j, k, s in path.terms:
            x, y = _element("x", path.x, i, layout), _element("y", path.y, j, layout)
            sums[k].append(f"(T){s!r} * {x} * {y}")
    else:
        many, slot, _, table = _hoist(path)
        for (i, k), expression in table.items():
            before.append(f"const T a{i}_{k} = {expression};")
            sums[k].append(f"a{i}_{k} * {_element(many, slot, i, layout)}")
    body = []
    for k, terms in sums.items():
        if terms or not add:
            value = f"{weight}({_sum(terms)})" if terms else "0"
            body.append(f"{_element('z', path.z, k, layout)} {store} {value};")
    return f"""PATH p{number}(const T *restrict x, const T *restrict y, const T *restrict w, T *restrict z) {{
  {_lines(before, 2)}
  for (int u = 0; u < {path.z.mul}; u++) {{
    {_lines(body, 4)}
  }}
}}
"""
