"""Layers that rearrange features: extract, split, merge and sort irreps, and apply modules to parts."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any

import torch
from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_flag, check_integer, check_items, check_module, is_integer
from ...core.dtypes import broadcast_lead, of_one_dtype
from ...core.errors import ConfigError, IndexRangeError, IrrepsError, ShapeError
from ...e3nn_compat.torchscript import checked
from ...irreps.algebra import as_irrep, as_irreps
from ...irreps.layout import FlatLayout
from ..base.columns import Columns, Copies, columns_of, copies_between, joined, reordered, same_order, take, whole_row
from ..base.module import EquivariantModule
from ..base.weights import output_mask


class _Rearrangement(EquivariantModule):
    """Base of the layers that give one result, of ``irreps_out``, or several, of ``irreps_outs``."""

    def extra_repr(self) -> str:
        """Irreps and layout."""
        outs = getattr(self, "irreps_outs", None)
        result = self.irreps_out if outs is None else " | ".join(map(str, outs))
        return f"{self.irreps_in} -> {result} | {self.layout}"


@compile_mode("script")  # for e3nn.util.jit
class Extract(_Rearrangement):
    """Parts of the irreps groups of a feature, each as a tensor; a drop-in for ``e3nn.nn.Extract``.

    A part whose groups stand side by side is a view of the feature, without a copy.

    Args:
        irreps_in: Irreps of the feature.
        irreps_outs: Irreps of each part.
        instructions: For each part the numbers of its groups in ``irreps_in``.
        squeeze_out: Whether a single part is returned as a tensor, not as a tuple of one.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Raises:
        IrrepsError, ConfigError, IndexRangeError: Irreps that differ from the groups, or indices out of range.

    Example:
        >>> import torch
        >>> Extract("1e + 0e + 0e", ["0e", "0e"], [(1,), (2,)])(torch.tensor([0.0, 0.0, 0.0, 1.0, 2.0]))
        (tensor([1.]), tensor([2.]))
    """

    _torchscript = "traced"

    def __init__(
        self,
        irreps_in: Any,
        irreps_outs: Sequence[Any],
        instructions: Sequence[Sequence[int]],
        squeeze_out: bool = False,
        *,
        layout: str = "mul_ir",
    ) -> None:
        super().__init__(layout)
        self.irreps_in = as_irreps(irreps_in, "irreps_in")
        fix = "Give irreps and numbers of groups for each part."
        parts = check_items("irreps_outs", irreps_outs, "a list of irreps", fix)
        self.irreps_outs = tuple(as_irreps(irreps, f"irreps_outs[{n}]") for n, irreps in enumerate(parts))
        what, count = "a list of lists of groups", len(parts)
        self.instructions = check_items("instructions", instructions, what, fix, count=count)
        self._squeeze = check_flag("squeeze_out", squeeze_out) and len(self.irreps_outs) == 1
        self._flat = FlatLayout(self.irreps_in, layout)
        self._parts = [self._read(n, ins) for n, ins in enumerate(self.instructions)]

    def _read(self, number: int, instruction: Any) -> list[Columns]:
        name, expected, groups = f"instructions[{number}]", self.irreps_outs[number], len(self.irreps_in)
        fix = "Count the groups of irreps_in from 0."
        items = check_items(name, instruction, "a list of numbers of groups", fix)
        for i in items:
            if not is_integer(i) or not -groups <= int(i) < groups:
                raise IndexRangeError(f"{name} must hold numbers of the {groups} groups of irreps_in, got {i}. {fix}")
        numbers = [int(i) % groups for i in items]
        if [tuple(self.irreps_in[i]) for i in numbers] != [tuple(group) for group in expected]:
            raise IrrepsError(
                f"irreps_outs[{number}] must be the groups {[str(self.irreps_in[i]) for i in numbers]} that "
                f"instructions[{number}] names, got {expected}. Correct one of the two."
            )
        return columns_of(self._flat.slots, [Copies(i, 0, self.irreps_in[i].mul) for i in numbers], self.layout)

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps.dim]`` for each part; ShapeError or DTypeError for others."""
        x = checked(self._flat, "x", x)
        parts = tuple(take(x, part) for part in self._parts)
        return parts[0] if self._squeeze else parts


