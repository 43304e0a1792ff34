"""How far a function is from commuting with rotations and reflections, as one number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.checks import (
    check_choice,
    check_floating,
    check_function,
    check_integer,
    check_items,
    check_seed,
    got,
    is_integer,
)
from ..core.errors import ConfigError, ShapeError
from ..irreps.algebra import as_irreps, representation_matrix
from ..irreps.layout import FlatLayout, to_ir_mul, to_mul_ir


def random_orthogonal(seed: int = 0, determinant: int = 1) -> Tensor:
    """A Haar-random rotation (determinant 1) or rotation times inversion (-1), ``[3, 3]`` float64.

    Raises:
        ConfigError: Another determinant, or a seed that is no count.

    Example:
        >>> round(torch.linalg.det(random_orthogonal(3, -1)).item(), 9)
        -1.0
    """
    if not is_integer(determinant) or determinant not in (1, -1):
        raise ConfigError(f"determinant must be 1 or -1, got {got(determinant)}. Pass -1 to turn and invert.")
    generator = torch.Generator().manual_seed(check_seed("seed", seed))
    gaussian = torch.randn(3, 3, generator=generator, dtype=torch.float64, device="cpu")
    q, r = torch.linalg.qr(gaussian)
    q = q * r.diagonal().sign()
    return q * torch.linalg.det(q).sign() * determinant


def equivariance_residual(
    fn: Callable[..., Tensor],
    irreps_in: Sequence[Any],
    irreps_out: Any,
    inputs: Sequence[Tensor] | None = None,
    *,
    determinant: int = 1,
    layout: str = "mul_ir",
    batch: int = 4,
    seed: int = 0,
) -> float:
    r"""Relative difference :math:`\max|f(D x) - D f(x)| / \max|f(x)|`, in the dtype of the inputs (float64 by default).

    Args:
        fn: Function of one tensor per entry of ``irreps_in``.
        irreps_in: Irreps of the arguments.
        irreps_out: Irreps of the result.
        inputs: ``[..., dim]`` each; None draws normal float64 numbers.
        determinant: 1 for a rotation, -1 for a rotation times the inversion.
        layout: Layout of all tensors.
        batch: Rows that are drawn.
        seed: Seed of inputs and rotation; global random state is not touched.

    Returns:
        The residual: about 1e-15 in float64 for an equivariant function, 0.1 to 1 for another.

    Raises:
        IrrepsError: Irreps that cannot be read. ConfigError: An option out of range. ShapeError, DTypeError: The inputs
            do not fit.

    Example:
        >>> equivariance_residual(lambda x: 2 * x, ["1o"], "1o") < 1e-12
        True
        >>> equivariance_residual(lambda x: x.abs(), ["1o"], "1o") > 1e-3
        True
    """
    check_choice("layout", layout, ("mul_ir", "ir_mul"))
    check_function("fn", fn, "a function of one tensor per entry of irreps_in")
    fix = "Pass a list, also for one argument."
    ins = [as_irreps(i, "irreps_in") for i in check_items("irreps_in", irreps_in, "a list of irreps", fix)]
    out = as_irreps(irreps_out, "irreps_out")
    matrix, batch = random_orthogonal(seed, determinant), check_integer("batch", batch, 1)
    generator = torch.Generator().manual_seed(seed)
    if inputs is None:
        shapes = [(batch, irreps.dim) for irreps in ins]
        inputs = [torch.randn(s, generator=generator, dtype=torch.float64, device="cpu") for s in shapes]
    inputs = check_items("inputs", inputs, "a list of tensors, or None", fix)
    if len(inputs) != len(ins):
        raise ShapeError(f"inputs must hold {len(ins)} tensors, as irreps_in, got {len(inputs)}. Give one for each.")
    for number, (x, irreps) in enumerate(zip(inputs, ins, strict=True)):
        FlatLayout(irreps, layout).check(f"inputs[{number}]", check_floating(f"inputs[{number}]", x, "[..., dim]"))

    def turned(x: Tensor, irreps: Any) -> Tensor:
        d = representation_matrix(irreps, matrix).to(x)
        return x @ d.T if layout == "mul_ir" else to_ir_mul(to_mul_ir(x, irreps) @ d.T, irreps)

    plain = check_floating("the result of fn", fn(*inputs), "[..., dim]")
    FlatLayout(out, layout).check("the result of fn", plain)
    before = fn(*(turned(x, irreps) for x, irreps in zip(inputs, ins, strict=True)))
    difference = (before - turned(plain, out)).abs().max()
    return float(difference.detach() / plain.detach().abs().max().clamp(min=torch.finfo(plain.dtype).tiny))
