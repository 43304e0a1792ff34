"""Prints the kernels of every layer of the catalogue, and takes the hash of each source.

Run `python -m tests.golden.sources --write` to make `sources.json` from the tree, or without the option to compare.
"""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TRITON_INTERPRET", "1")  # backend triton takes CPU tensors, with the plan for an NVIDIA GPU

import torch

import eqlayers_kernels.triton.run.forms as of_products
import eqlayers_kernels.triton.run.formula_run as of_formulas
from eqlayers.core.backends.forms import RUNNERS
from eqlayers.errors import BackendError
from eqlayers_kernels.c.build import compiler
from eqlayers_kernels.c.run.launch import Compiled
from tests.catalogue.cases import Case, results
from tests.catalogue.test_layers import CASES as ALL

#: Rows of repeated irreps have the kernels of other rows.
CASES = [case for case in ALL if case.family != "Repeated irreps"]
STORED = Path(__file__).with_suffix(".json")
#: The key of a form: its format may change, the kernel may not.
KEY = re.compile(r"[0-9a-f]{16,64}(?:[-:/][^\s\"']*)?")


class Silent:
    """A kernel that is printed and not run."""

    def __getitem__(self, grid: Any) -> Any:
        return lambda *args, **meta: None


@contextmanager
def recorded(backend: str) -> Iterator[set[str]]:
    """Hashes of the sources that are printed in the block. Their kernels do not run, as results decide nothing."""
    sources: set[str] = set()

    def note(*units: str) -> None:
        sources.update(hashlib.sha256(KEY.sub("KEY", unit).encode()).hexdigest()[:16] for unit in units)

    def note_kernel(kernel: Compiled, name: str, units: Sequence[str]) -> None:
        note(*units)

    def note_silently(source: str, name: str) -> Silent:
        note(source)
        return Silent()

    def note_and_load(units: tuple[str, ...], *rest: Any, load: Any = compiler._load) -> Any:
        note(*units)
        return load(units, *rest)

    with ExitStack() as patches:
        if backend == "cpu":
            patches.enter_context(mock.patch.object(compiler, "_load", note_and_load))  # the sorting of a graph
            patches.enter_context(mock.patch.object(Compiled, "__init__", note_kernel))
            patches.enter_context(mock.patch.object(Compiled, "__call__", return_value=None))
        else:
            for module in (of_products, of_formulas):
                patches.enter_context(mock.patch.object(module, "function", note_silently))
        yield sources


def two_orders(case: Case, layer: torch.nn.Module, layout: str, dtype: torch.dtype) -> None:
    """A value, all gradients, and their gradients, with 5 rows."""
    arguments = case.in_layout(case.arguments(dtype=dtype), layout)
    wanted = [arguments[name].requires_grad_() for name in case.gradients(arguments)]
    wanted += [weight for weight in layer.parameters() if weight.requires_grad]
    values = [value for value in results(layer(**arguments)) if value.requires_grad]
    if not values:
        return
    generator = torch.Generator().manual_seed(7)

    def weighted(tensors: Any) -> torch.Tensor:
        return sum((one * torch.randn(one.shape, generator=generator).to(one)).sum() for one in tensors)

    first = torch.autograd.grad(weighted(values), wanted, create_graph=True, allow_unused=True)
    first = [one for one in first if one is not None and one.requires_grad]
    if first:
        torch.autograd.grad(weighted(first), wanted, allow_unused=True)


def printed(backend: str) -> list[str]:
    """Hashes of all sources of a backend; which layer comes first to a source that several share does not matter."""
    from rich.progress import track

    kinds = [(case, *how) for case in CASES for how in product(case.layouts, (torch.float32, torch.float64))]
    layers = [case.layer(layout, dtype) for case, layout, dtype in kinds]  # which may look at values of their functions
    RUNNERS.clear()  # all kernels are printed in the block, and none of these is run behind it
    with recorded(backend) as sources:
        for layer, (case, layout, dtype) in track([*zip(layers, kinds, strict=True)], backend):
            for module in layer.modules():
                if hasattr(module, "backend"):
                    module.backend = backend
            for threads in (2, 1) if backend == "cpu" else (1,):  # kernels of several threads, and of one
                torch.set_num_threads(threads)
                with suppress(BackendError):  # a layer that the kernels refuse
                    two_orders(case, layer, layout, dtype)
    RUNNERS.clear()
    return sorted(sources)


def differences(old: dict[str, list[str]], new: dict[str, list[str]]) -> list[str]:
    """A line for each backend whose sources are not as they were."""
    return [
        f"{backend}: {len({*old[backend]} - {*new[backend]})} sources of {len(old[backend])} are gone, "
        f"{len({*new[backend]} - {*old[backend]})} are new"
        for backend in old
        if old[backend] != new[backend]
    ]


if __name__ == "__main__":
    now = {backend: printed(backend) for backend in ("cpu", "triton")}
    if "--write" in sys.argv:
        STORED.write_text(json.dumps(now, indent=0, sort_keys=True) + "\n")
    changed = differences(json.loads(STORED.read_text()), now)
    print("\n".join(changed) or f"{len(now['cpu'])} sources in C and {len(now['triton'])} in Triton are as before")
    sys.exit(bool(changed))
