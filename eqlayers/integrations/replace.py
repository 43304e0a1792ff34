"""`accelerate` and `deaccelerate`: replace the e3nn layers of a model by layers of this package, and undo it."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..core.backends import check_backend
from ..core.checks import check_flag, check_items, check_module, check_number, got
from ..core.errors import BackendError, ConfigError, EqlayersError
from ..e3nn_compat.state_dict import E3nnState
from ..hints.names import HINTS, named_arguments
from ..layers.tensor_product.module import ProductLayer
from ..nn import Linear
from .check import compare
from .kinds import KEPT, RULES, TARGETS, is_layer, is_scripted_layer, is_whole, kept_kind
from .kinds.convolution import AcceleratedMessages
from .kinds.harmonics import is_harmonics
from .lazy import make_eager
from .radial import TabledEmbedding, tables
from .replacement import Replacement, Rule, Where, dtype_and_device
from .report import Report, Row, cover, warn_fault
from .structure import OURS, Registered, Registration, find_aliases, find_modules, is_compiled


@dataclass
class _Job:
    """A module to be replaced, its rule, its registrations in the model, and its row of the report."""

    rule: Rule
    original: nn.Module
    registrations: list[Registration]
    row: Row


@named_arguments
def accelerate(
    model: nn.Module,
    *,
    backend: str | None = None,
    targets: Iterable[str] | str | None = None,
    inplace: bool = True,
    check: bool = True,
    radial: str | None = None,
    tolerance: float = 1e-4,
) -> Report:
    """Replace the e3nn layers of a model by our layers, with the same numbers, Parameters and state-dict keys.

    Optimizers built before go on working, for the Parameters are the same objects. Checkpoints load as before, in both
    directions. What cannot be replaced soundly is left as it is, with the reason in the report.

    Args:
        model: A model with e3nn layers: e3nn's own, NequIP's, MACE's, or any other.
        backend: Name of a backend for all replacements, or None for the first that accepts.
        targets: Which kinds to replace, of 'convolution' (gather, product and sum in one call),
            'product', 'linear', 'harmonics', 'contraction' (MACE's and Allegro's), 'gate' (with the product inside
            it), 'norm' (batch norm) and 'grid' (activations on grids); None for all.
        inplace: Change ``model``; else a deep copy, which is the ``model`` of the report.
        check: Compare every replacement with its original on random inputs: value, first and second derivatives. Copies
            of both in float64 must agree to 1e-10 of the norm, and both as they are to a tolerance of their dtype,
            5e-5 in float32. The model's state, modes and random numbers are not touched.
        radial: 'table' for radial networks by interpolation (:class:`eqlayers.nn.RadialTable`), where fused
            convolutions of MACE, NequIP and SevenNet read them; None for the networks as they are. Tables are made in
            every call in which gradients may reach weights; otherwise (parameters that require no gradient, or
            ``torch.no_grad``) once, and again after weights have changed.
        tolerance: Of these tables: largest errors of weights and of their slopes, relative to the largest.

    Returns:
        What was replaced by what, how exactly, and what was left and why; print it.

    Raises:
        MismatchError: A replacement gives other numbers. The model is as it was.
        BackendError: The named backend refuses a layer. The model is as it was.
        ConfigError: ``model`` is no module, or itself a layer, which no other module holds; an unknown backend or
            target; a flag that is neither True nor False.

    Example:
        >>> from e3nn import o3
        >>> model = torch.nn.Sequential(o3.Linear("8x0e + 4x1o", "8x0e + 4x1o"), o3.Norm("8x0e + 4x1o"))
        >>> report = accelerate(model)
        >>> [(row.path, row.replacement) for row in report.replaced]
        [('0', 'AcceleratedLinear'), ('1.tp', 'AcceleratedTensorProduct')]
        >>> print(report.coverage)
        2 of 3 modules and 80 of 80 parameters are in layers that eqlayers knows
    """
    use = HINTS.get(f"accelerate({type(model).__name__})")
    check_module("model", model, fix=None if use is None else f"Use {use}.")
    check_backend(backend)
    requested = _read_targets(targets)
    inplace, check = check_flag("inplace", inplace), check_flag("check", check)
    if radial not in (None, "table"):
        raise ConfigError(f"radial must be 'table' or None, got {got(radial)}. Pick one.")
    tolerance = check_number("tolerance", tolerance, above=0, fix="1e-4 is usual.")
    original = model
    if not inplace:
        model = _copied(model)
    registered = find_modules(model, _closed)
    parts = {part for whole in registered if is_whole(whole) for part in whole.modules() if part is not whole}
    jobs, rows = _plan(registered, requested, parts)
    ours = sum(isinstance(m, OURS) and not isinstance(m, Replacement) for m in registered)
    coverage = cover((m for m in registered if m not in parts), lambda m: _closed(m) or is_whole(m), _is_known)
    if inplace and any(job.original is model for job in jobs):
        raise ConfigError(
            f"model must hold the modules that are replaced, got a {type(model).__name__}, which is one itself. Use "
            f"accelerate(model, inplace=False).model, or eqlayers.TensorProduct.from_e3nn(model)."
        )
    like = dtype_and_device(model)
    done = [(job, new) for job in jobs if (new := _build(job, backend, check, like)) is not None]
    for job, new in done if model is not original else ():
        _keep_keys(job, new, original)
    known = {job.original: new for job, new in done}
    tabled = [] if radial is None else list(tables(registered, known, tolerance))
    if radial is not None and not tabled and not any(isinstance(module, TabledEmbedding) for module in registered):
        reason = "has no radial networks that this package knows"
        reason += "; eqlayers.compress(model) makes tables of its own" if ours else ""
        rows.append(Row("", type(model).__name__, "radial", reason=reason))
    for job, new in done:  # nothing below can fail: all are put in, or none
        if job.original is model:
            model = new
        for registration in job.registrations:
            _put(registration, new)
    for row, replacements in tabled:
        rows.append(row)
        for registration, new in replacements:
            _put(registration, new)
    order = {at.path: number for number, at in enumerate(at for known in registered.values() for at in known)}
    rows += [job.row for job in jobs]
    return Report(tuple(sorted(rows, key=lambda row: order[row.path])), model, coverage, ours=ours)


def _copied(model: nn.Module) -> nn.Module:
    # copies share e3nn's compiled functions of harmonics, which have no copies
    compiled = [vars(module).get("sph_func") for module in model.modules() if is_harmonics(module)]
    try:
        return copy.deepcopy(model, {id(function): function for function in compiled if function is not None})
    except Exception as error:  # of any class within it
        words = " ".join(str(error).split())
        raise ConfigError(
            f"model must be one that copy.deepcopy copies for inplace=False, got {type(error).__name__}: {words}. "
            "Leave inplace=False out, or load the model a second time and accelerate that one."
        ) from error


def deaccelerate(model: nn.Module) -> nn.Module:
    """Put the original module objects back, with the current parameters, mode, device and dtype.

    Args:
        model: A model that :func:`accelerate` changed, or a copy of one, or one that was saved and loaded since.

    Returns:
        ``model``; or the original, if ``model`` itself is a replacement.

    Raises:
        ConfigError: ``model`` is no module; or a replacement is inside ``torch.compile(module)``, which would go on to
            call it.

    Example:
        >>> from e3nn import o3
        >>> layer = o3.Linear("8x0e", "4x0e")
        >>> model = torch.nn.Sequential(layer)
        >>> _ = accelerate(model)
        >>> deaccelerate(model)[0] is layer
        True
    """
    check_module("model", model)
    held = {m: known for m, known in find_modules(model, _closed).items() if isinstance(m, Replacement)}
    for registration in (one for known in held.values() for one in known if is_compiled(one)):
        raise ConfigError(
            f"no replacement must be compiled by itself, got {registration.path} inside torch.compile(module), "
            f"which would go on to call it. Take it out first, as its attribute _orig_mod."
        )
    for module, registrations in held.items():
        original = deaccelerate(module.restore())  # which may hold replacements itself
        for registration in registrations:
            if registration.parent is None:
                model = original
                continue
            registration.set(original)
            module.unmark(registration.parent)
    for held_module in model.modules():
        make_eager(held_module)  # also if the user has taken the replacement out
    return model


def _read_targets(targets: Iterable[str] | str | None) -> set[str]:
    if targets is None:
        return set(TARGETS)
    what = f"of {', '.join(TARGETS)}, or None for all"
    items = [targets] if isinstance(targets, str) else check_items("targets", targets, what, "Pick from these.")
    if unknown := [item for item in items if item not in TARGETS]:
        raise ConfigError(f"targets must be {what}, got {got(unknown)}. Pick from these.")
    return set(items)


def _closed(module: nn.Module) -> bool:
    """Whether the submodules of a module are not searched for layers: layers of e3nn, replacements, and TorchScript."""
    return isinstance(module, (torch.jit.ScriptModule, Replacement)) or is_layer(module)


def _is_known(module: nn.Module) -> bool:
    """Whether a module is a layer of e3nn, in Python or TorchScript, or a layer of this package."""
    return isinstance(module, (*OURS, Replacement)) or any(t(module) for t in (is_layer, is_whole, is_scripted_layer))


def _plan(registered: Registered, requested: set[str], parts: set[nn.Module]) -> tuple[list[_Job], list[Row]]:
    """Modules to replace, and rows of the report for those that stay; ``parts`` are inside of replaced e3nn layers."""
    jobs: dict[nn.Module, _Job] = {}
    taken: set[nn.Module] = set()  # products that a convolution replaces with itself
    every = requested == set(TARGETS)
    rows = [_left(m, known[0], why) for m, known in registered.items() if (why := _known(m, every and m not in parts))]
    layers = {module for module in registered if is_layer(module) or is_whole(module)}
    aliases = find_aliases(((known[0].path, module) for module, known in registered.items()), layers)
    rules = [rule for rule in RULES if rule.target in requested]
    for rule, module, part in ((one, m, part) for one in rules for m in registered for part in one.parts(m)):
        original = module.get_submodule(part)
        product = original.get_submodule(rule.inner)
        if module in taken or original in jobs:
            continue
        registrations = registered[original]
        reason = rule.refuse(module) or _refuse_registered(rule, original, product, part, registered, aliases)
        if reason:
            rows.append(_left(original, registrations[0], reason, rule.target))
            continue
        paths = tuple(one.path for one in registrations)
        row = Row(paths[0], type(original).__name__, rule.target, places=paths)
        jobs[original] = _Job(rule, original, registrations, row)
        taken.update((original, product))
    put = {(job.row.path, job.row.target) for job in jobs.values()}  # what one rule refused another one may have taken
    return list(jobs.values()), [row for row in rows if (row.path, row.target) not in put]


def _known(module: nn.Module, kept: bool) -> str:
    """Why a module without a rule stays; empty if it has no row. ``kept``: whether layers that always stay have one."""
    if isinstance(module, Replacement):
        return "is accelerated already"
    if is_scripted_layer(module):
        return "is TorchScript, which nothing can be taken out of: call accelerate before torch.jit"
    kind = kept_kind(module) if kept else ""
    return KEPT[kind][1] if kind else ""


def _refuse_registered(
    rule: Rule, original: nn.Module, product: nn.Module, part: str, held: Registered, aliases: dict[nn.Module, str]
) -> str | None:
    """Why what holds a module or its product prevents its replacement, or None; ``part``: its name in the rule."""
    if any(map(is_compiled, held[original])):
        return "is inside torch.compile(module), which would go on to call it: call torch.compile after accelerate"
    for module in (original, product):
        if module in aliases:
            return f"is held in the attribute {aliases[module]} too, outside the registered modules"
    if rule.target not in ("convolution", "gate") or rule.anywhere:
        return None
    fits = all(
        one.parent is not None
        and (one.parent is original or (rule.parts(one.parent) and rule.refuse(one.parent) is None))
        and one.name == (rule.inner or part)
        for one in held[product]
    )
    return None if fits else f"holds a product that sits elsewhere too, where it is no {rule.target}"


def _left(module: nn.Module, registration: Registration, reason: str, target: str = "") -> Row:
    """The row of a module that stays."""
    path = registration.path
    return Row(path, type(module).__name__, target, reason=reason, places=(path,))


def _build(job: _Job, backend: str | None, check: bool, like: Where) -> Replacement | None:
    """Make the replacement of a job and compare it with the original, or write the reason against it into the row."""
    original, path = job.original, job.row.path
    try:
        new = job.rule.build(original, backend)
        dtype, device = dtype_and_device(original, like)
        layer: Any = new if isinstance(new, OURS) else new.get_submodule(job.rule.inner)
        runs_on = layer.selected_backend(device, dtype)
    except Exception as error:
        if isinstance(error, BackendError) and backend is not None:
            raise
        job.row = replace(job.row, reason=f"cannot be built anew: {type(error).__name__}: {error}")
        if not isinstance(error, EqlayersError):
            warn_fault(job.row)
        return None
    reason = _other_state(original, new)
    comparison = compare(original, new, path, like) if check and not reason else None
    if comparison is not None and comparison.failure:
        reason = f"could not be compared, it raises itself: {comparison.failure}"
    if reason:
        job.row = replace(job.row, reason=reason)
        return None
    paths = len(layer.instructions) if isinstance(layer, (ProductLayer, Linear)) else layer.num_paths
    job.row = replace(job.row, replacement=type(new).__name__, backend=runs_on, paths=paths)
    if isinstance(new, AcceleratedMessages):
        note = "is one call where its forward adds the results up at once, and a product where it uses them otherwise"
        job.row = replace(job.row, note=note)
    if comparison is not None:
        note = "; ".join(filter(None, (job.row.note, comparison.note)))
        job.row = replace(job.row, error=comparison.error, saved_bytes=comparison.saved_bytes, note=note)
    return new


def _other_state(original: nn.Module, new: nn.Module) -> str:
    """How two state dicts differ in keys, their order, shapes, dtypes or values; empty if they are equal."""
    theirs, mine = original.state_dict(), new.state_dict()
    if list(theirs) != list(mine):
        keys = ", ".join(sorted(set(theirs) ^ set(mine))) or "in another order"
        return f"has a state dict with keys that its replacement would not write: {keys}"
    for key, value in theirs.items():
        other = mine[key]
        same = value.shape == other.shape and value.dtype == other.dtype and value.device == other.device
        if not same or not (value.data_ptr() == other.data_ptr() or torch.equal(value, other)):
            return f"has a state dict whose {key} its replacement would change"
    return ""


def _keep_keys(job: _Job, new: Replacement, original: nn.Module) -> None:
    """Give the replacement in a copied model the state-dict keys of the given model: e3nn's copies have more keys."""
    layer = new.get_submodule(job.rule.inner)
    if isinstance(layer, E3nnState):
        path = ".".join(filter(None, (job.row.path, job.rule.inner)))
        layer._keep_generated(original.get_submodule(path))


def _put(registration: Registration, replacement: Replacement) -> None:
    """Register a replacement in its parent, and tell the parent; the model itself has none."""
    if registration.parent is not None:
        registration.set(replacement)
        replacement.mark(registration.parent)
