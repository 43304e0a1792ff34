"""The registry of backends, and the choice of the backend that runs a call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor

from eqlayers_kernels.c.build.compiler import CompilerError

from ..checks import got
from ..errors import BackendError, ConfigError
from ..forms.request import Request, Runner


@contextmanager
def as_backend_error() -> Iterator[None]:
    """Turn errors of the C compiler into errors of its backend."""
    try:
        yield
    except CompilerError as error:
        raise BackendError(f"{error}. Or pass backend='torch'.") from error


@dataclass(frozen=True)
class Backend:
    """One way to run layers.

    Attributes:
        name: The value of the argument ``backend=``.
        refuse: None if the backend can run the call, else the reason, a phrase that follows the name.
        automatic: Whether it may be chosen by default; False for the reference, which runs only when named.
        only_named: Calls that the backend runs only when named (Triton's interpreter on CPU tensors).
        kernels: Compiles the kernels of a form, for the operator, which differentiates forms.
        whole: Or runs a product, from its key and x, y, w ``[N, width]``, as operations that torch differentiates.
    """

    name: str
    refuse: Callable[[Request], str | None] = lambda call: None
    automatic: bool = True
    only_named: Callable[[Request], bool] = lambda call: False
    kernels: Callable[[Request], Runner] | None = None
    whole: Callable[[str, Tensor, Tensor, Tensor], Tensor] | None = None

    def volunteers(self, call: Request) -> bool:
        """Whether the backend may run the call without being named, if it does not refuse it."""
        return self.automatic and not self.only_named(call)


BACKENDS: dict[str, Backend] = {}  # in order of preference


def register(backend: Backend) -> Backend:
    """Add a backend, last in the order of preference."""
    if backend.name in BACKENDS:
        raise ConfigError(f"the name of a backend must be new, got {backend.name!r} again. Pick another name.")
    BACKENDS[backend.name] = backend
    return backend


def find(name: str) -> Backend:
    """The backend with this name; ConfigError if there is none."""
    if not isinstance(name, str) or name not in BACKENDS:
        raise ConfigError(f"backend must be one of {', '.join(BACKENDS)} or None, got {got(name)}. Pass one of these.")
    return BACKENDS[name]


def check_backend(name: str | None) -> None:
    """Raise ConfigError unless ``name`` is the name of a backend or None."""
    if name is not None:
        find(name)


def select(call: Request, name: str | None = None) -> Backend:
    """The backend that runs ``call``: the named one, or the first that accepts; BackendError says why none does."""
    if name is not None:
        backend = find(name)
        reason = backend.refuse(call)
        if reason is not None:
            raise BackendError(
                f"backend {name!r} must accept this call, but it {reason}. Pass backend=None to let one be chosen."
            )
        return backend
    reasons = []
    for backend in BACKENDS.values():
        reason = backend.refuse(call) if backend.automatic else None
        if reason is not None:
            reasons.append(f"  {backend.name}: {reason}")
        elif backend.volunteers(call):
            return backend
    raise BackendError("some backend must accept this call, but each refused:\n" + "\n".join(reasons))


def verdicts(call: Request, name: str | None = None) -> dict[str, str]:
    """The answer of each backend to a call, in order of preference: 'runs', 'accepts' and when, or why it refuses.

    ``name`` is the requested backend or None.
    """
    out: dict[str, str] = {}
    chosen = name is not None
    for backend in BACKENDS.values():
        reason = backend.refuse(call)
        if reason is not None:
            out[backend.name] = f"refuses: {reason}"
        elif backend.name == name:
            out[backend.name] = "runs"
        elif not backend.volunteers(call):
            out[backend.name] = "accepts, only when named"
        else:
            out[backend.name] = "accepts, behind the chosen one" if chosen else "runs"
            chosen = True
    return out
