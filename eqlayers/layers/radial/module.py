"""Radial functions of edge lengths: Bessel basis, smooth cutoff, and a network from these to weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling
from torch.jit import is_scripting  # type: ignore[attr-defined]

from ...core.backends.forms import chosen
from ...core.checks import check_floating, check_integer, check_items, check_module, check_optional
from ...core.dtypes import ACCUMULATE, check_same_dtype
from ...core.errors import ConfigError, ShapeError
from ...core.forms.description import Form
from ...core.operator import WITH_KERNELS
from ...core.torch_internals import under_autocast
from ..base.module import HoldsFormulas, formula_at_once, run_formula, run_map
from ..gate.activation import NormalizedActivation
from ..tensor_product.tabled_weights import TabledWeights
from .cutoffs import PolynomialCutoff, check_cutoff, check_start
from .functions import bessel, check_num_basis
from .lower import MOST_FUNCTIONS, MOST_POWER, activation_formula, bessel_formula, matrix_form
from .tables import HoldsTables, KnotBasis, SplineTable

#: Least rows for which generated C is faster than torch's products of matrices by more than a call in Python takes.
MANY = 256


class RadialBasis(HoldsFormulas):
    r"""Base of the radial bases: functions of the distance from a start, times an envelope that ends at the cutoff.

    A new basis overrides ``functions``. It inherits the checks and the envelope, and can be used in
    :class:`RadialNetwork`, :class:`TabledBasis` and the models.

    Args:
        num_basis: Number of functions.
        cutoff: Where they end, in Angstrom.
        p: Power of the envelope, see :class:`PolynomialCutoff`; None for no envelope.
        start: Where they begin, in Angstrom.
        envelope: Another envelope in place of that, such as :class:`CosineCutoff` and :class:`SmoothCutoff`.

    Attributes:
        envelope: From ``[...]`` Angstrom to ``[...]``, or None.
        continuous: Number of continuous derivatives at the cutoff; -1 if the functions are not 0 there.

    Raises:
        ConfigError: A number out of range, or an envelope with another cutoff.

    Example:
        >>> class Powers(RadialBasis):
        ...     def functions(self, x):
        ...         return x[..., None] ** torch.arange(self.num_basis, dtype=x.dtype, device=x.device)
        >>> Powers(3, 4.0)(torch.tensor([0.0, 2.0, 4.0])).tolist()[::2]
        [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """

    _ends: float = -1  # continuous derivatives at the cutoff without an envelope
    _grows = False  # whether functions grow without bound beyond the cutoff
    __constants__ = ["_grows"]  # noqa: RUF012 -- as torch.jit.script wants it

    def __init__(
        self,
        num_basis: int = 8,
        cutoff: float = 5.0,
        p: int | None = 6,
        *,
        start: float = 0.0,
        envelope: torch.nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.num_basis = check_num_basis(num_basis, cutoff, 1)
        self.cutoff = check_cutoff(cutoff)
        self.start = check_start(start, self.cutoff)
        self.envelope: Any = check_optional(check_module, "envelope", envelope)
        if envelope is None and p is not None:
            self.envelope = PolynomialCutoff(cutoff, p)
        reach = getattr(self.envelope, "cutoff", self.cutoff)
        if reach != self.cutoff:
            raise ConfigError(
                f"envelope must end at the cutoff, {self.cutoff:g} A, got {reach:g}. Build both with one number."
            )
        self.continuous = self._ends if self.envelope is None else getattr(self.envelope, "continuous", 0)
        self._formulas = ()

    def functions(self, x: Tensor) -> Tensor:
        """Values ``[..., num_basis]`` without the envelope; x ``[...]`` is the length minus ``start``, in Angstrom."""
        raise NotImplementedError

    def forward(self, lengths: Tensor, transformed: Tensor | None = None) -> Tensor:
        """``[...]`` Angstrom to ``[..., num_basis]``.

        Args:
            lengths: Arguments of the envelope, and of the functions without ``transformed``.
            transformed: ``[...]`` arguments of the functions, such as of :class:`AgnesiTransform`.
        """
        if not is_scripting():
            check_floating("lengths", lengths, "[...]")
            if transformed is not None and check_floating("transformed", transformed, "[...]").shape != lengths.shape:
                raise ShapeError(
                    f"transformed must have the shape of lengths, {list(lengths.shape)}, got "
                    f"{list(transformed.shape)}. Transform these lengths."
                )
            if transformed is None:
                made = self._in_one_call(lengths)
                if made is not None:  # TorchScript reads no walrus
                    return made
        at = lengths if transformed is None else transformed
        if self.envelope is None:
            return self.functions(at - self.start if self.start != 0 else at)
        if self._grows:  # infinity times 0 is NaN
            at = torch.where(lengths >= self.cutoff, self.cutoff, at)
        return self.functions(at - self.start if self.start != 0 else at) * self.envelope(lengths)[..., None]

    @torch.jit.unused
    def _in_one_call(self, lengths: Tensor) -> Tensor | None:
        """Functions with their envelope by one kernel, or None."""
        return None

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """Ignore keys that only a `TabledBasis` has: the state dict may be of a model with tables."""
        super()._load_from_state_dict(state_dict, prefix, *args)
        of_tables = {f"{prefix}{name}" for name in ("pairs", "live", "of_splines")}
        args[3][:] = [key for key in args[3] if key not in of_tables]  # unexpected keys

    def extra_repr(self) -> str:
        """Number of functions, and start and cutoff if no envelope prints them."""
        if self.envelope is not None and not self.start:
            return f"{self.num_basis} functions"
        return f"{self.num_basis} functions from {self.start:g} to {self.cutoff:g} A"


class BesselBasis(RadialBasis):
    r"""Bessel functions with an envelope: :math:`b_n(r) = \sqrt{2/r_c}\,\sin(n \pi r / r_c) / r \cdot f(r)`.

    At r = 0 the limit :math:`\sqrt{2/r_c}\, n\pi/r_c` is taken, so the basis is finite and smooth everywhere.

    Args:
        num_basis, cutoff, p, envelope: See :class:`RadialBasis`, also for errors; there always is an envelope f.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 7.

    Example:
        >>> BesselBasis(8, 5.0)(torch.rand(10)).shape
        torch.Size([10, 8])
    """

    def __init__(
        self, num_basis: int = 8, cutoff: float = 5.0, p: int = 6, *, envelope: torch.nn.Module | None = None
    ) -> None:
        envelope = PolynomialCutoff(cutoff, p) if envelope is None else envelope
        super().__init__(num_basis, cutoff, envelope=envelope)
        self._made_for = self._described()
        if self._made_for and envelope.p in range(MOST_POWER + 1) and num_basis <= MOST_FUNCTIONS:
            self._formulas = (bessel_formula(self.num_basis, self.cutoff, envelope.p),)

    def _described(self) -> tuple[float, ...] | None:
        """The numbers of the formula; None if a subclass, another envelope or a hook must be asked."""
        envelope: Any = self.envelope
        if type(envelope) is not PolynomialCutoff or envelope._forward_hooks or envelope._forward_pre_hooks:
            return None
        if type(self).functions is not BesselBasis.functions:
            return None
        return self.num_basis, self.cutoff, envelope.p, envelope.cutoff

    @torch.jit.unused
    def _in_one_call(self, lengths: Tensor) -> Tensor | None:
        """Functions with their envelope by one kernel; None without a formula, or on a backend without kernels."""
        if not self._formulas or self._described() != self._made_for:
            return None
        rows = lengths.reshape(-1, 1)
        results = formula_at_once(self._formulas[0], [rows])
        if results is None:
            name = chosen(lengths.device.type, lengths.dtype, None, "") if lengths.dtype in ACCUMULATE else ""
            if name not in WITH_KERNELS:
                return None
            results = run_formula(self._formulas[0], [rows])
        return results[0] if lengths.ndim == 1 else results[0].reshape(*lengths.shape, self.num_basis)

    def functions(self, x: Tensor) -> Tensor:
        """``[...]`` Angstrom to ``[..., num_basis]``, without the envelope."""
        return bessel(x, self.num_basis, self.cutoff)


class ScalarNetwork(HoldsTables, HoldsFormulas):
    r"""Layers :math:`\phi(x W / \sqrt{n})` without biases, the last one linear: zero where the input is zero.

    Activations are part of formulas, with the factors of the weights: the submodule ``activation`` is not called.
    A table ``[R, W]`` of its results at knots may replace the network; state dicts then hold it, too.

    Args:
        widths: Of the input, of each hidden layer, and of the result.
        activation: See :class:`NormalizedActivation`.
    """

    table: Tensor | None
    of_tables = ("table",)

    def __init__(self, widths: Sequence[int], activation: str = "silu") -> None:
        super().__init__()
        self.register_buffer("table", None)
        self._splines = SplineTable()
        self.activation = NormalizedActivation(activation)
        self.weights = torch.nn.ParameterList(torch.randn(a, b) for a, b in pairwise(widths))
        self._maps = tuple(matrix_form(a, b) for a, b in pairwise(widths))
        #: One for each hidden layer, with the factor of its weights; the last one also has the last weights' factor.
        factors, act = [width**-0.5 for width in widths[:-1]], self.activation.factor
        acts = [act] * (len(widths) - 3) + [act * factors[-1]]
        self._formulas = tuple(
            activation_formula(width, (activation, after), before)
            for width, after, before in zip(widths[1:-1], acts, factors, strict=False)
        )

    def forward(self, x: Tensor | KnotBasis) -> Tensor | TabledWeights:
        """``[..., widths[0]]`` to ``[..., widths[-1]]``; functions by interpolation to weights by interpolation."""
        if isinstance(x, KnotBasis):
            if self.table is None:
                return self._splines(x, self.rows, list(self.weights), self.training, self.weights[-1].dtype)
            if self.training and torch.is_grad_enabled() and any(weight.requires_grad for weight in self.weights):
                raise ConfigError(
                    "a network whose table is frozen must not be trained, got a call in training mode. Call eval(), or "
                    "decompress(model) and train with knots=."
                )
            if self.table.shape[0] != x.num_rows:
                raise ShapeError(
                    f"the table must have {x.num_rows} rows, for {x.pairs * x.knots} knots, got {self.table.shape[0]}. "
                    "Build or compress it with knots= of the one whose state dict it was."
                )
            return x.weights(self.table)
        width = self.weights[0].shape[0]
        if check_floating("basis", x, f"[..., {width}]").ndim < 1 or x.shape[-1] != width:
            raise ShapeError(
                f"basis must be [..., {width}], the functions that the network was built for, got {list(x.shape)}. "
                "Take them from its basis."
            )
        if not under_autocast(x.device.type):
            check_same_dtype(basis=x, weights=self.weights[0])
        return self._last(self._hidden(x, list(self.weights)), self.weights[-1])

    def rows(
        self, splines: Callable[[Tensor], Tensor], functions: Tensor, weights: Sequence[Tensor] | None = None
    ) -> Tensor:
        """Rows of a table, with ``weights`` in place of the network's if not None: see `SplineTable`.

        Hidden features are in float64, as rounding errors would be large in slopes. The last layer is linear, so it
        is applied to the splines of its input, which are fewer.
        """
        weights = list(self.weights) if weights is None else weights
        return self._last(splines(self._hidden(functions, weights)).to(weights[-1].dtype), weights[-1])

    def _hidden(self, x: Tensor, weights: Sequence[Tensor]) -> Tensor:
        """Features behind the hidden layers, times the factor of the weights of the last layer."""
        lead = x.shape[:-1]
        x = x if len(lead) == 1 else x.reshape(-1, x.shape[-1])
        one_call = is_compiling() or type(x.shape[0]) is not int or x.shape[0] >= MANY  # symbols are no numbers
        for base, form, weight in zip(self._formulas, self._maps[:-1], weights[:-1], strict=True):
            (x,) = run_formula(base, [_product(form, x, weight) if one_call else x @ weight.to(x.dtype)])
        return x if len(lead) == 1 else x.reshape(*lead, x.shape[-1])

    def _last(self, x: Tensor, weight: Tensor) -> Tensor:
        weight = weight if self._formulas else weight * weight.shape[0] ** -0.5
        one_call = x.ndim == 2 and (is_compiling() or type(x.shape[0]) is not int or x.shape[0] >= MANY)
        return _product(self._maps[-1], x, weight) if one_call else x @ weight

    def extra_repr(self) -> str:
        """Widths of the layers."""
        return " -> ".join(str(w.shape[0]) for w in self.weights) + f" -> {self.weights[-1].shape[1]}"


def _product(form: Form | None, x: Tensor, weight: Tensor) -> Tensor:
    """``[N, width]`` times ``[width, width_out]``, in the dtype of the rows."""
    mapped = run_map(form, x, weight.reshape(-1).to(x.dtype))
    return x @ weight.to(x.dtype) if mapped is None else mapped


def hidden_widths(name: str, hidden: Any) -> list[int]:
    """Widths of hidden layers; ConfigError for no list of counts."""
    fix = "64 is usual; () is no hidden layer."
    listed = check_items(name, hidden, "a list of widths", fix)
    return [check_integer(f"{name}[{i}]", w, 1, what="a width", fix=fix) for i, w in enumerate(listed)]


class RadialNetwork(ScalarNetwork):
    r"""Weights of a tensor product from edge lengths: Bessel basis, then layers :math:`\phi(x W / \sqrt{n})`.

    No layer has a bias, so weights go smoothly to zero at the cutoff with the basis.

    Args:
        num_weights: Weights per edge.
        num_basis, cutoff, p: See :class:`BesselBasis`.
        hidden: Widths of the hidden layers.
        basis: Functions in place of Bessel functions, with an attribute ``num_basis``: a :class:`RadialBasis` or a
            :class:`TabledBasis`.

    Raises:
        ConfigError: A width, a number of functions or the cutoff out of range.

    Example:
        >>> RadialNetwork(16, hidden=(32,))(torch.tensor([1.0, 5.0]))[1].abs().max().item()
        0.0
    """

    def __init__(
        self,
        num_weights: int,
        num_basis: int = 8,
        cutoff: float = 5.0,
        hidden: Sequence[int] = (64,),
        p: int = 6,
        *,
        basis: torch.nn.Module | None = None,
    ) -> None:
        basis = BesselBasis(num_basis, cutoff, p) if basis is None else check_module("basis", basis)
        fix = "Take the weight_numel of the product that gets them."
        last = check_integer("num_weights", num_weights, 0, fix=fix)
        fix = "Derive it from RadialBasis."
        first = check_integer("basis.num_basis", getattr(basis, "num_basis", None), 1, what="a number", fix=fix)
        super().__init__([first, *hidden_widths("hidden", hidden), last])
        self.basis = basis

    def forward(self, lengths: Tensor | KnotBasis, basis: Tensor | KnotBasis | None = None) -> Tensor | TabledWeights:
        """``[...]`` Angstrom to ``[..., num_weights]``; DTypeError if the lengths are no floating-point tensor.

        Args:
            lengths: ``[...]`` Angstrom; or the functions by interpolation, see :class:`TabledBasis`.
            basis: ``[..., num_basis]``, the result of ``self.basis(lengths)``, which networks may share; or by
                interpolation, then weights are by interpolation, too.
        """
        if basis is None:
            basis = lengths if isinstance(lengths, KnotBasis) else self.basis(lengths)
        return super().forward(basis)
