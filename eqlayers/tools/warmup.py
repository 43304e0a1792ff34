"""Kernels of a step, compiled ahead of time: the step runs once, and the kernels that it asks for are recorded."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from eqlayers_kernels.c.build import cache as disk
from eqlayers_kernels.forms.formula import Operand
from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import groups
from eqlayers_kernels.triton.run import aot, compiling
from eqlayers_kernels.triton.run.forms import GATHERED
from eqlayers_kernels.triton.segment import launch

from ..core.backends import cpu
from ..core.backends.recording import Results, watching
from ..core.checks import check_choice, check_function, check_items, check_module, check_optional
from ..core.errors import BackendError
from ..core.forms.keys import describe, take_apart
from ..core.forms.request import Request
from ..layers.base.module import EquivariantModule

Progress = Callable[[Sequence[Any], str], Iterable[Any]]

_HEADER = ("layer", "computes", "dtype", "over", "for", "seconds", "kernels")
_ORDERS = ("value", "gradients", "second derivatives", "further derivatives")
_UNTRIED = (
    "{}: compiled without a GPU; whether one finds these kernels in the folder was not tried. Kernels of single sparse "
    "products, and of a formula's sums of rows, are compiled at their first call."
)


@dataclass(frozen=True)
class WarmupRow:
    """The result for one kind of call.

    Attributes:
        layer: Path of the first layer of the model that makes it, and how many more do; without a model the size of
            the form.
        computes: 'value', or derivatives and the operands that they belong to.
        dtype: Of the operands.
        over: 'rows' or 'edges', whether one row of weights serves all, and whether sums may have any order.
        device: 'cpu', 'cuda' or the name of a target.
        seconds: Of the first call of the step; for a target, of compiling alone.
        compiled: Kernels that were compiled; 0 if all were there.
        reason: Why a target got no kernel; empty if it did.
    """

    layer: str
    computes: str
    dtype: str
    over: str
    device: str
    seconds: float
    compiled: int
    reason: str = ""


@dataclass(frozen=True)
class WarmupReport:
    """The report of :func:`warmup`; ``str`` and ``print`` give a table.

    Attributes:
        rows: The calls in the order of the step, then the calls of each target.
        others: Kernels that were compiled for the step, but not for these calls: sorting edges, sparse products.
        folders: Where the kernels are, by device.
    """

    rows: tuple[WarmupRow, ...]
    others: int
    folders: dict[str, str]

    def __str__(self) -> str:
        done = [row for row in self.rows if not row.reason]
        cells = [_HEADER, *(_cells(row) for row in done)] if done else []
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        lines = ["  ".join(c.ljust(width) for c, width in zip(line, widths, strict=True)).rstrip() for line in cells]
        lines += [f"left for {r.device}: {r.layer} ({r.computes}) {r.reason}" for r in self.rows if r.reason]
        targets = [name for name in self.folders if name in aot.TARGETS]
        lines += [f"note: {_UNTRIED.format(', '.join(targets))}"] if targets else []
        return "\n".join([*lines, self.summary()])

    def summary(self) -> str:
        """One line: how many were compiled, and where they are."""
        if not self.rows:
            return "the step called no layer that runs in kernels of this package"
        made, ready = sum(row.compiled for row in self.rows), sum(not (r.compiled or r.reason) for r in self.rows)
        counts = f"{made} kernel{'s' * (made != 1)} compiled" + (f" and {self.others} others" if self.others else "")
        places = "; ".join(f"{device}: {folder}" for device, folder in self.folders.items())
        return f"{counts}, {ready} call{'s' * (ready != 1)} found theirs; {places}"


def warmup(
    step: Callable[[], object],
    targets: Sequence[str] = (),
    model: torch.nn.Module | None = None,
    progress: Progress = lambda calls, what: calls,
) -> WarmupReport:
    """Compile all kernels that a step needs, so that other processes find them on disk.

    The step runs once, as it is: on the device of its tensors, whose kernels it so compiles. For targets, processors
    that need not be there, the printed kernels of all forms that it called are compiled besides.

    Args:
        step: One step as later processes do it: value and loss, ``backward()`` and whatever else calls layers.
        targets: Names of ``eqlayers_kernels.triton.run.aot.TARGETS``, such as 'sm_90'.
        model: Whose layers the report names.
        progress: Called with the calls to compile for a target and a few words, returns them one by one; as
            ``tqdm.tqdm`` and ``rich.progress.track`` do.

    Returns:
        A report with a row for every kind of call.

    Raises:
        ConfigError: An unknown target. BackendError: There is nothing to compile with, or no folder to keep it in.

    Example:
        >>> import eqlayers as eq
        >>> layer = eq.TensorProduct("2x0e", "1o", "2x1o", [(0, 0, 0, "uvu", True)])
        >>> x, y = torch.randn(5, 2, requires_grad=True), torch.randn(5, 3)
        >>> report = warmup(lambda: layer(x, y).sum().backward(), model=layer)
        >>> [(row.layer, row.computes, row.dtype) for row in report.rows]
        [('TensorProduct', 'value', 'float32'), ('TensorProduct', 'gradients of x, w', 'float32')]
    """
    _check_targets(targets)
    check_function("step", step, "a function without arguments")
    check_optional(check_module, "model", model)
    seen: dict[Request, tuple[float, set[str]]] = {}
    with _compiled_by_triton(bool(targets)) as made:
        first = _in_c_cache()

        def watch(asked: Request, run: Callable[[], Results]) -> Results:
            if asked in seen:
                return run()
            before, start = _in_c_cache() | made, time.perf_counter()
            results = run()
            seen[asked] = time.perf_counter() - start, (_in_c_cache() | made) - before
            return results

        with watching(watch):
            step()
        others = ((_in_c_cache() | made) - first).difference(*(new for _, new in seen.values()))
        folders = _folders(seen, targets)
        names = {} if model is None else _names(model, seen)
        rows = [_row(names, asked, asked.device.type, seconds, len(new)) for asked, (seconds, new) in seen.items()]
        for target in folders:
            if target in targets:
                rows += _for_target(target, seen, names, made, progress)
    return WarmupReport(tuple(rows), len(others), folders)


def _check_targets(targets: Sequence[str]) -> None:
    what, fix = "a list of names of architectures", "Pass a list, also for one target."
    for name in check_items("targets", targets, what, fix):
        check_choice("target", name, aot.TARGETS)
        try:
            with aot.target(name):
                pass
        except ImportError as error:
            raise BackendError(
                f"compiling for {name} needs the package triton, got: {error}. Install eqlayers[triton]."
            ) from error
        except RuntimeError as error:
            raise BackendError(str(error)) from error


# -- compiled kernels --------------------------------------------------------------------------------------------------


def _in_c_cache() -> set[str]:
    with suppress(OSError):
        return {path.name for path in disk.directory().glob("*.so")}
    return set()


@contextmanager
def _compiled_by_triton(wanted: bool) -> Iterator[set[str]]:
    """Hashes of the kernels that Triton compiles within the block, without kernels that it reads from disk."""
    made: set[str] = set()
    if not wanted and availability.why_not() is not None:
        yield made
        return
    from triton import knobs

    before = knobs.compilation.listener

    def listen(*, metadata: dict[str, Any], cache_hit: bool, **rest: Any) -> None:
        if not cache_hit:
            made.add(metadata["hash"])
        if before is not None:
            before(metadata=metadata, cache_hit=cache_hit, **rest)

    knobs.compilation.listener = listen
    try:
        yield made
    finally:
        knobs.compilation.listener = before


def _folders(seen: Iterable[Request], targets: Sequence[str]) -> dict[str, str]:
    """The folders of the kernels of a step, or an error if none are kept."""
    who = {asked.backend: asked.device.type for asked in seen}
    if targets and not who:
        reason = cpu.refuse(Request(None, "", torch.float32, torch.device("cpu"))) or "was not asked"
        raise BackendError(
            f"the step must run whole layers of this package in kernels to be compiled for {', '.join(targets)}, got "
            f"none; backend 'cpu' {reason}. Mend that, or check the step."
        )
    folders = {}
    if "cpu" in who:
        held = disk.info()
        if held.problem or not held.entries:
            raise BackendError(
                f"compiled kernels must be kept in {held.directory or 'a folder'} for other processes, got none there: "
                f"{held.problem or 'nothing was written'}. Set EQLAYERS_CACHE_DIR to a folder of yours."
            )
        folders["cpu"] = held.directory
    on = [who["triton"]] if who.get("triton") == "cuda" else []
    for name in (*on, *targets):
        from triton import knobs

        folders[name] = str(knobs.cache.dir)
    return folders


# -- processors that need not be there --------------------------------------------------------------------------------


def _for_target(
    target: str, seen: Iterable[Request], names: dict[str, str], made: set[str], progress: Progress
) -> Iterator[WarmupRow]:
    """Compile the kernels of all calls, several calls at a time where Triton can."""
    calls = list(dict.fromkeys(replace(asked, backend="triton", device=torch.device("cuda")) for asked in seen))

    def compiled(asked: Request) -> WarmupRow:
        start = time.perf_counter()
        reason = _COMPILED[asked.form.family].why_not(asked.form)
        if reason is not None:
            return _row(names, asked, target, 0.0, 0, reason)
        kernels = _COMPILED[asked.form.family].compile(asked)
        hashes = {kernel.hash for _, kernel in kernels}
        return _row(names, asked, target, time.perf_counter() - start, len(hashes & made))

    with aot.target(target), ThreadPoolExecutor(compiling.threads()) as pool:
        sums = {launch.accumulator(asked.dtype) for asked in calls if asked.graph}
        work = [pool.submit(_sums_of_pieces, dtype, target, made) for dtype in sums]
        work += [pool.submit(compiled, asked) for asked in calls]
        try:
            for one in progress(work, f"kernels for {target}"):
                yield one.result()
        finally:
            pool.shutdown(cancel_futures=True)  # an interrupt need not wait for all


def _sums_of_pieces(dtype: torch.dtype, target: str, made: set[str]) -> WarmupRow:
    """Compile the kernel that adds up the pieces of nodes with many edges."""
    from eqlayers_kernels.triton.run.gather import add_pieces

    start, rows, room = time.perf_counter(), torch.empty(8, 8, dtype=dtype), torch.zeros(9, dtype=torch.int64)
    kernel = add_pieces.warmup(rows, rows, room, 8, 8, **GATHERED, grid=(8,))
    compiled = int(kernel.hash in made)
    seconds = time.perf_counter() - start
    return WarmupRow("all convolutions", "sums of pieces", _short(dtype), "edges", target, seconds, compiled)


# -- words ------------------------------------------------------------------------------------------------------------


def _row(
    names: dict[str, str], asked: Request, device: str, seconds: float, compiled: int, reason: str = ""
) -> WarmupRow:
    root, size, computes, words = _COMPILED[asked.form.family].words(asked)
    over = ", ".join(("edges" if asked.graph else "rows", *words))
    dtype = _short(asked.dtype)
    return WarmupRow(names.get(root, size), computes, dtype, over, device, seconds, compiled, reason)


def _of_formula(asked: Request) -> tuple[str, str, str, list[str]]:
    """The key that layers have, the size of the form, what is computed, and how."""
    root, _, steps = take_apart(asked.key)
    base, order = describe(root).form, steps.count("/")
    computes = _ORDERS[min(order, len(_ORDERS) - 1)] + (f" of {_bare(asked.form.results)}" if order else "")
    if steps.rpartition("/")[2].startswith("a"):
        before = describe(asked.key.rpartition("/")[0]).form.operands
        computes += f" along {_bare(asked.form.operands[len(before) :])}"
    return root, f"formula of {base.operations} operations", computes, []  # type: ignore[attr-defined]


def _of_product(asked: Request) -> tuple[str, str, str, list[str]]:
    form: ProductForm = asked.form
    program, kind = form.program, form.kind
    computes = _ORDERS[kind.order] + (f" of {', '.join(kind.results)}" if kind.order else "")
    computes += f" along {', '.join(kind.tangents)}" if kind.tangents else ""
    words = {"shared weights": form.shared, "weights from a table": form.reading is not None}
    words["in any order"] = not asked.deterministic
    size = f"{len(program.paths)} paths, {program.num_terms} terms"
    return program.key, size, computes, [word for word, holds in words.items() if holds]


class _Family(NamedTuple):
    """Facts about the kernels of a family of forms: their words, why there are none, and how they compile."""

    words: Callable[[Request], tuple[str, str, str, list[str]]]
    why_not: Callable[[Any], str | None]
    compile: Callable[[Request], Iterable[tuple[Any, Any]]]


_COMPILED = {
    "formula": _Family(
        _of_formula, lambda form: None, lambda asked: aot.compile_formula(asked.form, asked.dtype, jobs=1)
    ),
    "product": _Family(
        _of_product,
        lambda form: groups.why_not(form.program),
        lambda asked: aot.compile_form(
            asked.form.program,
            asked.form.kind,
            asked.dtype,
            asked.graph,
            asked.form.shared,
            not asked.deterministic,
            1,
            asked.form.reading,
        ),
    ),
}


def _bare(operands: Iterable[Operand]) -> str:
    """Names of operands, without 'gradient of' and similar words."""
    return ", ".join(dict.fromkeys(re.sub("(gradient|cotangent|tangent) of ", "", one.name) for one in operands))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _cells(row: WarmupRow) -> tuple[str, ...]:
    kernels = f"{row.compiled} compiled" if row.compiled else "found"
    return (row.layer, row.computes, row.dtype, row.over, row.device, f"{row.seconds:.2f}", kernels)


def _names(model: torch.nn.Module, seen: Iterable[Request]) -> dict[str, str]:
    """Paths of the layers that run each form; derivatives are named after the form of its weighted paths."""
    paths: dict[str, dict[str, None]] = {}
    layers = [(path, layer) for path, layer in model.named_modules() if isinstance(layer, EquivariantModule)]
    for path, layer in layers:
        for base in layer.formulas():
            paths.setdefault(base.key, {})[path or type(layer).__name__] = None
    for dtype, device in {(asked.dtype, asked.device) for asked in seen}:
        for path, layer in layers:
            whole = layer.whole_call(dtype, device)
            form = None if whole is None else whole[1].form
            if form is not None:
                for key in (form.program.key, form.weighted.program.key):
                    paths.setdefault(key, {})[path or type(layer).__name__] = None
    shown = {key: (next(iter(layers_of)), len(layers_of) - 1) for key, layers_of in paths.items()}
    return {key: f"{first} (+{more} more)" if more else first for key, (first, more) in shown.items()}
