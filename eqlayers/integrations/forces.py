"""Check laws of forces of any model: they are a gradient, and forces and torques sum to zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.checks import check_floating, check_function
from ..core.errors import ShapeError
from ..testing.derivatives import gradients

#: Largest relative error of numerical differences of forces, above their error in float32.
MISSED = 0.01


class ForceCheck(NamedTuple):
    """Deviations of forces from the laws of a potential, relative to the sizes of the summed terms.

    Attributes:
        asymmetry: Asymmetry of the derivatives of forces by positions, along two random directions: 0 for a gradient.
            If autograd misses a part of the forces, the deviation of these derivatives from numerical differences.
        force: Sum of all forces: 0 for an energy that is invariant under translation.
        torque: Sum of all torques: 0 for an energy that is invariant under rotation; without meaning for periodic
            structures.
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
        energy: Function of positions ``[A, 3]``, twice differentiable; its result is summed.
        positions: ``[A, 3]``, positions of one structure.

    Raises:
        ShapeError, DTypeError: The positions have another shape or dtype.

    Example:
        >>> check_forces(lambda pos: (pos[:1] - pos).square().sum(1).sin(), torch.randn(4, 3).double()).force < 1e-12
        True
    """
    check_function("energy", energy)
    check_floating("positions", positions, "[A, 3]")
    if positions.ndim != 2 or positions.shape[1] != 3:
        raise ShapeError(f"positions must be [A, 3], got {list(positions.shape)}. Give one row for each atom.")
    generator = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        u, v = (torch.randn(positions.shape, generator=generator, dtype=torch.float64).to(positions) for _ in range(2))
        pos = positions.detach().clone().requires_grad_()
        slope = gradients(energy(pos).sum(), [pos])[0]
        along = [torch.zeros_like(pos)] * 2
        if slope.requires_grad:  # false for a linear energy
            sums = ((slope * direction).sum() for direction in (u, v))
            along = [torch.autograd.grad(one, pos, retain_graph=True, materialize_grads=True)[0] for one in sums]
        step = torch.finfo(positions.dtype).eps ** (1 / 3)  # optimal step of central differences
        ends = [(pos + shift * v).detach().requires_grad_() for shift in (step, -step)]
        far, near = (gradients(energy(end).sum(), [end])[0].detach() for end in ends)
    forces, fixed = -slope.detach().double(), positions.detach().double()
    first, second = ((direction * column).double() for direction, column in ((v, along[0]), (u, along[1])))
    differences = (u * (far - near)).double() / (2 * step)
    missed = _share(differences.sum() - first.sum(), torch.stack([differences, first]))
    torques = torch.linalg.cross(fixed - fixed.mean(0), forces)
    asymmetry = _share(first.sum() - second.sum(), torch.stack([first, second]))
    asymmetry = max(asymmetry, missed if missed > MISSED else 0.0)
    return ForceCheck(asymmetry, _share(forces.sum(0), forces), _share(torques.sum(0), torques))


def _share(rest: Tensor, terms: Tensor) -> float:
    """Largest entry of ``rest`` relative to the sum of magnitudes of ``terms``."""
    whole = float(terms.abs().sum())
    return float(rest.abs().max()) / whole if whole else 0.0
