"""Nonlinearities that scale each irrep copy by a function of its norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn.util.jit import compile_mode
from torch import Tensor

from ...core.checks import check_flag, check_function, check_number, check_tensor, got
from ...core.errors import ConfigError, ShapeError
from ...e3nn_compat.torchscript import checked, is_tracing, narrowed, widened
from ..tensor_product.sub_products import ElementwiseTensorProduct
from .functions import in_float32, scaled_by, squares_of
from .module import CopyModule, Norm

#: The usual ``epsilon``, and norms up to which a copy counts as zero without ``normalize``.
SMALLEST = 1e-8


@compile_mode("trace")  # for e3nn.util.jit
class NormActivation(CopyModule):
    r"""Multiplies every irrep copy by a function of its norm; a drop-in for ``e3nn.nn.NormActivation``.

    .. math:: y_u = \frac{x_u}{n_u}\, \phi(n_u + b_u), \quad n_u = \max(|x_u|, \epsilon)

    Without ``normalize`` the copy is not divided by its norm, :math:`y_u = x_u\, \phi(|x_u| + b_u)`; e3nn's layer does
    not run then. Derivatives at zero treat the norm as constant: they are finite in every order.

    Args:
        irreps_in: Irreps of the features.
        scalar_nonlinearity: The function, of norms ``[..., num_irreps]`` to factors of that shape.
        normalize: Whether copies are divided by their norms.
        epsilon: Smallest norm, with normalize only; None for 1e-8.
        bias: Whether norms get a bias that is learned.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        biases: ``[num_irreps]``, 0 at first; absent without bias.
        norm, scalar_multiplier: For the keys of e3nn's state dict; they are not called.

    Raises:
        IrrepsError: The irreps cannot be read.
        ConfigError: An option, or an epsilon without normalize.

    Source:
        Thomas et al. 2018, arXiv:1802.08219, section 4.1.4; e3nn, arXiv:2207.09453.

    Example:
        >>> NormActivation("1x1o", torch.sigmoid)(torch.tensor([0.0, 0.0, 2.0]))
        tensor([0.0000, 0.0000, 0.8808])
    """

    _torchscript = "traced"

    def __init__(
        self,
        irreps_in: Any,
        scalar_nonlinearity: Callable[[Tensor], Tensor],
        normalize: bool = True,
        epsilon: float | None = None,
        bias: bool = False,
        *,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(irreps_in, layout, backend)
        self.irreps_out = self.irreps_in
        self.normalize, self.bias = check_flag("normalize", normalize), check_flag("bias", bias)
        if epsilon is not None and not self.normalize:
            raise ConfigError(f"epsilon must be None with normalize=False, got {got(epsilon)}. Leave one of them out.")
        epsilon = SMALLEST if epsilon is None and self.normalize else epsilon
        self.epsilon = None if epsilon is None else check_number("epsilon", epsilon, above=0, fix="Use 1e-8.")
        self.norm = Norm(self.irreps_in, squared=self.normalize, layout=layout, backend=backend)
        self.scalar_nonlinearity = check_function("scalar_nonlinearity", scalar_nonlinearity)
        if self.bias:
            self.biases = torch.nn.Parameter(torch.zeros(self.irreps_in.num_irreps))
        self.scalar_multiplier = ElementwiseTensorProduct(
            self.norm.irreps_out, self.irreps_in, layout=layout, backend=backend
        )

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to the same; ShapeError, DTypeError or DeviceError otherwise."""
        features = checked(self._flat, "features", features)
        if is_tracing():
            return self._traced(features)
        x, (biases,), dtype = in_float32("features", features, biases=self.biases if self.bias else None)
        if not self._flat.dim:
            return x.to(dtype, copy=True)
        norms = self._norms(squares_of(self._plan, x, self.backend)[1], torch.finfo(dtype).tiny)
        # in the dtype of the layer, as weights of the function
        factors = self.scalar_nonlinearity((norms if biases is None else norms + biases).to(dtype))
        check_tensor("the result of scalar_nonlinearity", factors, f"{list(norms.shape)}")
        if factors.shape != norms.shape:
            raise ShapeError(
                f"the result of scalar_nonlinearity must be {list(norms.shape)}, as its argument, got "
                f"{list(factors.shape)}. Pass a function of one number, such as torch.sigmoid."
            )
        factors = factors.to(norms.dtype)  # some functions compute in another under autocast
        numbers = factors / norms if self.normalize else factors
        return scaled_by(self._plan, x, numbers, x[..., :0], self.backend).to(dtype)

    def _traced(self, features: Tensor) -> Tensor:
        """The layer in plain torch, which TorchScript can hold, for all dtypes."""
        if not self._flat.dim:
            return features.clone()
        x = widened(features)
        axis = -1 if self.layout == "mul_ir" else -2  # of components
        shapes = {s: (s.mul, s.dim) if axis == -1 else (s.dim, s.mul) for s in self._flat.slots if s.mul}
        blocks = [x.narrow(-1, s.start, s.mul * s.dim).unflatten(-1, shape) for s, shape in shapes.items()]
        squares = torch.cat([block.square().sum(axis) for block in blocks], -1)
        norms = self._norms(squares, torch.finfo(features.dtype).tiny)
        biased = norms + widened(self.biases) if self.bias else norms
        factors = widened(self.scalar_nonlinearity(narrowed(biased, features)))
        numbers = (factors / norms if self.normalize else factors).split(self._counts[False], -1)
        pairs = zip(blocks, numbers, strict=True)
        return narrowed(torch.cat([(x * n.unsqueeze(axis)).flatten(-2) for x, n in pairs], -1), features)

    def _norms(self, squares: Tensor, tiny: float) -> Tensor:
        """Roots of squares; of small ones a constant, whose derivatives are 0."""
        # the square of the bound must not round to 0, nor the bound itself in the dtype of the function
        least = max(SMALLEST if self.epsilon is None else self.epsilon, torch.finfo(squares.dtype).tiny ** 0.5, tiny)
        small = squares < least * least
        # the inner `where` keeps infinite derivatives at zero out of the outer one, which multiplies them by 0
        roots = torch.where(small, torch.ones_like(squares), squares).sqrt()
        return torch.where(small, torch.full_like(squares, least if self.normalize else 0.0), roots)

    def extra_repr(self) -> str:
        """Irreps and options."""
        f = self.scalar_nonlinearity
        name = getattr(f, "__name__", type(f).__name__)
        chosen = f"epsilon={self.epsilon}" if self.normalize else "not normalized"
        return f"{self.irreps_in}, {name}, {chosen}{', bias' if self.bias else ''} | {self._kind()}"
