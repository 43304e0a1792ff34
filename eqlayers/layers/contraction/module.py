"""MACE's symmetric contraction: polynomials of the features of each atom; weights by species, with MACE's keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor

from ...core.checks import check_choice, check_flag, check_integer, check_optional, check_tensor, got
from ...core.dtypes import ACCUMULATE, device_error, of_one_dtype
from ...core.errors import ConfigError, DTypeError, IrrepsError, ShapeError
from ...core.graph import check_range
from ...core.species import KnownSpecies, Species, cache_species, is_hidden, known_species, species_on_device
from ...core.torch_internals import is_plain, outside_of_autocast
from ...e3nn_compat.torchscript import is_tracing, refuse_torchscript
from ...irreps.algebra import as_irreps
from ...irreps.layout import LAYOUTS, slots_of
from ..base.module import FormulaModule, formula_at_once, run_formula
from .basis import dense, has_paths
from .lower import (
    MOST,
    Contraction,
    Formulas,
    Gathered,
    Mixing,
    lowered,
    mixing,
    polynomials_of,
    read_tensor,
    single_copies,
)


class SymmetricContraction(FormulaModule):
    r"""Polynomials of the features of each atom: the product basis of MACE, with its numbers and its state dict.

    .. math:: z_{k c m} = \sum_{\nu = 1}^{N} \sum_p W^{(k \nu)}_{z p c} \sum_{i_1 \dots i_\nu}
        U^{(k \nu)}_{m i_1 \dots i_\nu p}\, x_{c i_1} \cdots x_{c i_\nu}

    Weights are folded into one coefficient per species, channel and monomial: with 0e + 1o + 2e + 3o, 94 monomials make
    the scalars of correlation 3.

    Args:
        irreps_in: Irreps of the features. The largest multiplicity is C, the number of channels; groups of fewer copies
            belong to the first channels, and are 0 in the others.
        irreps_out: Irreps of the result, of at most C copies; with fewer, only the first channels are computed.
        correlation: Highest number of factors, 1 to 4.
        num_elements: Number of species, Z.
        use_reduced_cg: Whether to take as many weights as there are independent polynomials. MACE has more, of all
            couplings from left to right; its checkpoints have either. None is False. The independent ones are the
            weights of cuequivariance up to degree 3 for usual irreps; others in a state dict are read with their
            weights.
        irrep_normalization, path_normalization: 'component' and 'element', all that MACE computes.
        internal_weights, shared_weights: True; MACE has no others.
        cueq_config, oeq_config: None; other packages' kernels cannot be asked for here.
        one_hot: Whether rows of y ``[N, Z]`` have a single 1. None: read them; where reading would wait for a device or
            break a traced graph, assume one-hot unless y requires a gradient. Rows that are assumed to be one-hot
            and are not give NaN. With True y gets no gradient. False: mix the weights of species with y, slow and
            general.
        layout: Layout of flat features, 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Name of a backend, or None for the first that accepts.

    Attributes:
        contractions: For every irrep of the result its weights, with MACE's names.
        num_terms: Monomials that occur, of all components of the result.
        weight_numel: Number of weights.

    Raises:
        IrrepsError, ConfigError: Irreps or options that are not supported.

    Source:
        Batatia, Kovacs, Simm, Ortner, Csanyi, MACE, NeurIPS 2022, arXiv:2206.07697, equations 10 and 11.

    Example:
        >>> layer = SymmetricContraction("2x0e + 2x1o", "2x0e", correlation=3, num_elements=2)
        >>> layer
        SymmetricContraction(2x0e+2x1o -> 2x0e, correlation 3 | 2 species | 9 terms | 28 weights | mul_ir, backend auto)
        >>> layer(torch.ones(5, 2, 4), torch.tensor([0, 1, 1, 0, 0])).shape
        torch.Size([5, 2])
    """

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        correlation: int,
        num_elements: int,
        *,
        use_reduced_cg: bool | None = False,
        irrep_normalization: str | None = None,
        path_normalization: str | None = None,
        internal_weights: bool | None = None,
        shared_weights: bool | None = None,
        cueq_config: None = None,
        oeq_config: None = None,
        one_hot: bool | None = None,
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(check_choice("layout", layout, LAYOUTS), backend)
        text = self._set_irreps(irreps_in, irreps_out)
        self.correlation = check_integer("correlation", correlation, 1, MOST)
        self.num_elements = check_integer("num_elements", num_elements, 1, what="a number of species")
        self.use_reduced_cg = bool(check_optional(check_flag, "use_reduced_cg", use_reduced_cg))
        self.one_hot = check_optional(check_flag, "one_hot", one_hot)
        _check_only("irrep_normalization", irrep_normalization, "component")
        _check_only("path_normalization", path_normalization, "element")
        for name, flag in {"internal_weights": internal_weights, "shared_weights": shared_weights}.items():
            if check_optional(check_flag, name, flag) is False:
                raise ConfigError(f"{name} must be True, got False. The layer owns its weights, as MACE's does.")
        for name, config in {"cueq_config": cueq_config, "oeq_config": oeq_config}.items():
            if config is not None:
                raise ConfigError(f"{name} must be None, got {got(config)}. Choose by backend= what runs the layer.")
        options = (self.correlation, self.num_elements, self.channels, self.use_reduced_cg)
        try:
            self.contractions = torch.nn.ModuleList(ContractionWeights(text, ir, *options) for _, ir in self.irreps_out)
        except NotImplementedError as error:  # of e3nn, beyond l = 11
            raise IrrepsError(
                f"irreps_in must have degrees whose couplings e3nn knows, got {self.irreps_in} and {self.irreps_out} "
                f"(e3nn says: {error}). Use lower degrees, or a lower correlation."
            ) from None
        self._lower()
        self.num_paths = sum(mixed.shape[1] for one in self._weights_of for mixed in one.mixings)
        self.register_load_state_dict_post_hook(_lower_again)

    def _set_irreps(self, irreps_in: Any, irreps_out: Any) -> str:
        """Set attributes that depend on irreps alone; returns irreps_in with one copy of each, as text."""
        self.irreps_in, self.irreps_out = _filled("irreps_in", irreps_in), _filled("irreps_out", irreps_out)
        self.channels = max(mul for mul, _ in self.irreps_in)
        if max(mul for mul, _ in self.irreps_out) > self.channels:
            raise IrrepsError(
                f"irreps_out must have at most the copies of irreps_in, {self.channels}, got {self.irreps_out}. "
                f"Channels are not mixed here: put an eqlayers.Linear behind."
            )
        whole_in, whole_out = (
            o3.Irreps([(self.channels, ir) for _, ir in i]) for i in (self.irreps_in, self.irreps_out)
        )
        self._whole = str(whole_in), str(whole_out)
        self._width_in, self._width_out, self._whole_width = self.irreps_in.dim, self.irreps_out.dim, whole_out.dim
        self._picked: dict[str, list[int] | None] = {
            "x": _columns(self.irreps_in, whole_in, self.layout, fill=True),
            "z": _columns(self.irreps_out, whole_out, self.layout, fill=False),
        }
        self.dim = o3.Irreps(single_copies(whole_in)).dim
        return single_copies(whole_in)

    def _lower(self) -> None:
        """Build the formulas, from the bases of the weights."""
        mixings = tuple(one.mixings for one in self._weights_of)
        contraction = Contraction(*self._whole, self.correlation, mixings, self.layout)
        formulas = lowered(contraction)
        self._note_change(vars(self).get("_formulas", formulas) is not formulas)
        self._formulas: Formulas = formulas

    @property
    def _weights_of(self) -> list[ContractionWeights]:
        return list(self.contractions)  # type: ignore[arg-type]

    @property
    def num_terms(self) -> int:
        """Monomials that occur, of all components of the result."""
        return self._formulas.terms

    @property
    def weight_numel(self) -> int:
        """Number of weights, of all species."""
        return sum(p.numel() for p in self.parameters())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Contract the features of every atom.

        Args:
            x: ``[N, C, D]``, the components of all irreps side by side (of equal multiplicities), or flat
                ``[N, irreps_in.dim]``.
            y: Species, ``[N]`` integers, or one-hot ``[N, Z]`` of any dtype. The result is linear in y, as MACE's is,
                where rows are not one-hot or y requires a gradient; see ``one_hot``.

        Returns:
            ``[N, irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, DeviceError, IndexRangeError: The inputs do not fit the layer or each other.
        """
        if is_tracing():
            refuse_torchscript(self)
        flat, polynomials = self._read_features(x)
        known = known_species(y, flat, self.num_elements, self.one_hot)
        z = None if known is None else self._at_once(flat, polynomials, known)
        if z is None:
            if known is None:
                self._check_species(y, x)
            z = self._contract(flat, polynomials, y, known)
        return z if self._picked["z"] is None or not self.num_terms else z[:, self._picked["z"]]

    def _at_once(self, flat: Tensor, polynomials: Gathered, known: KnownSpecies) -> Tensor | None:
        """Fast path for cached species: call the kernel directly; None if operands need conversion."""
        species = known.species
        if species is None or (known.y.ndim == 2 and self.one_hot) or flat.dtype is not ACCUMULATE.get(flat.dtype):
            return None
        if not (self._formulas.terms and flat.shape[0] and is_plain((flat,))):
            return None
        weights = self._weights()
        if species.present is not None:
            weights = [w.index_select(0, species.present) for w in weights]
        folded = formula_at_once(self._formulas.fold, [w.flatten(1) for w in weights], None, self.backend)
        if folded is None:
            return None
        z = formula_at_once(polynomials.by_species, (flat, folded[0]), species.graph, self.backend)
        return None if z is None else z[0]

    def _contract(self, flat: Tensor, polynomials: Gathered, y: Tensor, known: KnownSpecies | None) -> Tensor:
        """The result with all channels, without the fast path."""
        named = {f"weights {number} of SymmetricContraction": w for number, w in enumerate(self._weights())}
        flat, *weights = of_one_dtype(x=flat, **named)
        if not self._formulas.terms:  # no polynomial has the irreps of the result
            return flat.new_zeros(flat.shape[0], self._width_out)
        if flat.shape[0] == 0:  # in torch 2.6 `not` would put a guard on the size
            read = [flat, *weights, *([y] if y.is_floating_point() else [])]
            return flat.new_zeros(0, self._whole_width) + 0 * sum(t.sum().to(flat.dtype) for t in read)
        dtype, wide = flat.dtype, ACCUMULATE[flat.dtype]
        if dtype is not wide:
            flat, weights = flat.to(wide), [w.to(wide) for w in weights]
        species = self._species_of(y) if known is None else known.species
        if species is None:
            with outside_of_autocast(flat.device.type):
                mixed = y.to(wide) @ self._fold(weights)
            return run_formula(polynomials.by_row, (flat, mixed), None, self.backend)[0].to(dtype)
        if species.present is not None:
            weights = [w.index_select(0, species.present) for w in weights]
        z = run_formula(polynomials.by_species, (flat, self._fold(weights)), species.graph, self.backend)[0].to(dtype)
        if y.ndim == 2 and (self.one_hot or is_hidden(y)):
            z = torch.where(_is_one_hot(y).unsqueeze(1), z, torch.nan)
        return z

    def _weights(self) -> list[Tensor]:
        """The weights ``[Z, P, C]`` of each degree and irrep, in the order of the formulas."""
        highest, contractions = self.correlation, self._weights_of
        return [
            contractions[k].weights_max if degree == highest else contractions[k].weights[highest - 1 - degree]
            for k, degree in self._formulas.order
        ]

    def _fold(self, weights: list[Tensor]) -> Tensor:
        """Coefficients of monomials ``[Z, coefficients * C]`` from weights ``[Z, P, C]`` of each degree and irrep."""
        return run_formula(self._formulas.fold, [w.flatten(1) for w in weights], None, self.backend)[0]

    def _species_of(self, y: Tensor) -> Species | None:
        """The species of each atom, cached for the next layer; None if the result must be linear in y."""
        mixes = y.ndim == 2 and not self.one_hot
        if mixes and self.one_hot is None:
            mixes = y.requires_grad or not (is_hidden(y) or bool(_is_one_hot(y).all()))
        if is_hidden(y):
            return None if mixes else species_on_device(y, self.num_elements)
        return cache_species(y, self.num_elements, not mixes, self.num_elements, self.one_hot)

    def _read_features(self, x: Tensor) -> tuple[Tensor, Gathered]:
        """Features as rows ``[N, width]``, and the formulas for their layout."""
        picked, width = self._picked["x"], self._width_in
        want = f"[N, {self.channels}, {self.dim}] or [N, {width}]" if picked is None else f"[N, {width}]"
        if isinstance(x, Tensor) and x.layout is torch.strided:
            if x.ndim == 3 and x.shape[1:] == (self.channels, self.dim) and picked is None:
                return x.reshape(x.shape[0], self.channels * self.dim), self._formulas.packed
            if x.ndim == 2 and x.shape[1] == width:
                return x if picked is None else torch.nn.functional.pad(x, (0, 1))[:, picked], self._formulas.flat
        check_tensor("x", x, want)
        fix = f"Build the layer for these irreps; it has {self.irreps_in}."
        if x.ndim == 3 and x.shape[1:] == (self.dim, self.channels):
            fix = "Channels come before components: pass `x.transpose(1, 2)`."
        raise ShapeError(f"x must be {want}, got {list(x.shape)}. {fix}")

    def _check_species(self, y: Tensor, x: Tensor) -> None:
        want = f"[N] of integers or [N, {self.num_elements}]"
        check_tensor("y", y, want)
        if y.ndim == 1 and (y.is_floating_point() or y.is_complex() or y.dtype == torch.bool):
            raise DTypeError(f"y must be {want}, got [N] of {y.dtype}. Convert it with `.long()`.")
        if y.shape != (x.shape[0],) and y.shape != (x.shape[0], self.num_elements):
            raise ShapeError(
                f"y must be {want} with N = {x.shape[0]}, the rows of x, got {list(y.shape)}. "
                f"Give every row of x a species, of {self.num_elements}."
            )
        if y.is_complex():
            raise DTypeError(f"y must be {want}, got {y.dtype}. Pass the species, or their one-hot rows.")
        if y.device != x.device:
            raise device_error("y", y, "x", x)
        if y.ndim == 1:
            check_range("y", y, self.num_elements, "species")

    def __getstate__(self) -> dict[str, Any]:
        """The state without the formulas, which are built again after loading."""
        return {name: value for name, value in self.__dict__.items() if name != "_formulas"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied layer, and build its formulas."""
        super().__setstate__(state)
        self._lower()

    def __repr__(self) -> str:  # on one line, without the submodules, which only hold weights
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """Irreps, correlation, species, terms, weights, layout and backend."""
        return (
            f"{self.irreps_in} -> {self.irreps_out}, correlation {self.correlation} | {self.num_elements} species | "
            f"{self.num_terms} terms | {self.weight_numel} weights | {self._kind()}"
        )


def _lower_again(layer: SymmetricContraction, keys: Any) -> None:
    """Lower a layer again after a state dict has been loaded, which may hold another basis."""
    layer._lower()


def _filled(name: str, irreps: Any) -> o3.Irreps:
    """The irreps of an argument; IrrepsError if there are none, or a group has no copies."""
    groups = as_irreps(irreps, name)
    if not groups or 0 in {mul for mul, _ in groups}:
        raise IrrepsError(
            f"{name} must have one copy of each irrep or more, got {groups or 'none'}. Leave out irreps without copies."
        )
    return groups


def _columns(irreps: o3.Irreps, whole: o3.Irreps, layout: str, fill: bool) -> list[int] | None:
    """Index in ``whole`` of each column of ``irreps``, None if equal; ``fill``: inverted, ``irreps.dim`` for none."""
    if irreps == whole:
        return None
    out = [irreps.dim] * (whole.dim if fill else irreps.dim)
    for part, all_of in zip(slots_of(irreps), slots_of(whole), strict=True):
        columns, whole_columns = part.columns(layout), all_of.columns(layout)[:, : part.mul]
        for column, whole_column in zip(columns.ravel().tolist(), whole_columns.ravel().tolist(), strict=True):
            out[whole_column if fill else column] = column if fill else whole_column
    return out


def _check_only(name: str, value: Any, only: str) -> None:
    if value is not None and value != only:
        raise ConfigError(f"{name} must be {only!r}, all that MACE computes, got {got(value)}. Leave it out.")


def _is_one_hot(y: Tensor) -> Tensor:
    """``[N]``: whether a row has a single 1 and nothing else but 0."""
    return ((y == 1).sum(1) == 1) & ((y != 0).sum(1) == 1)


class ContractionWeights(torch.nn.Module):
    """Weights of one irrep of the result, under MACE's names, ``[Z, P, C]`` for each degree, the highest first.

    MACE's state dict holds the coupling tensors as well. A loaded tensor may be another basis of the same
    polynomials: of another version of e3nn, whose signs differ, or of another package. It replaces the basis, so loaded
    weights give the same results. The flags ``weights_*_zeroed`` mark weights that MACE fixes to 0.
    """

    weights_max: torch.nn.Parameter

    def __init__(
        self, text: str, ir_out: o3.Irrep, correlation: int, num_elements: int, channels: int, reduced: bool
    ) -> None:
        super().__init__()
        self._text, self._ir, self._correlation = text, (ir_out.l, ir_out.p), correlation
        self._own = tuple(mixing(text, self._ir, degree, reduced) for degree in range(1, correlation + 1))
        self.mixings = self._own
        # MACE's flag i belongs to degree i + 1, but freezes weights.i, which belong to degree correlation - 1 - i
        empty = [not has_paths(text, self._ir, degree, reduced) for degree in range(1, correlation + 1)]
        parameters = []  # the highest degree first
        for mixed, frozen in zip(reversed(self._own), [empty[-1], *empty], strict=False):
            shape = (num_elements, mixed.shape[1], channels)
            value = torch.zeros(shape) if frozen else torch.randn(shape) / mixed.shape[1]
            parameters.append(torch.nn.Parameter(value, requires_grad=not frozen))
        self.weights_max, self.weights = parameters[0], torch.nn.ParameterList(parameters[1:])
        for number, flag in enumerate(empty):
            name = f"weights_{number if number < correlation - 1 else 'max'}_zeroed"
            self.register_buffer(name, torch.tensor(flag))

    def tensor(self, degree: int) -> np.ndarray:
        """MACE's U, symmetric in the factors: ``[2 l + 1, D, ..., D, P]``, for l = 0 without the first axis."""
        polynomials = polynomials_of(self._text, self._ir, degree, self.mixings[degree - 1])
        whole = dense(polynomials, o3.Irreps(self._text).dim, degree)
        return whole[0] if self._ir[0] == 0 else whole

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        like, dtype = self.weights_max, torch.promote_types(self.weights_max.dtype, torch.float32)
        for degree in range(1, self._correlation + 1):
            value = torch.from_numpy(self.tensor(degree)).to(like.device, dtype)
            destination[f"{prefix}U_matrix_{degree}"] = value

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *args)
        _, strict, missing_keys, unexpected_keys, error_msgs = args
        mixings = list(self._own)
        for degree in range(1, self._correlation + 1):
            key = f"{prefix}U_matrix_{degree}"
            if key not in state_dict:
                missing_keys += [key] if strict else []
                continue
            unexpected_keys[:] = [name for name in unexpected_keys if name != key]
            read = self._read(degree, state_dict[key], key, error_msgs)
            mixings[degree - 1] = mixings[degree - 1] if read is None else read
        self.mixings = tuple(mixings)

    def _read(self, degree: int, tensor: Tensor, key: str, error_msgs: list[str]) -> Mixing | None:
        """The mixing of a tensor of the state dict, or None with an entry in ``error_msgs``."""
        mixed, dim = self._own[degree - 1], o3.Irreps(self._text).dim
        size = () if self._ir[0] == 0 else (2 * self._ir[0] + 1,)
        shape = (*size, *[dim] * degree, mixed.shape[1])
        if tuple(tensor.shape) != shape:
            error_msgs.append(
                f"{key} must be {list(shape)}, got {list(tensor.shape)}. Build the layer for the irreps of the "
                f"checkpoint, and with the other use_reduced_cg if only the last number differs."
            )
            return None
        if tensor.is_meta:
            return None
        value = tensor.detach().to("cpu", torch.float64).numpy()
        value = value.reshape(2 * self._ir[0] + 1, *shape[len(size) :])
        read = read_tensor(self._text, self._ir, degree, [mixed], value, torch.finfo(tensor.dtype).eps)
        if read is None:
            error_msgs.append(
                f"{key} must hold equivariant tensors of {self._text}, got others. Check the order of the irreps."
            )
        return read
