"""Neighbour lists of molecules in plain torch: dense distances per molecule and a mask, no compiled extension.

Quadratic in the atoms of one molecule, which for molecules of up to a few hundred atoms beats a cell list.
"""

from __future__ import annotations

import torch
from torch import Tensor

from eqlayers.checks import check_floating, check_number, check_tensor, got
from eqlayers.errors import DataError, DTypeError, ShapeError
from eqlayers.keywords import named_arguments

__all__ = ["radius_graph"]

_MAX_PAIRS = 1 << 20  # padded pairs per block: bounds the memory to about 50 MB, whatever the number of molecules


def check_cutoff(cutoff: float) -> float:
    """Return `cutoff` as a float, or raise ConfigError unless it is positive and finite."""
    return check_number("cutoff", cutoff, above=0, unit=" of Angstrom", fix="Common values are 4 to 6.")


@named_arguments
def radius_graph(pos: Tensor, cutoff: float, n_atoms: Tensor | None = None) -> Tensor:
    """All ordered pairs of atoms of the same molecule that are closer than a cutoff.

    Distances are evaluated in float64 whatever the dtype of `pos`, so the list does not depend on the device or on the
    order of the atoms. Works on any device.

    Args:
        pos: Positions in Angstrom, `[A, 3]`, molecule after molecule.
        cutoff: Distance in Angstrom; a pair at exactly this distance is not an edge.
        n_atoms: Number of atoms of every molecule, `[G]`, summing to A; one molecule if None.

    Returns:
        `edge_index` `[2, E]` int64, rows (src, dst): dst receives from src. Both directions, no self loops, sorted by
        dst and then by src.

    Raises:
        ShapeError: If `pos` is not `[A, 3]` or `n_atoms` does not sum to A.
        ConfigError: If the cutoff is not positive and finite.
        DataError: If a position is not finite, or two atoms coincide.

    Example:
        >>> water = torch.tensor([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]])
        >>> radius_graph(water, cutoff=1.2).tolist()
        [[1, 2, 0, 0], [0, 0, 1, 2]]
    """
    cutoff = check_cutoff(cutoff)
    check_floating("pos", pos, "[A, 3]")
    if pos.dim() != 2 or pos.shape[1] != 3:
        raise ShapeError(f"pos must be [A, 3], got {list(pos.shape)}. Pass one row of x, y, z per atom.")
    if n_atoms is None:
        n_atoms = torch.tensor([len(pos)], device=pos.device)
    if check_tensor("n_atoms", n_atoms, "[G]").is_floating_point() or n_atoms.dtype == torch.bool:
        raise DTypeError(f"n_atoms must be integers [G], got {got(n_atoms)}. Convert it with `.long()`.")
    if n_atoms.dim() != 1 or bool((n_atoms < 0).any()) or int(n_atoms.sum()) != len(pos):
        raise ShapeError(
            f"n_atoms must be [G], none negative, summing to the {len(pos)} rows of pos, got {list(n_atoms.shape)} "
            f"summing to {int(n_atoms.sum())}. Pass the number of atoms of every molecule."
        )
    bad = ~torch.isfinite(pos).all(dim=1)
    if bool(bad.any()):
        raise DataError(
            f"pos: expected finite positions; {int(bad.sum())} atoms have NaN or inf, the first in row "
            f"{int(bad.nonzero()[0])}; remove or repair these molecules"
        )
    n_atoms = n_atoms.to(device=pos.device, dtype=torch.int64)
    first = n_atoms.cumsum(0) - n_atoms
    blocks: list[Tensor] = []
    start = 0
    sizes: list[int] = n_atoms.tolist()
    while start < len(sizes):
        stop, width = start, 0
        while stop < len(sizes):
            width_next = max(width, sizes[stop])
            if stop > start and (stop - start + 1) * width_next**2 > _MAX_PAIRS:
                break
            width, stop = width_next, stop + 1
        blocks.append(_block(pos, cutoff, n_atoms[start:stop], first[start:stop], width))
        start = stop
    return torch.cat(blocks, dim=1) if blocks else torch.empty(2, 0, dtype=torch.int64, device=pos.device)


def _block(pos: Tensor, cutoff: float, n_atoms: Tensor, first: Tensor, width: int) -> Tensor:
    """Edges of consecutive molecules, padded to `width` atoms."""
    slot = torch.arange(width, device=pos.device)
    real = slot < n_atoms[:, None]  # [G, W]
    row = (first[:, None] + slot).where(real, 0)
    padded = pos.detach()[row].double()  # [G, W, 3]
    square = (padded[:, :, None] - padded[:, None]).square().sum(-1)  # [G, W, W]
    pair = real[:, :, None] & real[:, None] & (slot[:, None] != slot)
    if bool((pair & (square == 0)).any()):
        where = int((pair & (square == 0)).nonzero()[0, 0])
        raise DataError(
            f"pos: expected atoms at distinct places; two atoms coincide in the molecule that starts at row "
            f"{int(first[where])}; repair its geometry"
        )
    molecule, dst, src = (pair & (square < cutoff**2)).nonzero(as_tuple=True)
    return torch.stack([first[molecule] + src, first[molecule] + dst])
