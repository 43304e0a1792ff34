"""Lists of instructions from irreps: all allowed paths between groups of two inputs and an output."""

from __future__ import annotations

import math
from typing import Any

from e3nn import o3

from ..core.checks import check_choice, check_flag
from ..core.errors import IrrepsError
from ..hints.names import named_arguments
from .algebra import as_irreps, read_filter, tensor_product_paths
from .modes import MODES


@named_arguments
def paths(
    irreps_in1: Any,
    irreps_in2: Any,
    filter_ir_out: Any = None,
    *,
    irreps_out: Any = None,
    mode: str = "uvu",
    has_weight: bool = True,
) -> tuple[o3.Irreps, list[tuple[int, int, int, str, bool]]]:
    """All paths of a tensor product, as the arguments ``irreps_out`` and ``instructions`` of a layer.

    Without ``irreps_out`` every path has one output group, as in the convolutions of NequIP and MACE. The
    groups are sorted by irrep, so that a :class:`eqlayers.Linear` behind the product mixes groups that lie together.
    With ``irreps_out`` every path leads to every group of its irrep.

    Args:
        irreps_in1, irreps_in2: Irreps of the two inputs.
        filter_ir_out: Irreps of the outputs that are kept, as ``"0e + 1o"`` or a list; multiplicities do not count.
            None keeps all.
        irreps_out: Irreps of the output, or None to derive them.
        mode: Connection mode of all paths, see :class:`eqlayers.TensorProduct`. Modes with channels of the output
            alone ('uvw', 'uuw', 'u<vw') need ``irreps_out``.
        has_weight: Whether paths have weights.

    Returns:
        The irreps of the output, and ``(i_in1, i_in2, i_out, mode, has_weight)`` for each path. A product with them
        maps ``[..., irreps_in1.dim]`` and ``[..., irreps_in2.dim]`` to ``[..., irreps_out.dim]``.

    Raises:
        IrrepsError: Irreps that cannot be read, no path is left, or the multiplicities of a pair do not fit the mode.
        ConfigError: Another mode, or a mode that needs ``irreps_out``.

    Example:
        >>> paths("8x0e + 8x1o", "0e + 1o", "0e + 1o")
        (8x0e+8x0e+8x1o+8x1o,
         [(0, 0, 0, 'uvu', True), (0, 1, 2, 'uvu', True), (1, 0, 3, 'uvu', True), (1, 1, 1, 'uvu', True)])
        >>> from eqlayers import TensorProductConv
        >>> conv = TensorProductConv("8x0e + 8x1o", "0e + 1o", *paths("8x0e + 8x1o", "0e + 1o"), shared_weights=False)
        >>> conv.num_paths, conv.irreps_out
        (6, 8x0e+8x0e+8x1o+8x1o+8x1e+8x2e)
        >>> paths("8x0e", "1o", irreps_out="4x0e + 4x1o", mode="uvw")
        (4x0e+4x1o, [(0, 0, 1, 'uvw', True)])
    """
    first, second = as_irreps(irreps_in1, "irreps_in1"), as_irreps(irreps_in2, "irreps_in2")
    row, has_weight = MODES[check_choice("mode", mode, MODES)], check_flag("has_weight", has_weight)
    filtered = filter_ir_out
    if isinstance(filtered, (str, o3.Irreps)):
        filtered = as_irreps(filtered, "filter_ir_out")
        keep: list[o3.Irrep] | None = [ir for _, ir in filtered]
    else:
        filtered = keep = read_filter(filtered)
    pairs = tensor_product_paths(first, second, keep)
    if irreps_out is not None:
        out = as_irreps(irreps_out, "irreps_out")
        triples = sorted((i, j, k) for i, j, ir in pairs for k, (_, to) in enumerate(out) if to == ir)
    elif "w" in row.out:
        raise IrrepsError(
            f"irreps_out must be given for mode {mode!r}, whose outputs have channels of their own, got None. Pass "
            f"irreps_out=, or use 'uvu'."
        )
    else:
        muls = [math.prod(row.extents(first[i].mul, second[j].mul, 0)[c] for c in row.out) for i, j, _ in pairs]
        out, position, _ = o3.Irreps([(mul, ir) for mul, (*_, ir) in zip(muls, pairs, strict=True)]).sort()
        triples = [(i, j, position[k]) for k, (i, j, _) in enumerate(pairs)]
    if not triples:
        allowed = out if irreps_out is not None else "any irrep" if keep is None else filtered
        raise IrrepsError(
            f"some irrep of irreps_out must lie in irreps_in1 x irreps_in2, got {first} x {second} for {allowed}. "
            f"Add degrees, or check parities (spherical harmonics of degree l have parity (-1)^l)."
        )
    for i, j, k in triples:
        where = f"path {i} x {j} -> {k}"
        row.check(where, first[i].mul, second[j].mul, out[k].mul, has_weight)
    return out, [(i, j, k, mode, has_weight) for i, j, k in triples]
