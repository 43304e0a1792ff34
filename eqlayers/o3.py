"""The names of ``e3nn.o3``: ours where we have a layer of that name, e3nn's own objects for the rest.

Change ``from e3nn import o3`` to ``from eqlayers import o3``; every public name of the installed e3nn is here. Ours are
``TensorProduct``, ``FullyConnectedTensorProduct``, ``ElementwiseTensorProduct``, ``FullTensorProduct``,
``TensorSquare``, ``Linear``, ``Norm``, ``SphericalHarmonics`` and ``spherical_harmonics``.

Example:
    >>> from eqlayers import o3
    >>> irreps = o3.Irreps("8x0e + 8x1o")
    >>> o3.Linear(irreps, "4x0e")(irreps.randn(5, -1)).shape
    torch.Size([5, 4])
"""

from __future__ import annotations

import sys
from typing import Any

from e3nn import o3 as _theirs
from e3nn.o3 import *  # noqa: F403 -- whatever the installed version offers

from .functional import spherical_harmonics  # noqa: F401 -- after the line above, so that ours hold
from .hints.names import no_such_name
from .nn import (  # noqa: F401 -- after the line above, so that ours hold
    ElementwiseTensorProduct,
    FullTensorProduct,
    FullyConnectedTensorProduct,
    Linear,
    Norm,
    SphericalHarmonics,
    TensorProduct,
    TensorSquare,
)

__all__ = list(_theirs.__all__)


def __getattr__(name: str) -> Any:
    """Names of e3nn outside of its ``__all__``, such as ``experimental``; otherwise an error, with a hint if known."""
    if not name.startswith("_") and hasattr(_theirs, name):
        return getattr(_theirs, name)
    raise no_such_name(__name__, name, sys._getframe(1))
