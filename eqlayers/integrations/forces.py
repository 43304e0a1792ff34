"""Laws for the forces of any model: they are a gradient, and they neither push nor turn the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import check_floating, check_function
from ..core.errors import ShapeError

#: Largest error of differences of forces, relative to their terms: more than their error in float32.
MISSED = 0.01


class ForceCheck(NamedTuple):
    """Deviations of forces from the laws of a potential, relative to the sizes of the summed terms.

    Attributes:
        asymmetry: Of the derivatives of forces by positions, along two random directions: 0 of a gradient. Where
            these derivatives are not the derivatives of the forces, which a part that autograd does not see leaves out,
            how far they are from differences.
        force: Sum of all forces: 0 of an energy that does not see where the structure is.
        torque: Sum of all torques: 0 of an energy that does not see how it is turned; of periodic structures, which
            have an orientation, it means nothing.
    """

    asymmetry: float
    force: float
    torque: float

    def __str__(self) -> str:
        return (
            f"forces: derivatives symmetric within {self.asymmetry:.1e}, sum of forces within {self.force:.1e}, of "
            f"torques within {self.torque:.1e}"
        )


def check_forces(energy: Callable[[Tensor], Tensor], positions: Tensor) -> ForceCheck:
    r"""Check the forces of an energy, and their derivatives.

    With :math:`J = \partial F / \partial r`, :math:`u^T J v = v^T J u` for all u and v.

    Args:
        energy: Of positions ``[A, 3]``, differentiable twice; what it gives is summed.
        positions: ``[A, 3]``, of one structure.

    Raises:
        ShapeError, DTypeError: The positions are others.

    Example:
        >>> check_forces(lambda pos: (pos[:1] - pos).square().sum(1).sin(), torch.randn(4, 3).double()).force < 1e-12
        True
    """
    check_function("energy", energy)
    check_floating("positions", positions, "[A, 3]")
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise ShapeError(f"positions must be [A, 3], got {list(positions.shape)}. Give one row for each atom.")
    made = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        u, v = (torch.randn(positions.shape, generator=made, dtype=torch.float64).to(positions) for _ in range(2))
        pos = positions.detach().clone().requires_grad_()
        slope = _slope(energy, pos)
        along = [torch.zeros_like(pos)] * 2
        if slope.requires_grad:  # the slope of a linear energy requires none
            along = [
                torch.autograd.grad((slope * way).sum(), pos, retain_graph=True, materialize_grads=True)[0]
                for way in (u, v)
            ]
        step = torch.finfo(positions.dtype).eps ** (1 / 3)  # of differences, where they err least
        far, near = (_slope(energy, (pos + way * v).detach().requires_grad_()).detach() for way in (step, -step))
    forces, places = -slope.detach().double(), positions.detach().double()
    first, second = ((way * column).double() for way, column in ((v, along[0]), (u, along[1])))
    differences = (u * (far - near)).double() / (2 * step)
    missed = _share(differences.sum() - first.sum(), torch.stack([differences, first]))
    torques = torch.linalg.cross(places - places.mean(0), forces)
    return ForceCheck(
        max(_share(first.sum() - second.sum(), torch.stack([first, second])), missed if missed > MISSED else 0.0),
        _share(forces.sum(0), forces),
        _share(torques.sum(0), torques),
    )


def _slope(energy: Callable[[Tensor], Tensor], pos: Tensor) -> Tensor:
    """Zero of an energy that does not look at positions."""
    total = energy(pos).sum()
    if not total.requires_grad:
        return torch.zeros_like(pos)
    return torch.autograd.grad(total, pos, create_graph=True, materialize_grads=True)[0]


def _share(rest: Tensor, terms: Tensor) -> float:
    whole = float(terms.abs().sum())
    return float(rest.abs().max()) / whole if whole else 0.0
