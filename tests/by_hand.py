"""The definition of programs that printed kernels are tested against: term by term, in float64."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from eqlayers_kernels.forms.program import OPERANDS, Program


class Places(NamedTuple):
    """Columns that one term touches, ``[steps of all axes]`` each; no ``w`` without weights."""

    x: np.ndarray
    y: np.ndarray
    w: np.ndarray | None
    z: np.ndarray
    coefficient: float


def places_of(program: Program) -> Iterator[Places]:
    for path in program.paths:
        channels = {}
        for name in OPERANDS:
            total = np.zeros(1, dtype=np.int64)
            for axis in path.axes:
                total = (total[:, None] + axis.offsets(name)[None, :]).reshape(-1)
            channels[name] = total
        columns = {name: getattr(path, name).columns(program.layout) for name in ("x", "y", "z")}
        w = None if path.weight is None else path.weight + channels["w"]
        for i, j, k, s in path.terms:
            x, y, z = (columns[name][c][channels[name]] for name, c in (("x", i), ("y", j), ("z", k)))
            yield Places(x, y, w, z, s)


def contract(program: Program, wanted: str, **operands: np.ndarray | None) -> np.ndarray:
    """Interpret a program.

    Args:
        program: What to run.
        wanted: The operand whose gradient of the form to return: 'z' is the product itself.
        operands: The other three, ``[N, width]`` each; rows of extent 1 are shared, w may be None without weights.

    Returns:
        ``[N, width]`` of the wanted operand.
    """
    others = [name for name in OPERANDS if name != wanted]
    arrays = {name: None if a is None else np.asarray(a, np.float64) for name, a in operands.items()}
    rows = max(a.shape[0] for a in arrays.values() if a is not None)
    out = np.zeros((rows, dict(zip(OPERANDS, program.widths, strict=True))[wanted]))
    for places in places_of(program):
        value: float | np.ndarray = places.coefficient
        for name in others:
            columns, array = getattr(places, name), arrays.get(name)
            if columns is not None and array is not None:
                value = value * array[:, columns]
        target = getattr(places, wanted)
        if target is not None:
            np.add.at(out.T, target, np.broadcast_to(value, (rows, len(target))).T)
    return out
