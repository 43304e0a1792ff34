"""Prints the calls that run one path on one row: its function inside loops over its outer axes, or its two stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...arithmetic.writer import RESULTS, Task
from ...forms.program import OPERANDS, Axis, Path
from .mix import TwoStagePath, mix_body, mix_parameters, mixing
from .path import path_body

#: Returns the name of a C function, from its body and its parameters (pointer, whether it is written).
Define = Callable[[str, Sequence[tuple[str, bool]]], str]
#: Reserves a number of elements of scratch memory under a name.
Reserve = Callable[[str, int], None]


def path_calls(
    path: Path,
    task: Task,
    addresses: Mapping[str, str],
    writes: frozenset[str],
    define: Define,
    reserve: Reserve,
    item: int,
) -> list[str]:
    """C lines that run a path on one row; ``addresses`` has the address of each pointer's block as text."""
    mixed = mixing(path)
    if mixed is not None:
        return _two_stages(mixed, path, task, addresses, writes, define, reserve, item)
    loops, offsets = _loops(path.outer)
    arguments = [addresses[pointer] + offsets[operand] for pointer, operand in task.pointers]
    name = define(path_body(path, task, writes), _parameters(task))
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
    return loops, {name: "".join(parts) for name, parts in steps.items()}


def _two_stages(
    mixed: TwoStagePath,
    path: Path,
    task: Task,
    addresses: Mapping[str, str],
    writes: frozenset[str],
    define: Define,
    reserve: Reserve,
    item: int,
) -> list[str]:
    """C lines of a path in two stages: channelwise into scratch memory, mixing, and gradients of the first stage."""
    loops, offsets = _loops(mixed.outer)
    operands = dict(task.pointers)
    at = {pointer: address + offsets[operands[pointer]] for pointer, address in addresses.items()}
    scratch = {name: f"s_{name}" for name in ("t", "dt", "h", "dh")}
    parameters = mix_parameters(task)
    for name, _ in parameters:
        if name in scratch:
            reserve(scratch[name], mixed.size)
    used = {name for name, _ in parameters}
    moving = tuple(name for name in task.tangents if name in "xy")
    stages = [(Task(0, ("z",)), {"z": "s_t"})]
    if "dt" in used:
        stages.append((Task(2, ("z",), moving), {"z": "s_dt"}))
    lines = [_call_first(mixed.first, stage, at | extra, define) for stage, extra in stages]
    body = mix_body(mixed, task, path.z.mul, "w" in writes, item)
    if body:
        lines.append(
            f"{define(body, parameters)}({', '.join(scratch.get(name) or at[name] for name, _ in parameters)});"
        )
    back = tuple(name for name in task.results if name in "xy")
    if back:
        tangents = (*moving, *(("z",) if "dh" in used else ())) if task.order == 2 else ()
        extra = {"g": "s_h", "dz": "s_dh"}
        if task.order == 1 or tangents:
            lines.append(_call_first(mixed.first, Task(task.order, back, tangents), at | extra, define))
    return [" ".join([*loops, "{"]), *lines, "}"]


def _call_first(path: Path, task: Task, addresses: Mapping[str, str], define: Define) -> str:
    writes = frozenset({"z"}) if "z" in task.results else frozenset()
    name = define(path_body(path, task, writes), _parameters(task))
    return f"{name}({', '.join(addresses[pointer] for pointer, _ in task.pointers)});"
