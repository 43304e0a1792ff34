"""Group theory, taken from the installed e3nn, in float64: irreps, Clebsch-Gordan blocks, normalisation.

Signs of ``wigner_3j`` differ between e3nn versions, so coefficients always come from the installed e3nn, never
from a stored table.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from e3nn import o3

from ..core.checks import check_integer, check_items, got
from ..core.errors import IrrepsError


def as_irreps(value: Any, name: str = "irreps") -> o3.Irreps:
    """Read irreps: a string, ``o3.Irreps``, or what ``o3.Irreps`` accepts; IrrepsError if e3nn cannot read it."""
    if isinstance(value, o3.Irreps):
        return value
    note = ""
    try:
        if value is not None:  # e3nn reads None as no irreps
            return o3.Irreps(value)
    except Exception as error:
        note = f" (e3nn says: {' '.join(str(error).split())[:200] or type(error).__name__})"
    raise IrrepsError(
        f"{name} must be irreps such as '16x0e + 8x1o' (multiplicity x degree, parity e or o), got {got(value)}{note}. "
        f"Write them so, or as pairs (multiplicity, irrep)."
    )


def as_irrep(value: Any, name: str = "ir") -> o3.Irrep:
    """Read one irrep: a text such as '1o', ``o3.Irrep``, or a pair (degree, parity); or IrrepsError."""
    try:
        return o3.Irrep(value)
    except Exception:
        raise IrrepsError(f"{name} must be an irrep such as '1o', got {got(value)}. Write degree and parity.") from None


def read_all_irreps(values: Any, names: tuple[str, ...]) -> tuple[o3.Irreps, ...]:
    """The irreps of several operands, one for each name, or IrrepsError."""
    what, fix = f"the irreps of {', '.join(names)}", "Give the irreps of each."
    items = check_items("irreps", values, what, fix, IrrepsError, len(names))
    return tuple(as_irreps(irreps, f"irreps of {name}") for irreps, name in zip(items, names, strict=True))


def wigner_3j(l1: int, l2: int, l3: int) -> np.ndarray:
    r"""Clebsch-Gordan coefficients of the installed e3nn as an invariant tensor of Frobenius norm 1.

    .. math:: C_{ijk} = \sum_{abc} D^{l_1}_{ia}(g)\, D^{l_2}_{jb}(g)\, D^{l_3}_{kc}(g)\, C_{abc}

    Args:
        l1, l2, l3: Degrees with ``|l1 - l2| <= l3 <= l1 + l2``.

    Returns:
        ``[2 l1 + 1, 2 l2 + 1, 2 l3 + 1]`` float64, read-only. Components as e3nn orders them, l = 1 is (x, y, z).

    Source:
        ``e3nn.o3.wigner_3j``; Geiger and Smidt 2022, arXiv:2207.09453.

    Example:
        >>> np.round(wigner_3j(1, 1, 0)[:, :, 0] * 3**0.5, 12).tolist()
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]
    """
    l1, l2, l3 = (check_integer(n, l, 0, error=IrrepsError) for n, l in (("l1", l1), ("l2", l2), ("l3", l3)))
    if not abs(l1 - l2) <= l3 <= l1 + l2:
        raise IrrepsError(
            f"l3 must lie in [{abs(l1 - l2)}, {l1 + l2}] for l1={l1} and l2={l2}, got {l3}. Pick one there."
        )
    return _wigner_3j(l1, l2, l3)


@cache
def _wigner_3j(l1: int, l2: int, l3: int) -> np.ndarray:
    # e3nn builds intermediate tensors on the default device; coefficients belong on the CPU.
    with torch.device("cpu"):
        block = o3.wigner_3j(l1, l2, l3, dtype=torch.float64).numpy().copy()
    block[np.abs(block) < 1e-14] = 0.0  # rounding left by e3nn's change of basis; true entries are far larger
    block.flags.writeable = False
    return block


def tensor_product_paths(
    irreps_in1: Any, irreps_in2: Any, filter_ir_out: Any = None
) -> list[tuple[int, int, o3.Irrep]]:
    """Allowed paths ``(i_in1, i_in2, ir_out)`` with ir_out in the filter (None: any), in1 outermost; or IrrepsError.

    Example:
        >>> tensor_product_paths("2x0e + 1o", "1o", ["1o"])
        [(0, 0, 1o)]
    """
    keep = read_filter(filter_ir_out)
    return [
        (i, j, ir)
        for i, (_, ir1) in enumerate(as_irreps(irreps_in1, "irreps_in1"))
        for j, (_, ir2) in enumerate(as_irreps(irreps_in2, "irreps_in2"))
        for ir in ir1 * ir2
        if keep is None or ir in keep
    ]


def read_filter(value: Any) -> list[o3.Irrep] | None:
    """The irreps of a filter, any iterable, or IrrepsError; None for None, which keeps all."""
    if value is None:
        return None
    what, fix = "a list of irreps such as ['0e', '1o'], or None", "Pass a list, also for one irrep."
    return [
        as_irrep(ir, "an entry of filter_ir_out") for ir in check_items("filter_ir_out", value, what, fix, IrrepsError)
    ]


def representation_matrix(irreps: Any, matrix: np.ndarray | torch.Tensor) -> torch.Tensor:
    r"""The matrix that represents an orthogonal 3 x 3 matrix on ``irreps``, always in float64.

    Degrees above 1 come from :math:`D^l = (2l+1)\, C^T (D^{l-1} \otimes D^1)\, C`; a determinant of -1 adds the parity.

    Args:
        irreps: Irreps in e3nn's ``mul_ir`` layout.
        matrix: ``[3, 3]``, orthogonal to 64 rounding units of its dtype; for dtypes below float64 the nearest
            orthogonal matrix is used.

    Returns:
        ``[irreps.dim, irreps.dim]`` float64.

    Example:
        >>> representation_matrix("1o + 1e", -np.eye(3)).diagonal().tolist()
        [-1.0, -1.0, -1.0, 1.0, 1.0, 1.0]
    """
    tensor: Any = matrix
    if isinstance(matrix, (np.ndarray, list, tuple)):
        rounding = np.finfo(matrix.dtype).eps if isinstance(matrix, np.ndarray) and matrix.dtype.kind == "f" else 0.0
        try:
            tensor = torch.from_numpy(np.array(matrix, dtype=np.float64))
        except (TypeError, ValueError):
            tensor = None
    if not isinstance(tensor, torch.Tensor) or tensor.is_meta or tensor.is_complex():
        raise IrrepsError(f"matrix must be a tensor [3, 3] of numbers, got {got(matrix)}. Use torch.eye(3) or another.")
    if isinstance(matrix, torch.Tensor):
        rounding = torch.finfo(matrix.dtype).eps if matrix.is_floating_point() else 0.0
    square = tensor.detach().to("cpu", torch.float64)
    unit = torch.eye(3, dtype=torch.float64, device="cpu")
    if square.shape != (3, 3) or not torch.allclose(square @ square.T, unit, rtol=0, atol=max(1e-10, 32 * rounding)):
        shown = square.tolist() if square.numel() <= 9 else got(square)
        raise IrrepsError(f"matrix must be orthogonal [3, 3], got {shown}. Use e3nn.o3.rand_matrix() or its negative.")
    for _ in range(6 if rounding > np.finfo(np.float64).eps else 0):  # Newton's steps to the nearest orthogonal matrix
        square = square @ (1.5 * unit - 0.5 * square.T @ square)
    sign = 1 if torch.linalg.det(square) > 0 else -1
    irreps = as_irreps(irreps)
    degrees = [torch.eye(1, dtype=torch.float64, device="cpu"), sign * square]
    for l in range(2, max([ir.l for _, ir in irreps], default=0) + 1):
        c = torch.from_numpy(wigner_3j(l - 1, 1, l).copy())
        degrees.append((2 * l + 1) * torch.einsum("ijk,lmn,il,jm->kn", c, c, degrees[l - 1], degrees[1]))
    blocks = [degrees[ir.l] * (1 if sign == 1 else ir.p) for mul, ir in irreps for _ in range(mul)]
    return torch.block_diag(*blocks) if blocks else torch.zeros(0, 0, dtype=torch.float64, device="cpu")
