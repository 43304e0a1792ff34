"""Runs the program of a product layer (see ``ProgramInfos``) by sparse products.

A program is a list of paths, and a path is a list of terms. Paths whose operands have equal channels are one group: one
sparse product multiplies the operands along the terms of all paths of the group, and a second one multiplies weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ..core.dtypes import ACCUMULATE
from ..core.torch_internals import outside_of_autocast, outside_of_traces
from .build import sparse_product_infos
from .function import sparse_product
from .info import Infos
from .table import Channels

_LETTERS = "abcdefgh"


@dataclass(frozen=True)
class PathGroup:
    """Paths of a program whose operands have equal channels, as one or two sparse products."""

    paths: tuple[int, ...]  # indices into the paths of the program
    #: Blocks of the operands and of the result, whose components are the sparse rows, one after the other.
    x: tuple[Slot, ...]
    y: tuple[Slot, ...]
    z: tuple[Slot, ...]
    axes: dict[str, Axis]
    letters: dict[str, str]  # channel letters of x, y, w and z
    channels: Channels  # channel spec of the product of x and y
    #: Infos of the product of x and y and of its gradients, with the terms of all paths. Its rows are the
    #: components of each path in a group with weights, else the rows of z.
    terms: Infos
    #: Infos of the product with the weights, a row for each path, and of its gradients; None without weights.
    weights: Infos | None

    @property
    def weight_channels(self) -> Channels | None:
        """Channel spec of the product with the weights."""
        return None if self.weights is None else Channels(self.channels.out, self.letters["w"], self.letters["z"])


class ProgramInfos:
    """The infos of a product layer, a group for each combination of channel axes; a call gives the layer's result.

    Args:
        program: The paths, their terms and their channels.

    Example:
        >>> import torch
        >>> from eqlayers import TensorProduct
        >>> layer = TensorProduct("2x1o", "1o", "2x1e", [(0, 0, 0, "uvu", True)])
        >>> layer.infos
        infos of 1 path in 1 group
        group 0: x 'a', y '' -> 'a'; then weights 'a' -> 'a'
          path 0: x[0:6], y[0:3], w[0:2] -> z[0:6]
            z0 = 0.707107 x1 y2 - 0.707107 x2 y1
            z1 = - 0.707107 x0 y2 + 0.707107 x2 y0
            z2 = 0.707107 x0 y1 - 0.707107 x1 y0
        >>> x, y = torch.randn(5, 6), torch.randn(5, 3)
        >>> torch.allclose(layer.infos(x, y, layer.weight), layer(x, y), atol=1e-6)
        True
    """

    def __init__(self, program: Program) -> None:
        self.program, self._cuts = program, cuts_of(program)

    @cached_property
    def groups(self) -> tuple[PathGroup, ...]:
        """The groups, in the order of their first paths."""
        groups: dict[object, list[int]] = {}
        for number, path in enumerate(self.program.paths):
            channels = (path.x.mul, path.y.mul, path.z.mul, path.weight is None, _axes(path))
            groups.setdefault(channels, []).append(number)
        with outside_of_traces():  # the infos are cached, so they must not belong to a trace
            return tuple(_group(self.program, numbers) for numbers in groups.values())

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[PathGroup]:
        return iter(self.groups)

    def __getitem__(self, number: int) -> PathGroup:
        return self.groups[number]

    def __call__(self, x: Tensor, y: Tensor, w: Tensor | None = None, backend: str | None = None) -> Tensor:
        """The layer's result ``[N, width]`` for flat x, y and w ``[N, width]``; w may be ``[width]`` or None.

        Each group runs one or two products. Sums are formed in float32 or better, and in float64 by 'reference'; for
        other backends see :func:`eqlayers.functional.sparse_product`.
        """
        dtype = torch.float64 if backend == "reference" else ACCUMULATE[x.dtype]
        operands = x, y, x.new_empty(0) if w is None else w
        blocks: dict[Slot, Tensor] = {}
        with outside_of_autocast(x.device.type):
            rows = [cut(t.to(dtype)) for cut, t in zip(self._cuts, operands, strict=True)]
            for group in self.groups:
                for slot, block in zip(group.z, self._run(group, rows, backend), strict=True):
                    blocks[slot] = blocks[slot] + block if slot in blocks else block
            return joined(self.program, blocks, [row.whole for row in rows]).to(x.dtype)

    def _run(self, group: PathGroup, rows: list[BlockedRows], backend: str | None) -> list[Tensor]:
        """``[N, components, channels]`` of every block of z of a group."""
        x, y = self._side(group, "x", rows[0], group.x), self._side(group, "y", rows[1], group.y)
        terms = [info.on(x.device) for info in group.terms]
        z = sparse_product(str(group.channels), x, y, *terms, backend=backend)
        letters, product_letters = group.letters["z"], group.channels.out
        if group.weights is not None:
            sizes = [group.axes[letter].length for letter in group.letters["w"]]
            paths = [self.program.paths[number] for number in group.paths]
            slots = [Slot(path.weight or 0, 1, path.weight_count) for path in paths]
            w = rows[2].joined(slots).unflatten(-1, (len(slots), *sizes))
            weights = [info.on(x.device) for info in group.weights]
            z = sparse_product(str(group.weight_channels), z, w, *weights, backend=backend)
        elif product_letters != letters:  # sum channels that z lacks, repeat results over channels that only z has
            z = torch.einsum(f"nt{product_letters}->nt{''.join(c for c in letters if c in product_letters)}", z)
            for index, letter in enumerate(letters):
                if letter not in product_letters:
                    z = z.unsqueeze(2 + index)
            z = z.expand(*z.shape[:2], *(group.axes[letter].length for letter in letters))
        z = z.flatten(2) if letters else z.unsqueeze(2)
        return list(z.split([slot.dim for slot in group.z], 1))

    def _side(self, group: PathGroup, name: str, row: BlockedRows, slots: Sequence[Slot]) -> Tensor:
        """``[N, components, *channels]`` of all blocks of x or y of a group."""
        mul, components = slots[0].mul, sum(slot.dim for slot in slots)
        if self.program.layout == "ir_mul":
            block = row.joined(slots).unflatten(1, (components, mul))
        elif len(slots) == 1 or mul == 1:
            block = row.joined(slots).unflatten(1, (mul, components)).mT
        else:
            block = torch.cat([row.parts[slot.start].unflatten(1, (mul, slot.dim)).mT for slot in slots], 1)
        axes = [group.axes[letter] for letter in group.letters[name]]
        if not axes:
            return block.select(2, 0)
        if any(axis.pairs for axis in axes):
            pairs = torch.triu_indices(mul, mul, 1, device=block.device)
            return block[:, :, pairs["xy".index(name)]]
        return block if len(axes) == 1 else block.unflatten(2, [axis.extent for axis in axes])

    def __repr__(self) -> str:
        paths, groups = len(self.program.paths), len(self.groups)
        lines = [f"infos of {paths} path{'s' * (paths != 1)} in {groups} group{'s' * (groups != 1)}"]
        for number, group in enumerate(self.groups):
            x, y, w, z = (repr(group.letters[name]) for name in "xywz")
            weights = f" -> {z}" if group.weights is None else f" -> {group.channels.out!r}; then weights {w} -> {z}"
            lines.append(f"group {number}: x {x}, y {y}{weights}")
            for index in group.paths:
                lines += [f"  {line}" for line in _described(index, self.program.paths[index])]
        return "\n".join(lines)


class BlockedRows(NamedTuple):
    """The rows of an operand, and views of its blocks by their first column."""

    whole: Tensor
    parts: dict[int, Tensor]

    def joined(self, slots: Sequence[Slot]) -> Tensor:
        """The columns of some blocks, concatenated; a view if the blocks are adjacent."""
        if all(left.stop == right.start for left, right in pairwise(slots)):
            return self.whole.narrow(-1, slots[0].start, slots[-1].stop - slots[0].start)
        return torch.cat([self.parts[slot.start] for slot in slots], -1)


class Cut:
    """Splits rows into all blocks by one call: the gradient of a single slice is as wide as the row."""

    def __init__(self, slots: Sequence[Slot], width: int) -> None:
        bounds = sorted({0, width}.union(*((slot.start, slot.stop) for slot in slots)))
        self.sizes = [stop - start for start, stop in pairwise(bounds)]
        self.starts = bounds[:-1]

    def __call__(self, t: Tensor) -> BlockedRows:
        """Split rows ``[N, width]`` into blocks."""
        parts = t.split(self.sizes, -1) if len(self.sizes) > 1 else (t,)
        return BlockedRows(t, dict(zip(self.starts, parts, strict=False)))


def cuts_of(program: Program) -> list[Cut]:
    """The splits of x, y and w into the blocks that paths read."""
    paths = program.paths
    weights = [Slot(path.weight, path.weight_count, 1) for path in paths if path.weight is not None]
    slots = ([path.x for path in paths], [path.y for path in paths], weights)
    return [Cut(blocks, width) for blocks, width in zip(slots, program.widths, strict=False)]


def joined(program: Program, blocks: Mapping[Slot, Tensor], operands: Sequence[Tensor]) -> Tensor:
    """Rows ``[N, width]`` of z from its blocks ``[N, components, channels]``; columns outside all blocks are 0.

    If no path reads weights, empty columns of all operands are added: each then gets a gradient of zeros, not None.
    """
    (x, y, w), columns, stop = operands, [], 0
    if not any(path.weight is not None for path in program.paths) and not (program.paths and not w.shape[-1]):
        columns.append(x.narrow(-1, 0, 0) + y.narrow(-1, 0, 0) + w.narrow(-1, 0, 0))
    for slot in sorted(blocks):
        if slot.start > stop:
            columns.append(x.new_zeros(x.shape[0], slot.start - stop))
        block = blocks[slot]
        columns.append((block if program.layout == "ir_mul" else block.mT).flatten(1))
        stop = slot.stop
    if stop < program.widths[3]:
        columns.append(x.new_zeros(x.shape[0], program.widths[3] - stop))
    return columns[0] if len(columns) == 1 else torch.cat(columns, -1)


def _axes(path: Path) -> tuple[Axis, ...]:
    """Axes of several channels, and all axes of pairs u < v: a single pair is not channel 0 of x and y."""
    return tuple(axis for axis in path.axes if axis.length > 1 or axis.pairs)


def lettered(path: Path, letters: Sequence[str]) -> tuple[dict[str, Axis], dict[str, str]]:
    """The axes of a path by letter, and the letters of x, y, w and z by decreasing stride."""
    axes = dict(zip(letters, _axes(path), strict=False))
    of_operands = {}
    for name in "xywz":
        steps = {letter: getattr(axis, name) for letter, axis in axes.items() if getattr(axis, name)}
        of_operands[name] = "".join(sorted(steps, key=lambda letter: -steps[letter]))
    return axes, of_operands


def _group(program: Program, numbers: Sequence[int]) -> PathGroup:
    paths = [program.paths[number] for number in numbers]
    axes, letters = lettered(paths[0], _LETTERS)
    weighted = paths[0].weight is not None
    x, y, z = (tuple(sorted({getattr(path, name) for path in paths})) for name in "xyz")
    blocks = {"x": x, "y": y, "z": z}
    #: The sparse row of the first component of each block.
    rows = {name: dict(zip(b, accumulate((s.dim for s in b), initial=0), strict=False)) for name, b in blocks.items()}
    out = "".join(letter for letter in axes if letter in letters["x"] + letters["y"])
    if not weighted and all(sum(c in letters[name] for name in "xyz") > 1 for c in set(out + letters["z"])):
        out = letters["z"]
    terms, weights, num_rows = [], [], 0
    for index, path in enumerate(paths):
        first = num_rows if weighted else rows["z"][path.z]
        terms += [(rows["x"][path.x] + i, rows["y"][path.y] + j, first + k, s) for i, j, k, s in path.terms]
        weights += [(num_rows + k, index, rows["z"][path.z] + k) for k in range(path.z.dim)]
        num_rows += path.z.dim
    sizes = {name: sum(slot.dim for slot in slots) for name, slots in blocks.items()}
    between = num_rows if weighted else sizes["z"]
    return PathGroup(
        tuple(numbers),
        *(x, y, z, axes, letters, Channels(letters["x"], letters["y"], out)),
        sparse_product_infos(
            *zip(*terms, strict=True), in1_size=sizes["x"], in2_size=sizes["y"], out_size=between
        ),
        sparse_product_infos(
            *zip(*sorted(weights, key=lambda term: term[2]), strict=True),
            in1_size=num_rows, in2_size=len(paths), out_size=sizes["z"],
        )
        if weighted
        else None,
    )  # fmt: skip


def _described(number: int, path: Path) -> Iterator[str]:
    """A path and its terms as text, a line for each component of z."""
    weights = "" if path.weight is None else f", w[{path.weight}:{path.weight + path.weight_count}]"
    x, y, z = (f"{name}[{slot.start}:{slot.stop}]" for name, slot in (("x", path.x), ("y", path.y), ("z", path.z)))
    yield f"path {number}: {x}, {y}{weights} -> {z}"
    for k in range(path.z.dim):
        terms = [f"{'-' if s < 0 else '+'} {abs(s):.6g} x{i} y{j}" for i, j, kk, s in path.terms if kk == k]
        if terms:
            yield f"  z{k} = {' '.join(terms).removeprefix('+ ')}"


_cached: dict[str, ProgramInfos] = {}


def infos_of(program: Program) -> ProgramInfos:
    """The infos of a program, cached by its key."""
    if program.key not in _cached:
        _cached[program.key] = ProgramInfos(program)
    return _cached[program.key]
