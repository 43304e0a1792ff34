"""The table of backends of sparse products and scales, in order of preference, and the choice of one for a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ..core.checks import got
from ..core.errors import BackendError, ConfigError
from . import plans, reference, segments
from .call import Call, ProductCall, ScaleCall


class Way(NamedTuple):
    """The functions of a backend: product, scale, and two that decide whether it runs a call."""

    product: Callable[[ProductCall], Tensor]  # run a call
    scale: Callable[[ScaleCall], Tensor]
    #: None if the backend can run the call, else the reason, a phrase that follows the backend's name.
    refuse: Callable[[Call], str | None] = lambda call: None
    only_named: Callable[[Call], bool] = lambda call: False  # whether only a named backend runs it


def _not_in_c(call: Call) -> str:
    return "runs whole tensor products and convolutions; a single sparse product has no generated kernel"


#: By the name that users write as ``backend=``, in order of preference.
WAYS = {
    "triton": Way(segments.product, segments.scale, segments.refuse, segments.only_named),
    "cpu": Way(plans.product, plans.scale, _not_in_c),  # which it never runs
    "torch": Way(plans.product, plans.scale),
    "reference": Way(reference.product, reference.scale, only_named=lambda call: True),
}


def select(call: Call, name: str | None = None) -> str:
    """The name of the backend that runs ``call``: ``name``, or by default the first that supports the call.

    BackendError if the backend of that name does not support it.
    """
    if name is None:
        return next(name for name, way in WAYS.items() if way.refuse(call) is None and not way.only_named(call))
    if not isinstance(name, str) or name not in WAYS:
        raise ConfigError(f"backend must be one of {', '.join(WAYS)} or None, got {got(name)}. Pass one of these.")
    if (reason := WAYS[name].refuse(call)) is not None:
        raise BackendError(
            f"backend {name!r} must accept this call, but it {reason}. Pass backend=None to let one be chosen."
        )
    return name
