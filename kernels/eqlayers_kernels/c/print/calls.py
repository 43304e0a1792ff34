"""Prints the calls that run one path on one row: its function inside loops over its outer axes, or its two stages.

A path whose weights mix channels runs in two stages. The first is a channelwise path without weights that writes its
result t to scratch memory, ``t[k, u] = sum s x[i, u] y[j]``; the second is a small matrix product per row,
``z[k, c] += sum_u t[k, u] w[u, c]``. Backward, the second gives the gradient of the weights and
``h[k, u] = sum_c g[k, c] w[u, c]``, the cotangent of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ...arithmetic.writer import RESULTS, Task
from ...forms.program import OPERANDS, Axis, Path, Slot
from .path import path_body, takes_vectors

NARROW_BYTES = (32, 16, 8)  # widths of vectors for what the processor's own leave over
ACCUMULATORS = 12  # registers for sums: enough to hide the latency of a multiply-add
_SMALLEST = 4  # channels summed over: below, the path's own loop does as well
#: Returns the name of a C function, from its body and its parameters (pointer, whether it is written).
Define = Callable[[str, Sequence[tuple[str, bool]]], str]


class Common(NamedTuple):
    """Values that the calls of all paths of a kernel share."""

    define: Define
    reserve: Callable[[str, int], None]  # reserves a number of elements of scratch memory under a name
    item: int  # bytes of an element
    reads: int = 0  # rows of a table that are combined to weights, if the task has one
    width: int = 0  # weights of a row


class TwoStagePath(NamedTuple):
    """A path as a channelwise stage and a matrix product over channels u to channels c."""

    first: Path  # channelwise, into the scratch
    summed: Axis  # u
    out_axis: Axis  # c
    outer: tuple[Axis, ...]  # around both stages

    @property
    def size(self) -> int:
        """Number of elements of t, the result of the first stage."""
        return self.first.z.mul * self.first.z.dim


def mixing(path: Path) -> TwoStagePath | None:
    """The two stages of a path, or None if its weights mix no channels or too few."""
    if path.weight is None or any(axis.pairs for axis in path.axes):
        return None
    outputs = [axis for axis in path.axes if axis.steps == (0, 0, 1, 1) and axis.extent > 1]
    summed = [axis for axis in path.axes if axis.z == 0 and axis.extent >= _SMALLEST and max(axis.x, axis.y) == 1]
    if len(outputs) != 1 or not summed:
        return None
    axis = max(summed, key=lambda a: a.extent)
    slot = Slot(0, axis.extent, path.z.dim)
    first = Path(path.x, path.y, slot, None, (Axis(axis.extent, axis.x, axis.y, 0, 1),), path.terms)
    return TwoStagePath(first, axis, outputs[0], tuple(a for a in path.axes if a is not axis and a is not outputs[0]))


def mix_parameters(task: Task) -> list[tuple[str, bool]]:
    """Pointers of the C function of the second stage: (name, whether it is written)."""
    tangent = task.order == 2
    needs_h = bool({"x", "y"} & set(task.results))
    pointers = [
        ("t", True, False),
        ("dt", tangent and bool({"x", "y"} & set(task.tangents)), False),
        ("w", True, False),
        ("dw", tangent and "w" in task.tangents, False),
        ("g", task.gradients, False),
        ("z", "z" in task.results, True),
        ("gw", "w" in task.results, True),
        ("h", needs_h, True),
        ("dh", needs_h and tangent and "w" in task.tangents, True),
    ]
    return [(name, written) for name, used, written in pointers if used]


def mix_body(mixed: TwoStagePath, task: Task, z_stride: int, overwrite: bool, item: int) -> str:
    """The body of the C function of the second stage; gw is overwritten or added to."""
    present = {name for name, _ in mix_parameters(task)}
    lines: list[str] = []
    if "z" in present:
        pairs = [("dt", "w"), ("t", "dw")] if task.order == 2 else [("t", "w")]
        pairs = [pair for pair in pairs if present.issuperset(pair)]
        lines += _product(mixed, pairs, z_stride, item) if pairs else []
    if {"gw", "h"} & present:
        lines += _backward(mixed, task, present, z_stride, overwrite)
    return "\n  ".join(lines)


def _product(mixed: TwoStagePath, pairs: list[tuple[str, str]], z_stride: int, item: int) -> list[str]:
    """C lines of ``z[k, c] += sum_u t[k, u] w[u, c]`` with sums in registers, a few vectors of c at a time.

    Vectors of another width than the processor's would be taken apart, and the sums with them.
    """
    dim, count, step = mixed.first.z.dim, mixed.summed.extent, mixed.summed.w
    narrow = [(f"V{size}", 1, f"{size // item}") for size in NARROW_BYTES if size > item]
    most = max(1, ACCUMULATORS // dim)
    whole = [("V", vectors, "LANES") for vectors in dict.fromkeys((most, min(most, 4), min(most, 2), 1))]
    lines = ["int c = 0;"]
    for kind, vectors, lanes in [*whole, *narrow, ("T", 1, "1")]:
        column = [f"c + {number} * {lanes}" for number in range(vectors)]
        lines.append(f"for (; c + {vectors} * {lanes} <= {mixed.out_axis.extent}; c += {vectors} * {lanes}) {{")
        sums = [(n, k, f"*({kind} *)(z + {k * z_stride} + {column[n]})") for n in range(vectors) for k in range(dim)]
        lines += [f"{kind} a{n}_{k} = {at};" for n, k, at in sums]
        lines.append(f"for (int u = 0; u < {count}; u++) {{")
        for t, w in pairs:
            for n in range(vectors):
                lines.append(f"  const {kind} {w}{n} = *(const {kind} *)({w} + u * {step} + {column[n]});")
                lines += [f"  a{n}_{k} += {t}[u + {k * count}] * {w}{n};" for k in range(dim)]
        lines.append("}")
        lines += [f"{at} = a{n}_{k};" for n, k, at in sums]
        lines.append("}")
    return lines


def _backward(mixed: TwoStagePath, task: Task, present: set[str], z_stride: int, overwrite: bool) -> list[str]:
    dim, count, step = mixed.first.z.dim, mixed.summed.extent, mixed.summed.w
    head, inside, tail = [], [], []
    for name, w in (("h", "w"), ("dh", "dw")):
        if name in present:
            head.append("T " + ", ".join(f"{name}{k} = 0" for k in range(dim)) + ";")
            inside.append(f"const T {w}c = {w}[u * {step} + c];")
            inside += [f"{name}{k} += g[c + {k * z_stride}] * {w}c;" for k in range(dim)]
            tail += [f"{name}[u + {k * count}] = {name}{k};" for k in range(dim)]
    if "gw" in present:
        t = "dt" if task.order == 2 else "t"
        terms = [f"{t}[u + {k * count}] * g[c + {k * z_stride}]" for k in range(dim)] if t in present else []
        if terms or overwrite:
            inside.append(f"gw[u * {step} + c] {'=' if overwrite else '+='} {' + '.join(terms) or 0};")
    loop = [f"for (int c = 0; c < {mixed.out_axis.extent}; c++) {{", *(f"  {line}" for line in inside), "}"]
    return [f"for (int u = 0; u < {count}; u++) {{", *(f"  {line}" for line in [*head, *loop, *tail]), "}"]


def path_calls(
    path: Path, task: Task, addresses: Mapping[str, str], writes: frozenset[str], common: Common
) -> list[str]:
    """C lines that run a path on one row; ``addresses`` has the address of each pointer's block as text."""
    mixed = mixing(path)
    if mixed is not None:
        return _two_stages(mixed, path, task, addresses, writes, common)
    loops, offsets = _loops(path.outer)
    arguments = [addresses[pointer] + offsets[operand] for pointer, operand in task.pointers]
    vectors = takes_vectors(path, task, common.item)
    name = common.define(path_body(path, task, writes, common.reads, common.width, vectors), _parameters(task))
    return [" ".join([*loops, f"{name}({', '.join(arguments)});"])]


