"""Flat weight vectors: one order for all layers, instruction after instruction, row-major."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import DTypeError, IndexRangeError, ShapeError


class Weights:
    """Reads the weights of a call, and cuts a flat vector into the weights of paths.

    Args:
        owner: Name of the layer, for messages.
        instructions: Instructions with ``path_shape``; those whose ``has_weight`` is False take no place.
    """

    def __init__(self, owner: str, instructions: Sequence[Any]) -> None:
        self.owner = owner
        self.shapes = [tuple(i.path_shape) if getattr(i, "has_weight", True) else () for i in instructions]
        self.has = [getattr(i, "has_weight", True) for i in instructions]
        sizes = [math.prod(s) if has else 0 for s, has in zip(self.shapes, self.has, strict=True)]
        self.offsets = [sum(sizes[:i]) for i in range(len(sizes) + 1)]
        self.numel = self.offsets[-1]

    def read(self, weight: Tensor | list[Tensor] | None, own: Tensor, internal: bool, shared: bool) -> Tensor:
        """The flat weight of a call: given, listed by instruction, or the layer's own.

        Raises:
            ShapeError: None is given and the layer has none, or the shape does not fit. DTypeError: No tensor.
        """
        if weight is None:
            if self.numel > 0 and not internal:
                raise ShapeError(
                    f"{self.owner} must be given weight of shape [..., {self.numel}], it has no internal weights, got "
                    f"None. Pass weight=, or build it with internal_weights=True."
                )
            return own
        if isinstance(weight, (list, tuple)):
            weight = self._joined(weight, shared)
        if not isinstance(weight, Tensor):
            raise DTypeError(
                f"weight of {self.owner} must be a tensor or a list of tensors, got {type(weight).__name__}. "
                f"Wrap it with torch.as_tensor(...)."
            )
        want = f"[{self.numel}]" if shared else f"[..., {self.numel}] with at least one batch axis"
        fits = weight.shape == (self.numel,) if shared else weight.ndim > 1 and weight.shape[-1] == self.numel
        if not fits:
            fix = "Build the layer with shared_weights=False for weights per sample." if shared else "Add a batch axis."
            raise ShapeError(f"weight of {self.owner} must be {want}, got {list(weight.shape)}. {fix}")
        return weight

    def _joined(self, weights: Sequence[Tensor], shared: bool) -> Tensor:
        shapes = [s for s, has in zip(self.shapes, self.has, strict=True) if has]
        if len(weights) != len(shapes):
            raise ShapeError(
                f"a list of weights must have {len(shapes)} tensors, one per weighted instruction, got {len(weights)}. "
                f"Give one for each."
            )
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

    def view(self, weight: Tensor, instruction: int) -> Tensor:
        """View ``[..., *path_shape]`` of one instruction.

        Raises:
            IndexRangeError: There is no such instruction. ShapeError: The instruction has no weight.
        """
        if not 0 <= instruction < len(self.has):
            raise IndexRangeError(
                f"instruction must lie in [0, {len(self.has)}), the instructions of {self.owner}, got {instruction}. "
                f"Count them as in the attribute instructions."
            )
        if not self.has[instruction]:
            raise ShapeError(
                f"instruction {instruction} of {self.owner} must have a weight to be viewed, got one without. "
                f"Use weight_views() for those that have."
            )
        start, shape = self.offsets[instruction], self.shapes[instruction]
        return weight.narrow(-1, start, math.prod(shape)).unflatten(-1, shape)
