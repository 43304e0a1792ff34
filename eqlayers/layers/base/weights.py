"""Weights: ownership, flat order (by instruction, row-major), and the output columns that have any."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core.checks import check_flag, check_optional, check_tensor, got, is_integer
from ...core.errors import ConfigError, IndexRangeError, ShapeError
from ...core.graph import refuse_edges

#: The order of the arguments that layers are called with.
ORDER = {"TensorProduct": "x, y, weight", "TensorProductConv": "x, edge_attr, weight, edge_index"}


class Weights:
    """Checks the weights of a call, and splits a flat vector into the weights of paths.

    Instructions have a ``path_shape``, and no weights if ``has_weight`` is False. ``owner`` is named in errors.
    """

    def __init__(self, owner: str, instructions: Sequence[Any]) -> None:
        self.owner = owner
        self.shapes = [tuple(i.path_shape) if getattr(i, "has_weight", True) else () for i in instructions]
        self.has = [getattr(i, "has_weight", True) for i in instructions]
        self.sizes = [math.prod(s) if has else 0 for s, has in zip(self.shapes, self.has, strict=True)]
        self.offsets = [sum(self.sizes[:i]) for i in range(len(self.sizes) + 1)]
        self.numel = self.offsets[-1]

    def read(self, weight: Tensor | list[Tensor] | None, stored: Tensor, internal: bool, shared: bool) -> Tensor:
        """The flat weight of a call: an argument, a list by instruction, or the stored weight of the layer.

        ShapeError if there is none or the shape does not fit, DTypeError for no tensor or one of integers.
        """
        if isinstance(weight, (list, tuple)):
            weight = self.joined(weight, shared)
        if weight is None:
            if self.numel > 0 and not internal:
                raise ShapeError(
                    f"{self.owner} must be given weight of shape [..., {self.numel}], it has no internal weights, got "
                    f"None. Pass weight=, or build it with internal_weights=True."
                )
            return stored
        if (
            isinstance(weight, Tensor)
            and (weight.shape == (self.numel,) if shared else weight.ndim > 1 and weight.shape[-1] == self.numel)
            and (self.numel == 0 or weight.is_floating_point())
        ):
            return weight
        if self.owner in ORDER:
            refuse_edges(f"weight of {self.owner}", weight, ORDER[self.owner])
        expected = f"[{self.numel}]" if shared else f"[..., {self.numel}] with at least one batch axis"
        check_tensor(f"weight of {self.owner}", weight, f"{expected}, or a list of tensors")
        fix = "Build the layer with shared_weights=False for weights per sample." if shared else "Add a batch axis."
        raise ShapeError(f"weight of {self.owner} must be {expected}, got {list(weight.shape)}. {fix}")

    def joined(self, weights: Tensor | list[Tensor] | None, shared: bool) -> Tensor | None:
        """Concatenate a list with a tensor per weighted instruction, None if it is empty; return a tensor or None."""
        if not isinstance(weights, (list, tuple)):
            return weights
        shapes = [s for s, has in zip(self.shapes, self.has, strict=True) if has]
        if len(weights) != len(shapes):
            raise ShapeError(
                f"a list of weights must have {len(shapes)} tensors, one per weighted instruction, got {len(weights)}. "
                f"Give one for each."
            )
        if not shapes:
            return None
        flat = []
        for number, (w, shape) in enumerate(zip(weights, shapes, strict=True)):
            size = math.prod(shape)
            fits = isinstance(w, Tensor) and (w.numel() == size if shared else size == 0 or w.numel() % size == 0)
            if not fits:
                got = list(w.shape) if isinstance(w, Tensor) else type(w).__name__
                raise ShapeError(
                    f"weight {number} of the list must be a tensor {list(shape)}{'' if shared else ' per sample'}, "
                    f"got {got}. Order the list as the instructions."
                )
            if size:
                flat.append(w.reshape(size) if shared else w.reshape(-1, size))
        return torch.cat(flat, -1) if flat else weights[0].reshape(0 if shared else (1, 0))

    def parts(self, weight: Tensor) -> list[Tensor]:
        """Views of the weights of all instructions, which all have some, by one split: its gradient is one tensor."""
        if len(self.shapes) == 1:
            return [weight.view(*weight.shape[:-1], *self.shapes[0])]
        parts = weight.split_with_sizes(self.sizes, -1)
        return [part.view(*part.shape[:-1], *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def view(self, weight: Tensor, instruction: int) -> Tensor:
        """View ``[..., *path_shape]`` of one instruction; IndexRangeError or ShapeError if it has none."""
        if not is_integer(instruction) or not 0 <= instruction < len(self.has):
            raise IndexRangeError(
                f"instruction must lie in [0, {len(self.has)}), the instructions of {self.owner}, got "
                f"{got(instruction)}. Count them as in the attribute instructions."
            )
        if not self.has[instruction]:
            raise ShapeError(
                f"instruction {instruction} of {self.owner} must have a weight to be viewed, got one without. "
                f"Use weight_views() for those that have."
            )
        start, shape = self.offsets[instruction], self.shapes[instruction]
        return weight.narrow(-1, start, math.prod(shape)).unflatten(-1, shape)


def product_shapes(instructions: Iterable[Any]) -> list[tuple[int, ...]]:
    """Shapes of weights of a tensor product: a matrix ``(.., w)`` for modes that end with w, else a vector."""
    shapes = [(tuple(ins.path_shape), ins.connection_mode) for ins in instructions if ins.has_weight]
    return [(math.prod(s[:-1]), s[-1]) if mode.endswith("w") else (math.prod(s),) for s, mode in shapes]


def ownership(internal: bool | None, shared: bool | None, has_weights: bool) -> tuple[bool, bool]:
    """e3nn's defaults for internal and shared weights; ConfigError for internal weights that are not shared."""
    internal = check_optional(check_flag, "internal_weights", internal)
    shared = check_optional(check_flag, "shared_weights", shared)
    if shared is None:
        shared = True
    if internal is None:
        internal = shared and has_weights
    if internal and not shared:
        raise ConfigError(
            "internal_weights=True must come with shared_weights=True, got shared_weights=False. "
            "Pass weights per sample, or share them."
        )
    return internal, shared


def output_mask(irreps: Any, reached: set[int]) -> Tensor:
    """``[irreps.dim]``: 1 in groups of index in ``reached``, else 0."""
    parts = [torch.full((mul * ir.dim,), float(i in reached)) for i, (mul, ir) in enumerate(irreps)]
    return torch.cat([torch.ones(0), *parts])
