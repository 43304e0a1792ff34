"""Layers that take parts out of features: groups in any order, or adjacent copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

from e3nn import o3
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_flag, check_integer, check_items, got, is_integer
from ...core.errors import ConfigError, IndexRangeError, IrrepsError
from ...e3nn_compat.torchscript import checked
from ...irreps.algebra import as_irreps
from ...irreps.layout import FlatLayout
from ..base.columns import Columns, Copies, columns_of, copies_between, take
from ..base.module import EquivariantModule


@compile_mode("script")  # for e3nn.util.jit
class Extract(EquivariantModule):
    """Parts of the irreps groups of a feature, each as a tensor; a drop-in for ``e3nn.nn.Extract``.

    A part whose groups stand side by side is a view of the feature, without a copy.

    Args:
        irreps_in: Irreps of the feature.
        irreps_outs: Irreps of each part.
        instructions: For each part the numbers of its groups in ``irreps_in``.
        squeeze_out: Whether a single part is returned as a tensor, not as a tuple of one.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.

    Raises:
        IrrepsError, ConfigError, IndexRangeError: Irreps that differ from the groups, or numbers of no group.

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
        self.instructions = check_items("instructions", instructions, "a list of lists of groups", fix)
        self._squeeze = check_flag("squeeze_out", squeeze_out) and len(self.irreps_outs) == 1
        if len(self.instructions) != len(self.irreps_outs):
            raise ConfigError(
                f"instructions must be as many as irreps_outs, {len(self.irreps_outs)}, got {len(self.instructions)}. "
                f"{fix}"
            )
        self._flat = FlatLayout(self.irreps_in, layout)
        self._parts = [self._read(n, ins) for n, ins in enumerate(self.instructions)]

    def _read(self, number: int, instruction: Any) -> list[Columns]:
        name, wanted, groups = f"instructions[{number}]", self.irreps_outs[number], len(self.irreps_in)
        fix = "Count the groups of irreps_in from 0."
        items = check_items(name, instruction, "a list of numbers of groups", fix)
        for i in items:
            if not is_integer(i) or not -groups <= int(i) < groups:
                raise IndexRangeError(f"{name} must hold numbers of the {groups} groups of irreps_in, got {i}. {fix}")
        numbers = [int(i) % groups for i in items]
        if [tuple(self.irreps_in[i]) for i in numbers] != [tuple(group) for group in wanted]:
            raise IrrepsError(
                f"irreps_outs[{number}] must be the groups {[str(self.irreps_in[i]) for i in numbers]} that "
                f"instructions[{number}] names, got {wanted}. Correct one of the two."
            )
        return columns_of(self._flat.slots, [Copies(i, 0, self.irreps_in[i].mul) for i in numbers], self.layout)

    def forward(self, x: Tensor) -> tuple[Tensor, ...] | Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps.dim]`` for each part.

        Raises:
            ShapeError, DTypeError: The feature does not fit the layer.
        """
        x = checked(self._flat, "x", x)
        parts = tuple(take(x, part) for part in self._parts)
        return parts[0] if self._squeeze else parts

    def extra_repr(self) -> str:
        """Irreps and layout."""
        return f"{self.irreps_in} -> {' | '.join(map(str, self.irreps_outs))} | {self.layout}"


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
        try:
            wanted = o3.Irrep(ir)
        except Exception:
            raise IrrepsError(f"ir must be an irrep such as '1o', got {got(ir)}. Write degree and parity.") from None
        groups = [i for i, group in enumerate(irreps) if group.ir == wanted]
        out = o3.Irreps([irreps[i] for i in groups])
        super().__init__(irreps, [out], [tuple(groups)], squeeze_out=True, layout=layout)
        self.irreps_out = out


class Split(EquivariantModule):
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
        ends = list(accumulate(self._sizes(items), initial=0))
        copies = [Copies(i, 0, group.mul) for i, group in enumerate(self.irreps_in)]
        cuts = [copies_between(copies, first, last) for first, last in pairwise(ends)]
        self.irreps_outs = tuple(o3.Irreps([(c.mul, self.irreps_in[c.group].ir) for c in cut]) for cut in cuts)
        for number, (wanted, irreps_out) in enumerate(zip(items, self.irreps_outs, strict=True)):
            if not is_integer(wanted) and as_irreps(wanted).simplify() != irreps_out.simplify():
                raise IrrepsError(
                    f"parts[{number}] must be what follows in {self.irreps_in}, {irreps_out}, got {wanted}. Order the "
                    f"parts as the feature has them; Extract takes groups in any order."
                )
        self._parts = [columns_of(self._flat.slots, cut, layout) for cut in cuts]
        plain = all(len(part) == 1 and part[0].slot is None for part in self._parts)
        self._widths = [part[0].length for part in self._parts] if plain and len(cuts) > 1 else None

    def _sizes(self, items: list[Any]) -> list[int]:
        """Copies of each part."""
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
        """``[..., irreps.dim]`` to ``[..., irreps_out.dim]`` for each part.

        Raises:
            ShapeError, DTypeError: The feature does not fit the layer.
        """
        self._flat.check("x", x)
        if self._widths is not None:
            return x.split_with_sizes(self._widths, -1)
        return self._views(x)

    def _views(self, x: Tensor) -> tuple[Tensor, ...]:
        """Each part alone, which may be changed in place; its gradient is a whole row."""
        return tuple(take(x, part) for part in self._parts)

    def extra_repr(self) -> str:
        """Irreps and layout."""
        return f"{self.irreps_in} -> {' | '.join(map(str, self.irreps_outs))} | {self.layout}"
