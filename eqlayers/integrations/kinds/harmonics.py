"""Spherical harmonics of e3nn."""

from __future__ import annotations

import copy
import sys
import warnings
from functools import partial
from types import FunctionType
from typing import Any, ClassVar

from ...core.errors import ConfigError
from ...irreps.algebra import as_irreps
from ...nn import SphericalHarmonics
from ..replacement import Replacement, Rule, part_if
from ..structure import is_theirs, refuse_changed

_ATTRIBUTES = ("normalize", "normalization", "irreps_in", "irreps_out", "_ls_list", "_lmax", "_is_range_lmax")
#: Whether a module is of e3nn's class of that name, or of a class derived from it.
is_harmonics = partial(is_theirs, name="SphericalHarmonics", attributes=_ATTRIBUTES)
_is_angular = partial(is_theirs, name="SphericalHarmonicsAlphaBeta", attributes=("_ls_list", "normalization"))


class RebuiltWarning(UserWarning):
    """Warning: MACE is about to build an accelerated model anew, with its own layers."""


class AcceleratedSphericalHarmonics(Replacement, SphericalHarmonics):
    """Replacement of an ``e3nn.o3.SphericalHarmonics``."""

    __jit_unused_properties__: ClassVar[list[str]] = ["_lmax"]

    def __init__(self, original: Any, backend: str | None = None) -> None:
        irreps_in, irreps_out = as_irreps(original.irreps_in), as_irreps(original.irreps_out)
        super().__init__(original._ls_list, original.normalize, original.normalization, irreps_in, backend=backend)
        if self.irreps_out != irreps_out:
            raise ConfigError(
                f"irreps_out must be the irreps of the degrees {self._ls_list}, {self.irreps_out}, got {irreps_out}. "
                f"Build the module anew."
            )
        self.num_paths = len(self._ls_list)

    @property
    def _lmax(self) -> int:
        """The highest degree; warns if MACE reads it, which it does to build a model anew from its hyperparameters."""
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
        """Ignore the value: it follows from the degrees."""

    def __getstate__(self) -> dict[str, Any]:
        """The state for pickle, without the compiled function of e3nn's module, which cannot be pickled."""
        state = {**vars(self)}
        if not isinstance(vars(self.original).get("sph_func"), (FunctionType, type(None))):
            state["_original"] = copy.copy(self.original)
            del vars(state["_original"])["sph_func"]
            state["_compiled"] = True
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, and make the compiled function of e3nn's module anew."""
        compiled = state.pop("_compiled", False)
        super().__setstate__(state)
        if compiled:
            theirs: Any = self.original
            base: Any = next(c for c in reversed(type(theirs).__mro__) if c.__name__ == "SphericalHarmonics")
            theirs.sph_func = base(theirs._ls_list, theirs.normalize, theirs.normalization, theirs.irreps_in).sph_func


RULES = tuple(
    Rule("harmonics", part_if(test), refuse, AcceleratedSphericalHarmonics.of)
    for test, refuse in (
        (is_harmonics, lambda module: refuse_changed(module, "SphericalHarmonics")),
        (_is_angular, lambda module: "takes angles, for which there is no layer here"),
    )
)
