"""Replacements of spherical harmonics and of MACE's symmetric contraction; see :mod:`.modules`."""

from __future__ import annotations

import copy
import sys
import warnings
from types import FunctionType
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.errors import ConfigError
from ..irreps.algebra import as_irreps
from ..layers.base.module import EquivariantModule
from ..layers.contraction.lower import MOST, Mixing, read_polynomials
from ..nn import SphericalHarmonics, SymmetricContraction
from .modules import FusedReplacement, Replacement


class RebuiltWarning(UserWarning):
    """A model with our layers is about to be built anew by its package, without them."""


class AcceleratedSphericalHarmonics(Replacement, SphericalHarmonics):
    """Replacement of an ``e3nn.o3.SphericalHarmonics``.

    Args:
        original: The module.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        ConfigError: Degrees, or irreps of the result, that our layer does not have.
    """

    __jit_unused_properties__: ClassVar[list[str]] = ["_lmax"]

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        theirs: Any = original
        irreps_in, irreps_out = as_irreps(theirs.irreps_in), as_irreps(theirs.irreps_out)
        super().__init__(theirs._ls_list, theirs.normalize, theirs.normalization, irreps_in, backend=backend)
        if self.irreps_out != irreps_out:
            raise ConfigError(
                f"irreps_out must be the irreps of the degrees {self._ls_list}, {self.irreps_out}, got {irreps_out}. "
                f"Build the module anew."
            )
        self.num_paths = len(self._ls_list)

    @property
    def _lmax(self) -> int:
        """Read by MACE where it takes a model's hyperparameters, to build the model anew from them."""
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("mace."):
            warnings.warn(
                "a model is built anew from the hyperparameters of an accelerated one, as MACE's calculator with "
                "compile_mode and MACE's converters do: the new model has MACE's layers, not eqlayers'. Leave out "
                "compile_mode, or call accelerate on the new model.",
                RebuiltWarning,
                stacklevel=3,
            )
        return max(self._ls_list)

    @_lmax.setter
    def _lmax(self, value: int) -> None:
        """Degrees say it already."""

    def __getstate__(self) -> dict[str, Any]:
        """The state without a compiled function in e3nn's module, which e3nn makes anew and which cannot be pickled."""
        state = {**vars(self)}
        if not isinstance(vars(self.original).get("sph_func"), (FunctionType, type(None))):
            state["_original"] = copy.copy(self.original)
            del vars(state["_original"])["sph_func"]
            state["_compiled"] = True
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the compiled function."""
        compiled = state.pop("_compiled", False)
        super().__setstate__(state)
        if compiled:
            theirs: Any = self.original
            base: Any = next(c for c in reversed(type(theirs).__mro__) if c.__name__ == "SphericalHarmonics")
            theirs.sph_func = base(theirs._ls_list, theirs.normalize, theirs.normalization, theirs.irreps_in).sph_func


class AcceleratedContraction(nn.Module):
    """One irrep of the result of a symmetric contraction: the weights and coupling tensors of MACE's, the very objects.

    Args:
        original: MACE's ``Contraction``.
        text: Irreps of the feature, one copy of each.
        ir: Degree and parity of the result.

    Attributes:
        text: As given.
        mixings: What the coupling tensors are, for degrees from 1 on.

    Raises:
        ConfigError: Coupling tensors of another shape, or that are not equivariant.
    """

    weights_max: nn.Parameter

    def __init__(self, original: nn.Module, text: str, ir: tuple[int, int]) -> None:
        super().__init__()
        theirs: Any = original
        self.num_features, self.coupling_irreps = theirs.num_features, theirs.coupling_irreps
        self.correlation = theirs.correlation
        self.text, self._ir = text, ir
        self._parameters.update(theirs._parameters)
        self._buffers.update(theirs._buffers)
        self.weights = theirs.weights
        self.train(theirs.training)
        found = [self.read(degree, self.U_tensors(degree)) for degree in range(1, self.correlation + 1)]
        if None in found:
            degree = found.index(None) + 1
            shape = list(self.U_tensors(degree).shape)
            raise ConfigError(
                f"U_matrix_{degree} must be an equivariant tensor of {text}, got another one, {shape}. Build the "
                f"module anew."
            )
        self.mixings = tuple(mixed for mixed in found if mixed is not None)

    def U_tensors(self, nu: int) -> Tensor:
        """The coupling tensor of a degree, under MACE's name."""
        return self.get_buffer(f"U_matrix_{nu}")

    def of_degree(self, degree: int) -> Tensor:
        """Weights ``[Z, P, C]``."""
        found: Any = self.weights_max if degree == self.correlation else self.weights[self.correlation - 1 - degree]
        return found

    def read(self, degree: int, tensor: Tensor) -> Mixing | None:
        """The mixing of a coupling tensor; None if the tensor is not equivariant."""
        value = tensor.detach().to("cpu", torch.float64).numpy()
        if self._ir[0] == 0 and value.ndim == degree + 1:  # MACE leaves out the axis of a scalar
            value = value[None]
        return read_polynomials(self.text, self._ir, degree, value)