class ExtractIr(Extract):
    """All groups of one irrep; a drop-in for ``e3nn.nn.ExtractIr``.

    Args:
        irreps_in: Irreps of the feature.
        ir: The irrep.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Attributes:
        irreps_out: The groups of that irrep.

    Raises:
        IrrepsError: Irreps that cannot be read.

    Example:
        >>> import torch
        >>> ExtractIr("2x0e + 1o + 0e", "0e")(torch.tensor([1.0, 2.0, 0.0, 0.0, 0.0, 3.0]))
        tensor([1., 2., 3.])
    """

    def __init__(self, irreps_in: Any, ir: Any, *, layout: str = "mul_ir") -> None:
        irreps = as_irreps(irreps_in, "irreps_in")
        expected = as_irrep(ir)
        groups = [i for i, group in enumerate(irreps) if group.ir == expected]
        out = o3.Irreps([irreps[i] for i in groups])
        super().__init__(irreps, [out], [tuple(groups)], squeeze_out=True, layout=layout)
        self.irreps_out = out


class Split(_Rearrangement):
    """Splits a feature into adjacent parts, by numbers of irrep copies or by irreps.

    In 'mul_ir' all parts are views; in 'ir_mul' only parts that do not cut a group above degree 0.
    As with torch.split, they must not be changed in place where gradients are recorded.

    Args:
        irreps: Irreps of the feature.
        parts: For each part how many copies it has (one may be -1, for the rest), or its irreps as text.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Attributes:
        irreps_outs: Irreps of the parts, in the groups of the feature.

    Raises:
        IrrepsError, ConfigError: The parts do not make up the feature.

    Example:
        >>> Split("3x0e + 2x1o", [1, "2x0e + 1o", -1]).irreps_outs
        (1x0e, 2x0e+1x1o, 1x1o)
    """

    def __init__(self, irreps: Any, parts: Sequence[Any], *, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        self.irreps_in = as_irreps(irreps)
        self._flat = FlatLayout(self.irreps_in, layout)
        fix = "Give how many copies each part has, or its irreps."
        items = check_items("parts", parts, "a list of numbers or irreps", fix)
        bounds = list(accumulate(self._sizes(items), initial=0))
        copies = [Copies(i, 0, group.mul) for i, group in enumerate(self.irreps_in)]
        cuts = [copies_between(copies, first, last) for first, last in pairwise(bounds)]
        self.irreps_outs = tuple(o3.Irreps([(c.mul, self.irreps_in[c.group].ir) for c in cut]) for cut in cuts)
        for number, (expected, irreps_out) in enumerate(zip(items, self.irreps_outs, strict=True)):
            if not is_integer(expected) and as_irreps(expected).simplify() != irreps_out.simplify():
                raise IrrepsError(
                    f"parts[{number}] must be what follows in {self.irreps_in}, {irreps_out}, got {expected}. Order "
                    f"the parts as the feature has them; Extract takes groups in any order."
                )
        self._parts = [columns_of(self._flat.slots, cut, layout) for cut in cuts]
        plain = all(len(part) == 1 and part[0].slot is None for part in self._parts)
        self._widths = [part[0].length for part in self._parts] if plain and len(cuts) > 1 else None

    def _sizes(self, items: list[Any]) -> list[int]:
        """Number of copies of each part, -1 replaced by the rest; ConfigError if they do not make up the feature."""
        sizes = []
        for number, part in enumerate(items):
            name = f"parts[{number}]"
            what = "a number of copies, -1 for the rest, or irreps"
            size = check_integer(name, part, -1, what=what) if is_integer(part) else as_irreps(part, name).num_irreps
            sizes.append(size)
        total, known = self.irreps_in.num_irreps, sum(size for size in sizes if size >= 0)
        rest = sizes.count(-1)
        if rest > 1 or known > total or (not rest and known != total):
            raise ConfigError(
                f"parts must make up the {total} copies of {self.irreps_in}, got {items}. Give all, or -1 for the rest "
                f"once."
            )
        return [total - known if size < 0 else size for size in sizes]

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """``[..., irreps.dim]`` to ``[..., irreps_out.dim]`` for each part; ShapeError or DTypeError for others."""
        self._flat.check("x", x)
        if self._widths is not None:
            return x.split_with_sizes(self._widths, -1)
        return self._views(x)

    def _views(self, x: Tensor) -> tuple[Tensor, ...]:
        """Each part by a slice of its own, so it may be changed in place; its gradient is as wide as x."""
        return tuple(take(x, part) for part in self._parts)


class Merge(EquivariantModule):
    """Joins features and their irreps: the inverse of :class:`Split`.

    Args:
        irreps: Irreps of each feature.
        layout: 'mul_ir' (e3nn's) or 'ir_mul', of all.

    Attributes:
        irreps_out: The irreps of all features, concatenated; :class:`Sort` joins equal irreps.

    Raises:
        IrrepsError, ConfigError: Irreps that cannot be read, or no list of them.

    Example:
        >>> merge = Merge(["2x0e", "1o"])
        >>> merge(torch.ones(4, 2), torch.zeros(4, 3)).shape, merge.irreps_out
        (torch.Size([4, 5]), 2x0e+1x1o)
    """

    def __init__(self, irreps: Sequence[Any], *, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        items = check_items("irreps", irreps, "a list of irreps", "Give the irreps of each feature.")
        self.irreps_ins = tuple(as_irreps(one, f"irreps[{n}]") for n, one in enumerate(items))
        self.irreps_out = sum(self.irreps_ins, o3.Irreps([]))
        self._flat = {f"features[{n}]": FlatLayout(one, layout) for n, one in enumerate(self.irreps_ins)}

    def forward(self, *features: Tensor) -> Tensor:
        """``[..., irreps.dim]`` of each, which broadcast, to ``[..., irreps_out.dim]``; or ShapeError, DTypeError."""
        if len(features) != len(self._flat):
            raise ShapeError(
                f"features must be {len(self._flat)}, one for each of {list(map(str, self.irreps_ins))}, got "
                f"{len(features)}. Pass all of them, each as an argument."
            )
        if not features:
            raise ShapeError("features must be at least one, got none. Build the layer with irreps.")
        for (name, flat), value in zip(self._flat.items(), features, strict=True):
            flat.check(name, value)
        tensors = dict(zip(self._flat, features, strict=True))
        tensors = dict(zip(tensors, of_one_dtype(**tensors), strict=True))
        first = features[0].shape[:-1]
        if any(value.shape[:-1] != first for value in features):
            lead = broadcast_lead(**{name: value.shape[:-1] for name, value in tensors.items()})
            tensors = {name: value.expand(*lead, value.shape[-1]) for name, value in tensors.items()}
        return torch.cat([*tensors.values()], -1)

    def extra_repr(self) -> str:
        """Irreps and layout."""
        return f"{' | '.join(map(str, self.irreps_ins))} -> {self.irreps_out} | {self.layout}"


class Sort(_Rearrangement):
    """Sorts groups in e3nn's order and joins equal irreps to one group; ``back`` undoes it.

    Args:
        irreps: Irreps of the feature.
        simplify: Whether to join equal irreps.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Attributes:
        irreps_out: Sorted, and simplified on request.
        groups: Indices of the groups of ``irreps`` in their new order.

    Raises:
        IrrepsError: Irreps that cannot be read.

    Example:
        >>> sort = Sort("1o + 2x0e + 2x1o")
        >>> sort.irreps_out, sort.groups
        (2x0e+3x1o, (1, 0, 2))
        >>> x = torch.randn(4, 11)
        >>> bool((sort.back(sort(x)) == x).all())
        True
    """

    def __init__(self, irreps: Any, *, simplify: bool = True, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        self.irreps_in = as_irreps(irreps)
        used = [i for i, (mul, _) in enumerate(self.irreps_in) if mul or not simplify]
        self.groups = tuple(sorted(used, key=lambda i: (self.irreps_in[i].ir, i)))  # stable, as e3nn sorts
        by_ir = [(ir, list(same)) for ir, same in groupby(self.groups, key=lambda i: self.irreps_in[i].ir)]
        if not check_flag("simplify", simplify):
            by_ir = [(self.irreps_in[i].ir, [i]) for i in self.groups]
        self._joined = [same for _, same in by_ir]
        self.irreps_out = o3.Irreps([(sum(self.irreps_in[i].mul for i in same), ir) for ir, same in by_ir])
        self._flat, self._out = FlatLayout(self.irreps_in, layout), FlatLayout(self.irreps_out, layout)
        moved = [(target, first, i) for target, same in enumerate(self._joined) for first, i in self._firsts(same)]
        back = [Copies(target, first, self.irreps_in[i].mul) for target, first, i in sorted(moved, key=lambda p: p[2])]
        self._back = columns_of(self._out.slots, back, layout)
        there = [Copies(i, 0, self.irreps_in[i].mul) for i in self.groups]
        self._there = columns_of(self._flat.slots, there, layout)
        self._wholes = [whole_row(columns, self._flat.dim) for columns in (self._there, self._back)]

    def _firsts(self, same: list[int]) -> list[tuple[int, int]]:
        """The first copy of each group within the group that joins them."""
        bounds = accumulate((self.irreps_in[i].mul for i in same), initial=0)
        return list(zip(bounds, same, strict=False))

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError if the feature does not fit."""
        self._flat.check("x", x)
        if self.layout == "mul_ir" or all(len(same) == 1 for same in self._joined):
            return reordered(x, self._there, self._wholes[0])
        blocks = [
            x.narrow(-1, slot.start, slot.mul * slot.dim).reshape(*x.shape[:-1], slot.dim, slot.mul)
            for slot in self._flat.slots
        ]
        joined = [torch.cat([blocks[i] for i in same], -1).flatten(-2) for same in self._joined]
        return torch.cat(joined, -1)

    def back(self, x: Tensor) -> Tensor:
        """``[..., irreps_out.dim]`` to ``[..., irreps.dim]``, the inverse of ``forward``, with the same errors."""
        self._out.check("x", x)
        return reordered(x, self._back, self._wholes[1])


@compile_mode("trace")  # for e3nn.util.jit
class Identity(_Rearrangement):
    """The feature itself; a drop-in for ``e3nn.nn.Identity``.

    Args:
        irreps_in, irreps_out: Equal irreps.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Attributes:
        irreps_in, irreps_out: Simplified in 'mul_ir'.
        output_mask: ``[irreps_out.dim]`` of ones.

    Raises:
        IrrepsError: The irreps differ.

    Example:
        >>> Identity("1o + 2x1o", "3x1o")
        Identity(3x1o -> 3x1o | mul_ir)
    """

    _torchscript = "traced"
    output_mask: Tensor

    def __init__(self, irreps_in: Any, irreps_out: Any, *, layout: str = "mul_ir") -> None:
        super().__init__(layout)
        both = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        self.irreps_in, self.irreps_out = (joined(irreps, layout) for irreps in both)
        self._flat = FlatLayout(self.irreps_in, layout)
        if not same_order(*both, layout):
            raise IrrepsError(
                f"irreps_out must be irreps_in, {both[0]}, got {both[1]}. Use Sort for another order or grouping."
            )
        self.register_buffer("output_mask", output_mask(self.irreps_out, set(range(len(self.irreps_out)))))

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]``, as it is; ShapeError or DTypeError if the feature does not fit."""
        return checked(self._flat, "features", features)


class Separable(_Rearrangement):
    """Applies a module to each part of a feature, and joins the results.

    Args:
        irreps: Irreps of the feature.
        parts: As of :class:`Split`.
        modules: One for each part; None leaves it as it is. A module with ``irreps_in``, ``irreps_out`` or ``layout``
            must fit; without ``irreps_out`` it must keep the irreps of its part.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Attributes:
        irreps_in, irreps_out: Irreps of the feature and of the result.

    Raises:
        IrrepsError, ConfigError: Parts that do not make up the feature, or modules that do not fit them.

    Example:
        >>> from eqlayers import Linear
        >>> Separable("4x0e + 2x1o", ["4x0e", "2x1o"], [Linear("4x0e", "8x0e"), None]).irreps_out
        8x0e+2x1o
    """

    def __init__(
        self, irreps: Any, parts: Sequence[Any], modules: Sequence[torch.nn.Module | None], *, layout: str = "mul_ir"
    ) -> None:
        super().__init__(layout)
        self.split = Split(irreps, parts, layout=layout)
        self.irreps_in = self.split.irreps_in
        fix, count = "Give one for each part, None if it stays as it is.", len(self.split.irreps_outs)
        items = check_items("modules", modules, "a list of modules or None", fix, count=count)
        outs = []
        for number, (part, module) in enumerate(zip(self.split.irreps_outs, items, strict=True)):
            outs.append(part if module is None else self._fitting(f"modules[{number}]", module, part))
        self.parts = torch.nn.ModuleList(torch.nn.Identity() if module is None else module for module in items)
        self.merge = Merge(outs, layout=layout)
        self.irreps_out = self.merge.irreps_out

    def _fitting(self, name: str, module: Any, part: o3.Irreps) -> o3.Irreps:
        check_module(name, module)
        irreps = getattr(module, "irreps_in", part)
        if isinstance(irreps, o3.Irreps) and not same_order(irreps, part, self.layout):
            raise IrrepsError(
                f"{name} must take the irreps of its part, {part}, got {irreps}. Correct parts or module."
            )
        layout = getattr(module, "layout", self.layout)
        if isinstance(layout, str) and layout != self.layout:
            raise ConfigError(f"{name} must have layout={self.layout!r}, got {layout!r}. Build it with that layout.")
        return as_irreps(getattr(module, "irreps_out", part), f"irreps_out of {name}")

    def forward(self, x: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; ShapeError or DTypeError where they do not fit."""
        self.split._flat.check("x", x)
        parts = self.split._views(x)  # modules may change them in place
        return self.merge(*(module(part) for module, part in zip(self.parts, parts, strict=True)))
