"""The straight-line program of a channelwise trilinear form: what the printers of generated kernels print.

A program is made from terms alone and knows nothing of irreps. For every batch row n and channel u it computes

    z[n, k, u] += s_t * x[n, i, u] * y[n, j(, u)] * w[n, p(, u)]        for the terms t of every path,

where an operand may lack channels. Terms are grouped in paths; the operand of a path without channels (spherical
harmonics, as a rule) is contracted with the coefficients first, once per row instead of once per channel.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

LAYOUTS = ("mul_ir", "ir_mul")


class Slot(NamedTuple):
    """A block of one flat row: ``dim`` components of ``mul`` channels each, from column ``start``."""

    start: int
    mul: int
    dim: int

    def columns(self, layout: str) -> np.ndarray:
        """Column of every (component, channel), ``[dim, mul]``."""
        component, channel = np.arange(self.dim)[:, None], np.arange(self.mul)[None, :]
        steps = (1, self.dim) if layout == "mul_ir" else (self.mul, 1)
        return self.start + component * steps[0] + channel * steps[1]


class Path(NamedTuple):
    """One path: where it reads and writes, and its terms."""

    x: Slot
    y: Slot
    z: Slot
    weight: int | None  # first column of the weights, one per channel; None without weights
    terms: tuple[tuple[int, int, int, float], ...]  # (component of x, of y, of z, coefficient)

    @property
    def hoisted(self) -> str | None:
        """The operand without channels, contracted first: 'x' or 'y'; None where both have channels."""
        if self.y.mul == 1:
            return "y"
        return "x" if self.x.mul == 1 else None


@dataclass(frozen=True)
class Program:
    """A channelwise form over flat rows.

    Attributes:
        paths: Paths in the order in which they run.
        widths: Columns of x, y, w and z.
        layout: 'mul_ir' or 'ir_mul', of x, y and z alike.

    Raises:
        ValueError: A path reads or writes outside its row, or joins multiplicities that do not fit.
    """

    paths: tuple[Path, ...]
    widths: tuple[int, int, int, int]
    layout: str

    def __post_init__(self) -> None:
        """Check what a printer relies on: it prints offsets without looking."""
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {self.layout!r}. Pick one of these.")
        for number, path in enumerate(self.paths):
            self._check(number, path)

    def _check(self, number: int, path: Path) -> None:
        names = ("x", "y", "w", "z")
        width = dict(zip(names, self.widths, strict=True))
        for name, slot in (("x", path.x), ("y", path.y), ("z", path.z)):
            end = slot.start + slot.mul * slot.dim
            if slot.start < 0 or slot.mul < 1 or slot.dim < 1 or end > width[name]:
                raise ValueError(
                    f"path {number}: {name} must lie in {width[name]} columns, got {slot} to {end}. Correct the slot."
                )
            if slot.mul not in (1, path.z.mul):
                raise ValueError(
                    f"path {number}: {name} must have 1 or {path.z.mul} channels, as z has, got {slot.mul}. "
                    f"Channels are not mixed here: contract them with a matrix product."
                )
        if path.z.mul not in (path.x.mul, path.y.mul):
            raise ValueError(
                f"path {number}: x or y must have the {path.z.mul} channels of z, got {path.x.mul} and {path.y.mul}. "
                f"One of them carries the channels."
            )
        if path.weight is not None and not 0 <= path.weight <= width["w"] - path.z.mul:
            raise ValueError(
                f"path {number}: its {path.z.mul} weights must lie in {width['w']} columns, got the first in column "
                f"{path.weight}. Correct the offset."
            )
        for i, j, k, s in path.terms:
            if s == 0 or s != s:  # compilers drop a literal 0 * x, and a NaN in x with it
                raise ValueError(f"path {number}: coefficients must be numbers other than 0, got {s}. Drop the term.")
            if not (0 <= i < path.x.dim and 0 <= j < path.y.dim and 0 <= k < path.z.dim):
                raise ValueError(
                    f"path {number}: terms must name components below {path.x.dim}, {path.y.dim}, {path.z.dim}, got "
                    f"{(i, j, k)}. Count components within the slot."
                )

    @property
    def num_terms(self) -> int:
        """Terms of all paths."""
        return sum(len(path.terms) for path in self.paths)

    @property
    def key(self) -> str:
        """Short content hash: equal programs have equal keys, on every machine."""
        return hashlib.sha256(repr((self.paths, self.widths, self.layout)).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """One line per path."""
        lines = [f"program {self.key}: x {self.widths[0]}, y {self.widths[1]}, w {self.widths[2]}, z {self.widths[3]}"]
        for path in self.paths:
            weight = "no weights" if path.weight is None else f"w[{path.weight}:{path.weight + path.z.mul}]"
            hoisted = f", {path.hoisted} first" if path.hoisted else ""
            lines.append(
                f"  z[{path.z.start}: {path.z.dim} x {path.z.mul}] += x[{path.x.start}: {path.x.dim} x {path.x.mul}] * "
                f"y[{path.y.start}: {path.y.dim} x {path.y.mul}] * {weight}, {len(path.terms)} terms{hoisted}"
            )
        return "\n".join(lines)


def run(program: Program, x: np.ndarray, y: np.ndarray, w: np.ndarray | None) -> np.ndarray:
    """Interpret a program term by term: the definition that printed kernels are tested against.

    Args:
        program: What to run.
        x, y: ``[N, width]``.
        w: ``[N, width]``, ``[1, width]`` for shared weights, or None without weights.

    Returns:
        z, ``[N, width]`` float64.
    """
    layout = program.layout
    z = np.zeros((x.shape[0], program.widths[3]))
    for path in program.paths:
        columns = [slot.columns(layout) for slot in (path.x, path.y, path.z)]
        weight: float | np.ndarray = 1.0
        if path.weight is not None and w is not None:
            weight = w[:, path.weight : path.weight + path.z.mul].astype(np.float64)
        for i, j, k, s in path.terms:
            z[:, columns[2][k]] += s * x[:, columns[0][i]].astype(np.float64) * y[:, columns[1][j]] * weight
    return z