class AcceleratedSymmetricContraction(FusedReplacement, SymmetricContraction):
    """Replacement of MACE's ``SymmetricContraction``.

    Its coupling tensors stay in the state dict and are those that count, whichever version of e3nn made them and
    whichever paths they are of.

    Args:
        original: The module.
        backend: Name of a backend, or None for the first that accepts.

    Raises:
        ConfigError: Its tensors do not belong to a symmetric contraction.
    """

    contractions: nn.ModuleList

    def __init__(self, original: nn.Module, backend: str | None = None) -> None:
        EquivariantModule.__init__(self, "mul_ir", backend)
        theirs: Any = original
        text = self._set_irreps(theirs.irreps_in, theirs.irreps_out)
        self.correlation, self.one_hot = theirs.contractions[0].correlation, None
        copies = {mul for mul, _ in (*self.irreps_in, *self.irreps_out)}
        if copies != {theirs.contractions[0].num_features} or self.correlation > MOST:
            raise ConfigError(
                f"a symmetric contraction must have one number of channels and at most correlation {MOST}, got "
                f"{self.irreps_in} to {self.irreps_out}, correlation {self.correlation}. Leave it to MACE."
            )
        pairs = zip(theirs.contractions, self.irreps_out, strict=True)
        self.contractions = nn.ModuleList(AcceleratedContraction(one, text, (ir.l, ir.p)) for one, (_, ir) in pairs)
        self._lower()

    @property
    def parts(self) -> list[AcceleratedContraction]:
        """The irreps of the result."""
        return list(self.contractions)  # type: ignore[arg-type]

    @property
    def num_elements(self) -> int:  # type: ignore[override]
        """Number of species of the weights of now, which MACE's tools may exchange."""
        return self.parts[0].weights_max.shape[0]

    @property
    def num_paths(self) -> int:  # type: ignore[override]
        """Number of paths that have weights, of all degrees and irreps."""
        return sum(mixed.shape[1] for one in self.parts for mixed in one.mixings)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Follow the coupling tensors that the parts are about to load; torch asks the whole before its parts."""
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        for k, one in enumerate(self.parts):
            found = list(one.mixings)
            for degree in range(1, self.correlation + 1):
                key = f"{prefix}contractions.{k}.U_matrix_{degree}"
                tensor = state_dict.get(key)
                if tensor is None or tensor.is_meta or tensor.shape != one.U_tensors(degree).shape:
                    continue  # torch says so itself
                read = one.read(degree, tensor)
                if read is None:
                    error_msgs.append(f"{key} must hold equivariant tensors of {self.irreps_in}, got others.")
                else:
                    found[degree - 1] = read
            one.mixings = tuple(found)
        self._lower()

    def restore(self) -> nn.Module:
        """The original; its parts too have the Parameters and buffers of now."""
        original: Any = self._give_back()
        for mine, theirs in zip(self.contractions, original.contractions, strict=True):
            for kind in ("_parameters", "_buffers"):
                vars(theirs)[kind].update(vars(mine)[kind])
            theirs._modules["weights"] = mine._modules["weights"]
        whole: nn.Module = original
        return whole
