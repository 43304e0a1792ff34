"""Errors that calls raise: each says what must be, what came, and the fix."""

from .core.errors import (
    ArgumentError,
    BackendError,
    ConfigError,
    DataError,
    DeviceError,
    DTypeError,
    EqlayersError,
    GradientError,
    IndexRangeError,
    IrrepsError,
    MismatchError,
    MissingPackageError,
    OutOfMemoryError,
    ShapeError,
    UnknownImportError,
    UnknownNameError,
)

__all__ = [
    "ArgumentError",
    "BackendError",
    "ConfigError",
    "DTypeError",
    "DataError",
    "DeviceError",
    "EqlayersError",
    "GradientError",
    "IndexRangeError",
    "IrrepsError",
    "MismatchError",
    "MissingPackageError",
    "OutOfMemoryError",
    "ShapeError",
    "UnknownImportError",
    "UnknownNameError",
]
