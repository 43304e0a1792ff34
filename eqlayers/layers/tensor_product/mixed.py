"""Paths that mix channels on GPUs: one kernel for the products of all inputs, then matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import torch
from torch import Tensor

from eqlayers_kernels.forms.program import Axis, Path, Program, Slot

from ...core.apply import run_by_row
from ...core.dtypes import ACCUMULATE
from ...core.forms.description import Form
from ...core.torch_internals import outside_of_autocast
from ...sparse.program import Cut, joined

#: The backend whose kernels have one channel of a row for each thread, so that none can sum over channels.
BACKEND = "triton"


class MixedPaths:
    """Paths 'uvw' with one channel of the second input: a kernel without weights, then a matrix for each block of z.

    The paths of a block of z lie side by side in the result of the kernel, component by component, so that the block is
    one batched matrix product.

    Args:
        program: All of its paths, which `can_split` accepts.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.groups: dict[Slot, list[Path]] = {}
        for path in program.paths:
            self.groups.setdefault(path.z, []).append(path)
        paths, start = [], 0
        for slot, group in self.groups.items():
            for k, path in product(range(slot.dim), group):
                terms = tuple((i, j, 0, value) for i, j, component, value in path.terms if component == k)
                axes = (Axis(path.x.mul, x=1, z=1),) if path.x.mul > 1 else ()
                if terms:
                    paths.append(Path(path.x, path.y, Slot(start, path.x.mul, 1), None, axes, terms))
                start += path.x.mul
        x, y, weights, _ = program.widths
        self.form = Form(Program(tuple(paths), (x, y, 0, start), program.layout))
        self._blocks = [slot.dim * sum(path.x.mul for path in group) for slot, group in self.groups.items()]
        listed = [Slot(path.weight or 0, 1, path.weight_count) for group in self.groups.values() for path in group]
        self._cut, self._weights = Cut(listed, weights), [slot.start for slot in listed]
        self._matrices = [sum(path.weight_count for path in group) for group in self.groups.values()]

    def __call__(self, x: Tensor, y: Tensor, w: Tensor, lead: tuple[int, ...], backend: str | None) -> Tensor:
        """Z ``[*lead, width]`` from x and y ``[..., width]``, whose leading axes broadcast, and w ``[width]``."""
        dtype = ACCUMULATE[x.dtype]
        with outside_of_autocast(x.device.type):
            operands = x.to(dtype), y.to(dtype), w.to(dtype)
            products = run_by_row(self.form, *operands[:2], lead, backend).reshape(-1, self.form.program.widths[3])
            parts = self._cut(operands[2]).parts
            matrices = torch.cat([parts[first] for first in self._weights]).split(self._matrices)
            blocks = {
                slot: torch.matmul(block.unflatten(1, (slot.dim, -1)).transpose(0, 1), matrix.view(-1, slot.mul))
                for slot, block, matrix in zip(self.groups, products.split(self._blocks, 1), matrices, strict=True)
            }
            z = joined(self.program, {slot: block.transpose(0, 1) for slot, block in blocks.items()}, operands)
        return z.to(x.dtype).reshape(*lead, z.shape[1])


def can_split(paths: Sequence[Path]) -> bool:
    """Whether `MixedPaths` has the paths: each is a matrix of weights after a product with one channel of y."""
    return any(axis.length > 1 for path in paths for axis in path.outer) and all(
        path.weight is not None
        and path.y.mul == 1
        and path.weight_count == path.x.mul * path.z.mul
        and not any(axis.x and axis.z for axis in path.axes)
        for path in paths
    )


def splits(device: torch.device, backend: str | None) -> bool:
    """Whether calls run by `MixedPaths`: on a GPU, or where its backend is named."""
    return backend == BACKEND or (backend is None and device.type == "cuda")
