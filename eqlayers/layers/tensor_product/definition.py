"""The definition of a tensor product of features: two sparse products for each group of paths, in float64.

The infos hold the Clebsch-Gordan coefficients of all paths as terms. The first product multiplies the components of x
and y along the terms, with the channels of both, and the second one multiplies the weights of the paths.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eqlayers_kernels.forms.program import Slot

from ...sparse import PathGroup, ProgramInfos, sparse_product


def blocks(x: Tensor, slots: Sequence[Slot], group: PathGroup, operand: str) -> Tensor:
    """``[N, width]`` in 'mul_ir' to the components of some blocks, channels last: ``[N, components, *channels]``."""
    copies = torch.cat([x[:, slot.start : slot.stop].reshape(len(x), slot.mul, slot.dim) for slot in slots], 2)
    axes = [group.axes[letter] for letter in group.letters[operand]]
    if any(axis.pairs for axis in axes):  # modes with pairs u < v of the copies: u of x, v of y
        return copies.mT[:, :, torch.triu_indices(slots[0].mul, slots[0].mul, 1)["xy".index(operand)]]
    return copies.mT.reshape(len(x), -1, *(axis.extent for axis in axes))


def weights_of(w: Tensor, group: PathGroup, infos: ProgramInfos) -> Tensor:
    """``[W]`` or ``[N, W]`` to the weights of the paths of a group, ``[1 or N, paths, *channels]``."""
    shape = [group.axes[letter].length for letter in group.letters["w"]]
    paths = [infos.program.paths[number] for number in group.paths]
    rows = w.reshape(-1, w.shape[-1])
    return torch.stack([rows.narrow(1, p.weight or 0, p.weight_count).unflatten(1, shape) for p in paths], 1)


def tensor_product(infos: ProgramInfos, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """``[N, in1.dim]``, ``[N, in2.dim]`` and ``[W]`` or ``[N, W]`` to ``[N, out.dim]``, all in 'mul_ir'.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453.
    """
    out = x.new_zeros(len(x), infos.program.widths[3])
    for group in infos:
        left, right = blocks(x, group.x, group, "x"), blocks(y, group.y, group, "y")
        z = sparse_product(str(group.channels), left, right, *group.terms)
        if group.weights is not None:
            z = sparse_product(str(group.weight_channels), z, weights_of(w, group, infos), *group.weights)
        else:  # without weights, channels of z alone do not exist, and other channels are summed
            z = torch.einsum(f"nt{group.channels.out}->nt{group.letters['z']}", z)
        parts = z.reshape(len(x), z.shape[1], -1).split([slot.dim for slot in group.z], 1)
        for slot, part in zip(group.z, parts, strict=True):
            out[:, slot.start : slot.stop] += part.mT.flatten(1)
    return out
