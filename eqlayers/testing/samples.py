"""Random sparse products for tests, with repeated rows and rows without terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.checks import check_dtype, check_flag, check_integer, check_items, check_seed, check_type
from ..core.errors import ConfigError
from ..sparse import channels_of, sparse_product_infos
from ..sparse.info import Infos


def random_infos(rows: Sequence[int] = (3, 4, 5), terms: int = 9, seed: int = 0) -> Infos:
    """Infos of a random term list, without terms of the first and last row of each operand and of the result.

    Raises:
        ConfigError: A number is not a positive integer.

    Example:
        >>> random_infos(terms=4)[0].num_terms
        4
    """
    generator = torch.Generator().manual_seed(check_seed("seed", seed))
    rows, terms = _counts("rows", rows, 3), check_integer("terms", terms, 0)

    def index(size: int) -> Tensor:
        low, high = (1, size - 1) if size > 2 else (0, size)
        return torch.randint(low, max(high, low + 1), (terms,), generator=generator, device="cpu")

    scale = torch.randn(terms, generator=generator, dtype=torch.float64, device="cpu")
    first, second, out = (index(size) for size in rows)
    return sparse_product_infos(first, second, out, scale, in1_size=rows[0], in2_size=rows[1], out_size=rows[2])


def _counts(name: str, values: Any, length: int | None = None) -> list[int]:
    """Check a list of positive integers, of a length if given."""
    what = "a list of counts" if length is None else f"{length} counts"
    counts = check_items(name, values, what, "Pass a list of integers.")
    if length is not None and len(counts) != length:
        raise ConfigError(f"{name} must be {what}, got {len(counts)}. Give one for each operand and the result.")
    return [check_integer(f"{name}[{i}]", value, 1) for i, value in enumerate(counts)]


def random_product(
    product: str,
    batched: Sequence[bool | int] = (True, True),
    *,
    rows: Sequence[int] = (3, 4, 5),
    terms: int = 9,
    batch: Sequence[int] = (4,),
    extents: dict[str, int] | None = None,
    dtype: torch.dtype = torch.float64,
    requires_grad: bool = False,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Infos]:
    """Random operands and infos of a sparse product: ``(x, y, infos)``.

    Args:
        product: Name or channel spec.
        batched: Whether operands 1 and 2 have the batch axes.
        rows, terms: Sizes of the sparse axes of both operands and the result, and number of terms.
        batch: Lengths of the batch axes.
        extents: Length of each channel letter; 3, 2, 5, ... by default.
        dtype, requires_grad: Properties of the operands.
        seed: Seed of all random numbers; global random state is not touched.

    Raises:
        ConfigError, DTypeError: The product is unknown, or an option is out of range.

    Example:
        >>> x, y, infos = random_product("vecmat", batched=(True, False))
        >>> x.shape, y.shape
        (torch.Size([4, 3, 3]), torch.Size([4, 3, 2]))
    """
    channels, dtype = channels_of(product), check_dtype("dtype", dtype)
    rows, batch = _counts("rows", rows, 3), _counts("batch", batch)
    what, fix = "two flags", "Give one for each operand."
    flags = [check_flag("batched", flag) for flag in check_items("batched", batched, what, fix)]
    if len(flags) != 2:
        raise ConfigError(f"batched must be {what}, got {len(flags)}. {fix}")
    fix = "Pass {'u': 3}, or None."
    lengths = check_type("extents", extents or {}, Mapping, "a mapping of letters to lengths", fix)
    lengths = {str(c): check_integer(f"extents[{c!r}]", length, 1) for c, length in lengths.items()}
    letters = sorted(set("".join(channels)))
    sizes = {c: (3, 2, 5, 4)[i % 4] for i, c in enumerate(letters)} | lengths
    generator = torch.Generator().manual_seed(check_seed("seed", seed) + 1)
    operands = []
    for flag, part, size in zip(flags, channels, rows, strict=False):
        shape = [*(batch if flag else ()), size, *(sizes[c] for c in part)]
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
        operands.append(drawn.to(dtype).requires_grad_(check_flag("requires_grad", requires_grad)))
    return operands[0], operands[1], random_infos(rows, terms, seed)
