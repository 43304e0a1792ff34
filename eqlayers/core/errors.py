"""Errors of the package: each message states what was expected, what came, and the fix, in that order.

Where e3nn refuses the same thing with an assertion or a RuntimeError, ours is one as well, so that ``except`` clauses
written for e3nn's layers keep working.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class EqlayersError(Exception):
    """Base of every error raised on purpose by eqlayers."""


class ShapeError(EqlayersError, ValueError, AssertionError, RuntimeError):
    """A tensor has the wrong number of axes or the wrong length along one of them."""


class DTypeError(EqlayersError, TypeError):
    """A tensor has a dtype that the operation does not take, or two operands differ in dtype."""


class DeviceError(EqlayersError, ValueError):
    """Two tensors that must live on one device do not."""


class IndexRangeError(EqlayersError, IndexError, ValueError):
    """An index points outside the axis that it indexes, or a list of segments does not climb."""


class IrrepsError(EqlayersError, ValueError, AssertionError):
    """Irreps that cannot be read, or that no product or linear map connects."""


class BackendError(EqlayersError, RuntimeError):
    """A backend was asked for by name and refused, or no backend accepts the call."""


class ConfigError(EqlayersError, ValueError, AssertionError):
    """An option has a value outside its list, or a configuration has an unknown key."""


class DataError(EqlayersError, RuntimeError):
    """A data set is missing, incomplete, corrupt or empty."""


class ArgumentError(EqlayersError, TypeError):
    """An argument was given by a name that the constructor does not have."""


class UnknownNameError(EqlayersError, AttributeError):
    """A name was asked for that a module does not have; a hint says where to find it."""


class UnknownImportError(EqlayersError, ImportError):
    """An unknown name in ``from eqlayers import name``, where Python drops the text of an AttributeError."""


class GradientError(EqlayersError, RuntimeError):
    """A gradient was asked for whose info was not given."""


class MissingPackageError(EqlayersError, ModuleNotFoundError):
    """A package of an extra is not installed."""


class OutOfMemoryError(EqlayersError, MemoryError):
    """Structures that are evaluated at once do not fit into memory."""


class MismatchError(EqlayersError, RuntimeError):
    """A layer that should stand in for another gives other numbers."""


class EqlayersWarning(UserWarning, RuntimeWarning):
    """A warning of eqlayers: a result that may mean less than it seems, or something that runs in another way."""


@contextmanager
def needs_packages(what: str, extra: str) -> Iterator[None]:
    """A block for the imports of an extra's packages: MissingPackageError with one message wherever one is missing."""
    try:
        yield
    except ImportError as error:
        if isinstance(error, MissingPackageError) or (error.name or "").partition(".")[0] == "eqlayers":
            raise
        raise MissingPackageError(
            f"{what} must find the packages of the extra `{extra}`, got: {error}. Install them: pip install "
            f"'eqlayers[{extra}]'.",
            name=error.name,
        ) from error


for _error in [value for value in globals().values() if isinstance(value, type)]:
    _error.__module__ = "eqlayers.errors"  # the public name, in tracebacks