def _parameters(task: Task) -> list[tuple[str, bool]]:
    results = {RESULTS[name] for name in task.results}
    return [(name, name in results) for name, _ in task.pointers]


def _loops(axes: Sequence[Axis]) -> tuple[list[str], dict[str, str]]:
    """C loops over channel axes, and for each operand the text that their indices add to its address."""
    steps: dict[str, list[str]] = {name: [] for name in OPERANDS}
    loops = []
    for number, axis in enumerate(axes):
        index = dict.fromkeys(OPERANDS, f"c{number}")
        if axis.pairs:
            i, j = f"i{number}", f"j{number}"
            loops.append(f"for (int c{number} = 0, {i} = 0; {i} < {axis.extent}; {i}++)")
            loops.append(f"for (int {j} = {i} + 1; {j} < {axis.extent}; {j}++, c{number}++)")
            index |= {"x": i, "y": j}
        else:
            loops.append(f"for (int c{number} = 0; c{number} < {axis.extent}; c{number}++)")
        for operand, step in zip("xywz", axis.steps, strict=True):
            if step:
                steps[operand].append(f" + {index[operand]} * {step}")
    steps |= {"t": steps["w"], "c": []}
    return loops, {name: "".join(parts) for name, parts in steps.items()}


def _two_stages(
    mixed: TwoStagePath, path: Path, task: Task, addresses: Mapping[str, str], writes: frozenset[str], common: Common
) -> list[str]:
    """C lines of a path in two stages: channelwise into scratch memory, mixing, and gradients of the first stage."""
    loops, offsets = _loops(mixed.outer)
    operands = dict(task.pointers)
    at = {pointer: address + offsets[operands[pointer]] for pointer, address in addresses.items()}
    scratch = {name: f"s_{name}" for name in ("t", "dt", "h", "dh")}
    parameters = mix_parameters(task)
    for name, _ in parameters:
        if name in scratch:
            common.reserve(scratch[name], mixed.size)
    used = {name for name, _ in parameters}
    moving = tuple(name for name in task.tangents if name in "xy")
    stages = [(Task(0, ("z",)), {"z": "s_t"})]
    if "dt" in used:
        stages.append((Task(2, ("z",), moving), {"z": "s_dt"}))
    lines = [_call_first(mixed.first, stage, at | extra, common.define) for stage, extra in stages]
    body = mix_body(mixed, task, path.z.mul, "w" in writes, common.item)
    if body:
        arguments = ", ".join(scratch.get(name) or at[name] for name, _ in parameters)
        lines.append(f"{common.define(body, parameters)}({arguments});")
    back = tuple(name for name in task.results if name in "xy")
    if back:
        tangents = (*moving, *(("z",) if "dh" in used else ())) if task.order == 2 else ()
        extra = {"g": "s_h", "dz": "s_dh"}
        if task.order == 1 or tangents:
            lines.append(_call_first(mixed.first, Task(task.order, back, tangents), at | extra, common.define))
    return [" ".join([*loops, "{"]), *lines, "}"]


def _call_first(path: Path, task: Task, addresses: Mapping[str, str], define: Define) -> str:
    writes = frozenset({"z"}) if "z" in task.results else frozenset()
    name = define(path_body(path, task, writes), _parameters(task))
    return f"{name}({', '.join(addresses[pointer] for pointer, _ in task.pointers)});"
