"""Prints the calls that run one path on one row: its function inside loops over its outer axes, or its two stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ...arithmetic.writer import RESULTS, Kind
from ...forms.program import OPERANDS, Axis, Path
from .mix import TwoStagePath, mix_body, mix_parameters, mixing
from .path import path_body

#: Gives the name of a function: its body, and its parameters as (pointer, whether it is written).
Define = Callable[[str, Sequence[tuple[str, bool]]], str]
#: Keeps so many elements of scratch under a name.
Reserve = Callable[[str, int], None]


def path_calls(
    path: Path,
    kind: Kind,
    places: Mapping[str, str],
    writes: frozenset[str],
    define: Define,
    reserve: Reserve,
    item: int,
) -> list[str]:
    """Lines that run a path; ``places`` says where each pointer finds its block, ``writes`` as of `path_body`."""
    mixed = mixing(path)
    if mixed is not None:
        return _two_stages(mixed, path, kind, places, writes, define, reserve, item)
    loops, offsets = _loops(path.outer)
    given = [places[pointer] + offsets[operand] for pointer, operand in kind.pointers]
    name = define(path_body(path, kind, writes), _parameters(kind))
    return [" ".join([*loops, f"{name}({', '.join(given)});"])]


def _parameters(kind: Kind) -> list[tuple[str, bool]]:
    results = {RESULTS[name] for name in kind.results}
    return [(name, name in results) for name, _ in kind.pointers]


def _loops(axes: Sequence[Axis]) -> tuple[list[str], dict[str, str]]:
    """Heads of the loops over axes, and what they add to the address of each operand."""
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
    kind: Kind,
    places: Mapping[str, str],
    writes: frozenset[str],
    define: Define,
    reserve: Reserve,
    item: int,
) -> list[str]:
    """The channelwise stage into the scratch, the mixing stage, and the gradients of the first."""
    loops, offsets = _loops(mixed.outer)
    operands = dict(kind.pointers)
    at = {pointer: place + offsets[operands[pointer]] for pointer, place in places.items()}
    scratch = {name: f"s_{name}" for name in ("t", "dt", "h", "dh")}
    parameters = mix_parameters(kind)
    for name, _ in parameters:
        if name in scratch:
            reserve(scratch[name], mixed.size)
    used = {name for name, _ in parameters}
    moving = tuple(name for name in kind.tangents if name in "xy")
    stages = [(Kind(0, ("z",)), {"z": "s_t"})]
    if "dt" in used:
        stages.append((Kind(2, ("z",), moving), {"z": "s_dt"}))
    lines = [_call_first(mixed.first, stage, at | extra, define) for stage, extra in stages]
    body = mix_body(mixed, kind, path.z.mul, "w" in writes, item)
    if body:
        lines.append(
            f"{define(body, parameters)}({', '.join(scratch.get(name) or at[name] for name, _ in parameters)});"
        )
    back = tuple(name for name in kind.results if name in "xy")
    if back:
        tangents = (*moving, *(("z",) if "dh" in used else ())) if kind.order == 2 else ()
        extra = {"g": "s_h", "dz": "s_dh"}
        if kind.order == 1 or tangents:
            lines.append(_call_first(mixed.first, Kind(kind.order, back, tangents), at | extra, define))
    return [" ".join([*loops, "{"]), *lines, "}"]


def _call_first(path: Path, kind: Kind, places: Mapping[str, str], define: Define) -> str:
    writes = frozenset({"z"}) if "z" in kind.results else frozenset()
    name = define(path_body(path, kind, writes), _parameters(kind))
    return f"{name}({', '.join(places[pointer] for pointer, _ in kind.pointers)});"
