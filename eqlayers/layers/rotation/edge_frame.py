"""The frame of an edge: Wigner D matrices that take features to where the edge points along the polar axis."""

from __future__ import annotations

from torch import Tensor

from ..base.module import FormulaModule
from .blocks import blocks_dim, check_degree, frame_formula
from .functions import run_frame


class EdgeFrame(FormulaModule):
    r"""Matrices :math:`D^l(e)` that rotate features into the frame of an edge, in which its direction is +y.

    .. math:: D^1(e)\, e / |e| = (0, 1, 0), \qquad x' = D^l(e)\, x

    The way back is the transpose, as the matrices are orthogonal. Row m = 0 of :math:`D^l` is the spherical harmonic
    :math:`Y_l(e)` of norm 1.

    The frame is fixed only up to a rotation about y, and no choice of it is continuous for all directions. What users
    compute must not depend on that choice, as :math:`D^T M D\, x` does not where M commutes with rotations about y; it
    is then smooth and equivariant. Here there are two charts, each the shortest rotation to one pole: one for
    directions above a seam at :math:`e_y = -0.37`, the other below. Both poles, and all directions of simple lattices,
    are away from the seam, and derivatives of every order are right at all of them. On the seam they belong to one
    chart, which is right for what does not depend on the choice.

    The zero vector has no frame: l = 0 has 1, and other blocks and all derivatives are 0, as
    :class:`SphericalHarmonics` has it; see there for what counts as zero. A vector's length changes nothing.

    Args:
        lmax: Largest degree, at most 12.
        backend: Name of a backend, or None for the best of the device.

    Attributes:
        lmax: Largest degree.
        dim: Length of the flat blocks, the sum of :math:`(2 l + 1)^2`.

    Raises:
        ConfigError, BackendError: A degree or a backend that there is not.

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655 (features in the frames of edges).

    Example:
        >>> import torch
        >>> frame = EdgeFrame(1)
        >>> edge = torch.tensor([0.0, 3.0, 4.0])
        >>> blocks = frame(edge)
        >>> blocks.shape, (blocks[1:].view(3, 3) @ edge).round()
        (torch.Size([10]), tensor([0., 5., 0.]))
    """

    def __init__(self, lmax: int, *, backend: str | None = None) -> None:
        super().__init__(backend=backend)
        self.lmax = check_degree(lmax)
        self.dim = blocks_dim(self.lmax)
        self._formulas = (frame_formula(self.lmax),)

    def forward(self, vectors: Tensor) -> Tensor:
        """``[..., 3]`` to flat blocks ``[..., dim]``: ``[2 l + 1, 2 l + 1]`` row-major, the smallest degree first.

        Raises:
            ShapeError, DTypeError: The vectors are no such tensor of floating-point numbers.
        """
        return run_frame(self._formulas[0], vectors, self.backend)

    def extra_repr(self) -> str:
        """Degree, width and backend."""
        return f"lmax {self.lmax}, {self.dim} numbers per edge, backend {self.backend or 'auto'}"
