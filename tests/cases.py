"""Settings and problems that tests of several folders use."""

import mmap
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import e3nn
import torch
from torch import Tensor

from eqlayers.core.dtypes import default_dtype

__all__ = ["default_dtype", "e3nn_defaults", "quiet_warnings", "reserved", "towers"]


def reserved(size: int) -> mmap.mmap:
    """Bytes that are not there until they are touched, and that count against no limit of the system.

    An allocation would count, and where the process keeps freed memory, it would stay: a fork then fails.
    """
    no_reserve = 0x4000  # MAP_NORESERVE
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve)


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Other packages warn when their networks are made, and warnings are errors in tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextmanager
def e3nn_defaults(**options: Any) -> Iterator[None]:
    """Layers of e3nn that are made inside have these options."""
    before = e3nn.get_optimization_defaults()
    e3nn.set_optimization_defaults(**options)
    try:
        yield
    finally:
        e3nn.set_optimization_defaults(**before)


def towers(fn: Callable[..., Tensor], inputs: Sequence[Tensor], order: int) -> list[Tensor]:
    """Values and derivatives up to ``order``, each contracted with random cotangents that are variables as well."""
    generator = torch.Generator().manual_seed(5)
    values: Sequence[Tensor] = [fn(*inputs)]
    variables, everything = [t for t in inputs if t.requires_grad], []
    for _ in range(order):
        everything.extend(values)
        draws = [torch.randn(v.shape, generator=generator, dtype=torch.float64).requires_grad_() for v in values]
        total = sum((v * d).sum() for v, d in zip(values, draws, strict=True))
        variables = [*variables, *draws]
        values = torch.autograd.grad(total, variables, create_graph=True, materialize_grads=True)
    return [*everything, *values]
