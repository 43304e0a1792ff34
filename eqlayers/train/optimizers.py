"""The optimizer of a training: by its name, or any class of torch or of the user's by its path."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..core.checks import check_choice, got
from ..core.errors import ConfigError, EqlayersError
from ..optim import SOAP, parameter_groups
from ..optim.soap import check_betas


class Named(NamedTuple):
    """An optimizer with a name, and its usual options."""

    cls: type[torch.optim.Optimizer]
    betas: tuple[float, float]
    options: dict[str, Any]


OPTIMIZERS = {
    "soap": Named(SOAP, (0.95, 0.98), {}),
    "adamw": Named(torch.optim.AdamW, (0.9, 0.999), {"fused": True}),  # one call: small networks have many parameters
}


def check_optimizer(choice: Any, betas: Any) -> tuple[str, dict[str, Any]]:
    """Name or class path of an optimizer, and its further options; nothing is imported.

    Example:
        >>> check_optimizer({"class_path": "soap", "init_args": {"block": 32}}, None)
        ('soap', {'block': 32})
    """
    if betas is not None:
        check_betas("model.betas", betas)
    whole = {"class_path": choice} if isinstance(choice, str) else choice
    path = whole.get("class_path") if isinstance(whole, Mapping) else None
    options = whole.get("init_args", {}) if isinstance(whole, Mapping) else None
    if not isinstance(path, str) or not isinstance(options, Mapping) or whole.keys() - {"class_path", "init_args"}:
        raise ConfigError(
            f"model.optimizer must be {' or '.join(OPTIMIZERS)}, or class_path and init_args of a class, got "
            f"{got(choice)}. For example: {{class_path: soap, init_args: {{block: 32}}}}."
        )
    if "." not in path:
        check_choice("model.optimizer", path, OPTIMIZERS)
    return path, dict(options)


def build_optimizer(
    choice: Any, model: nn.Module, learning_rate: float, betas: Sequence[float] | None, weight_decay: float
) -> torch.optim.Optimizer:
    """The optimizer of a network's parameters, of which matrices alone are decayed; or ConfigError."""
    path, further = check_optimizer(choice, betas)
    named = OPTIMIZERS.get(path)
    try:
        cls: Any = named.cls if named else pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise ConfigError(
            f"model.optimizer must be a class that can be imported, got {path!r}: {error}. Install its package, or "
            "name the folder of its file: PYTHONPATH=folder eqlayers ..."
        ) from error
    if not (inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer)):
        raise ConfigError(f"model.optimizer must be a class of torch.optim.Optimizer, got {path!r}. Correct its name.")
    options: dict[str, Any] = {"lr": learning_rate, **(named.options if named else {})}
    if betas is not None or named:
        options["betas"] = tuple(betas or named.betas)  # type: ignore[union-attr]
    try:
        of_module = "module" in inspect.signature(cls).parameters
        if cls is SOAP and any(weight.is_cuda for weight in model.parameters()):
            options["capturable"] = True  # reads nothing from the GPU in a step, and counts steps that it skips
        what: Any = model if of_module else parameter_groups(model, weight_decay)
        return cls(what, **options | ({"weight_decay": weight_decay} if of_module else {}) | further)
    except EqlayersError:
        raise
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"model.optimizer must take parameters and {', '.join(options | further)}, got {path}: {error}. Leave out "
            "model.betas, or correct init_args."
        ) from error
