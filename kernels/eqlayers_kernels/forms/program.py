"""Programs: trilinear forms with channels, as lists of paths, from which kernels are printed.

A program consists of terms and has no irreps. Every path adds, for each row n and all its channels,

    z[n, k, c_z] += s_t * x[n, i, c_x] * y[n, j, c_y] * w[n, c_w]        for its terms t = (i, j, k, s_t),

where the channels of the four operands are affine in the indices of a few axes: an axis that steps x, w and z is a
channelwise product, one that steps x and w alone is summed over (weights mix channels). The same description gives
the form F = sum(z * g), and so every derivative.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

LAYOUTS = ("mul_ir", "ir_mul")
OPERANDS = ("x", "y", "w", "z")


def as_json(content: Any) -> bytes:
    """Lists of numbers and strings as JSON; a float64 is written so that reading gives the same bits.

    The content of forms has no names of classes or fields, so renaming these changes no key and no file.
    """
    return json.dumps(content, separators=(",", ":")).encode()


def key_of(content: Any) -> str:
    """Short hash of the content: equal descriptions have equal keys, on every machine."""
    return hashlib.sha256(as_json(content)).hexdigest()[:16]


class Slot(NamedTuple):
    """A block of one flat row: ``dim`` components of ``mul`` channels each, from column ``start``."""

    start: int
    mul: int
    dim: int

    @property
    def stop(self) -> int:
        """First column after the block."""
        return self.start + self.mul * self.dim

    def columns(self, layout: str) -> np.ndarray:
        """Column of every (component, channel), ``[dim, mul]``."""
        component, channel = np.arange(self.dim)[:, None], np.arange(self.mul)[None, :]
        steps = (1, self.dim) if layout == "mul_ir" else (self.mul, 1)
        return self.start + component * steps[0] + channel * steps[1]


class Axis(NamedTuple):
    """One channel index: its extent, and the channels that each operand advances per step.

    With ``pairs`` it runs over the pairs u < v below ``extent``: x advances with u, y with v, w and z with the number
    of the pair.
    """

    extent: int
    x: int = 0
    y: int = 0
    w: int = 0
    z: int = 0
    pairs: bool = False

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.extent * (self.extent - 1) // 2 if self.pairs else self.extent

    def offsets(self, operand: str) -> np.ndarray:
        """Channel offset of an operand at every step, ``[length]``."""
        if self.pairs and operand in "xy":
            return getattr(self, operand) * np.triu_indices(self.extent, 1)[operand == "y"]
        return getattr(self, operand) * np.arange(self.length)

    @property
    def steps(self) -> tuple[int, int, int, int]:
        """Steps of x, y, w and z."""
        return self.x, self.y, self.w, self.z


class Path(NamedTuple):
    """One path: its blocks of x, y and z, its first weight, its channel axes and its terms."""

    x: Slot
    y: Slot
    z: Slot
    weight: int | None  # column of the first weight; None without weights
    axes: tuple[Axis, ...]
    terms: tuple[tuple[int, int, int, float], ...]  # (component of x, of y, of z, coefficient)

    @property
    def inner(self) -> Axis:
        """The axis that a kernel's innermost, vectorised loop runs over; without channels one of extent 1.

        Preferred: long axes (up to the width of a vector), unit steps, and axes along which z is written, not summed.
        """

        def rank(axis: Axis) -> tuple[float, bool, int]:
            unit = all(step in (0, 1) for step in axis.steps)
            return min(axis.extent, 8) * (1.0 if unit else 0.5), axis.z != 0, axis.extent

        return max((axis for axis in self.axes if not axis.pairs), key=rank, default=Axis(1))

    @property
    def outer(self) -> tuple[Axis, ...]:
        """The other axes, in order."""
        inner = self.inner
        return tuple(axis for axis in self.axes if axis is not inner)

    @property
    def weight_count(self) -> int:
        """Number of weights, 0 without."""
        if self.weight is None:
            return 0
        return 1 + sum(axis.w * (axis.length - 1) for axis in self.axes)


@dataclass(frozen=True)
class Program:
    """A trilinear form over flat rows; ValueError if a path reads or writes outside its row."""

    paths: tuple[Path, ...]  # paths in the order in which they run
    widths: tuple[int, int, int, int]  # columns of x, y, w and z
    layout: str  # 'mul_ir' or 'ir_mul', of x, y and z alike

    def __post_init__(self) -> None:
        """Check columns, axes and terms, which printers of kernels use unchecked."""
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}, got {self.layout!r}. Pick one of these.")
        for number, path in enumerate(self.paths):
            self._check(number, path)
        weights = [Slot(path.weight, path.weight_count, 1) for path in self.paths if path.weight is not None]
        for name, slots in (
            ("x", list({path.x for path in self.paths})),
            ("y", list({path.y for path in self.paths})),
            ("z", list({path.z for path in self.paths})),
            ("w", weights),
        ):
            for one, other in pairwise(sorted(slots)):
                if other.start < one.stop:
                    raise ValueError(
                        f"blocks of {name} must be equal or apart, and weights apart, got columns {one.start} to "
                        f"{one.stop} and {other.start} to {other.stop}. Sums of paths need a block of their own."
                    )

    def _check(self, number: int, path: Path) -> None:
        width = dict(zip(OPERANDS, self.widths, strict=True))
        for name, slot in (("x", path.x), ("y", path.y), ("z", path.z)):
            if slot.start < 0 or slot.mul < 1 or slot.dim < 1 or slot.stop > width[name]:
                raise ValueError(
                    f"path {number}: {name} must lie in {width[name]} columns, got {slot} to {slot.stop}. Correct the "
                    f"slot."
                )
            last = sum(int(axis.offsets(name).max(initial=0)) for axis in path.axes)
            if last >= slot.mul:
                raise ValueError(
                    f"path {number}: the axes must stay within the {slot.mul} channels of {name}, got channel {last}. "
                    f"Correct the steps."
                )
        if any(axis.extent < 1 or min(axis.steps) < 0 for axis in path.axes):
            raise ValueError(
                f"path {number}: axes must have extents of 1 or more and no negative steps, got {path.axes}. "
                f"Drop a path without channels."
            )
        steps = [axis for axis in path.axes if axis.length > 1]
        for name, expected in (("z", path.z.mul), ("w", path.weight_count)):
            reached = math.prod(axis.length for axis in steps if getattr(axis, name))
            if expected and reached != expected:
                raise ValueError(
                    f"path {number}: the axes must reach each of the {expected} channels of {name}, got {reached} "
                    f"steps. Correct the steps of {name}."
                )
        if path.weight is not None and not all(axis.w for axis in steps):
            raise ValueError(
                f"path {number}: every axis must step the weights, each is used once, got {path.axes}. Add the steps."
            )
        if path.weight is not None and not 0 <= path.weight <= width["w"] - path.weight_count:
            raise ValueError(
                f"path {number}: its {path.weight_count} weights must lie in {width['w']} columns, got the first in "
                f"column {path.weight}. Correct the offset."
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

    @cached_property
    def key(self) -> str:
        """Short content hash: equal programs have equal keys, on every machine."""
        return key_of(self.content)

    @property
    def content(self) -> tuple[Any, ...]:
        """The program as plain data."""
        return self.layout, self.widths, self.paths

    def __reduce__(self) -> tuple[type[Program], tuple[Any, ...]]:
        return Program, (self.paths, self.widths, self.layout)

    def __str__(self) -> str:
        """One line per path."""
        lines = [f"program {self.key}: x {self.widths[0]}, y {self.widths[1]}, w {self.widths[2]}, z {self.widths[3]}"]
        for path in self.paths:
            weight = "no weights" if path.weight is None else f"w[{path.weight}:{path.weight + path.weight_count}]"
            extents = " x ".join(str(axis.length) for axis in path.axes) or "1"
            lines.append(
                f"  z[{path.z.start}: {path.z.dim} x {path.z.mul}] += x[{path.x.start}: {path.x.dim} x {path.x.mul}] * "
                f"y[{path.y.start}: {path.y.dim} x {path.y.mul}] * {weight}, {len(path.terms)} terms, "
                f"channels {extents}"
            )
        return "\n".join(lines)
