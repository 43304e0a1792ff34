"""Random sparse products for tests: term lists with empty rows, repeated rows, and rows that nothing names."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..info.build import sparse_product_infos
from ..info.structs import SparseProductInfo
from ..ops.table import channels_of

Infos = tuple[SparseProductInfo, SparseProductInfo, SparseProductInfo]


def random_infos(rows: tuple[int, int, int] = (3, 4, 5), terms: int = 9, seed: int = 0) -> Infos:
    """Infos of a random term list; the first and the last row of each operand and of the result stay unnamed.

    Example:
        >>> random_infos(terms=4)[0].num_terms
        4
    """
    generator = torch.Generator().manual_seed(seed)

    def index(size: int) -> Tensor:
        low, high = (1, size - 1) if size > 2 else (0, size)
        return torch.randint(low, max(high, low + 1), (terms,), generator=generator, device="cpu")

    scale = torch.randn(terms, generator=generator, dtype=torch.float64, device="cpu")
    first, second, out = (index(size) for size in rows)
    return sparse_product_infos(first, second, out, scale, in1_size=rows[0], in2_size=rows[1], out_size=rows[2])


def random_product(
    product: str,
    batched: Sequence[bool | int] = (True, True),
    *,
    rows: tuple[int, int, int] = (3, 4, 5),
    terms: int = 9,
    batch: Sequence[int] = (4,),
    extents: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Infos]:
    """Operands and infos of a random product: ``(x, y, infos)``.

    Args:
        product: Name or channel spec.
        batched: Whether operand 1, 2 has the batch axes.
        rows, terms: Sizes of the sparse axes, number of terms.
        batch: Lengths of the batch axes.
        extents: Length of each channel letter; 3, 2, 5, ... by default.
        dtype, requires_grad: Of the operands.
        seed: Seed; global random state is not touched.

    Example:
        >>> x, y, infos = random_product("vecmat", batched=(True, False))
        >>> x.shape, y.shape
        (torch.Size([4, 3, 3]), torch.Size([4, 3, 2]))
    """
    channels = channels_of(product)
    letters = sorted(set("".join(channels)))
    sizes = {c: (3, 2, 5, 4)[i % 4] for i, c in enumerate(letters)} | (extents or {})
    generator = torch.Generator().manual_seed(seed + 1)
    operands = []
    for flag, part, size in zip(batched, channels, rows, strict=False):
        shape = [*(batch if flag else ()), size, *(sizes[c] for c in part)]
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        operands.append(drawn.to(dtype).requires_grad_(requires_grad))
    return operands[0], operands[1], random_infos(rows, terms, seed)
