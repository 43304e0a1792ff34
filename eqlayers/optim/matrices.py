"""Matrices among the weights of a network: which numbers of which parameter are one, for optimizers of matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from e3nn import o3
from torch import nn

from ..core.checks import check_module, got
from ..core.errors import ConfigError
from ..layers.base.weights import product_shapes

#: Shapes of a parameter's numbers, in their order: matrices ``(rows, columns)``, and vectors ``(numbers,)``.
Shapes = list[tuple[int, ...]]


def _of_linear(module: Any) -> dict[str, Shapes]:
    shapes = [tuple(ins.path_shape) for ins in module.instructions if ins.i_in >= 0]
    return {"weight": shapes * math.prod(module.weight.shape[:-1])}  # after axes f_in, f_out


#: Classes of other packages with weights that are written as one axis -> the shapes of these weights.
FOREIGN = {o3.Linear: _of_linear, o3.TensorProduct: lambda module: {"weight": product_shapes(module.instructions)}}


def _are_shapes(told: Any) -> bool:
    """Whether a list has shapes of one or two positive integers."""
    return isinstance(told, Sequence) and all(
        isinstance(shape, tuple) and len(shape) in (1, 2) and all(isinstance(n, int) and n > 0 for n in shape)
        for shape in told
    )


def shapes_of(module: nn.Module) -> dict[str, Shapes]:
    """The shapes of the numbers of every parameter of this module alone, by its name.

    A layer tells the shapes by its method ``weight_matrices``, which returns such a dictionary; layers of e3nn tell
    them by their instructions. Any other parameter with two axes is a matrix. All others are vectors, such as weights
    of a contraction ``[species, paths, channels]``, which mix no channels: with them as matrices, errors were larger.

    Raises:
        ConfigError: ``weight_matrices`` returns no shapes by name, or shapes that do not cover the numbers.
    """
    told = getattr(module, "weight_matrices", None)
    foreign = next((shapes for cls, shapes in FOREIGN.items() if isinstance(module, cls)), lambda _: {})
    known: Any = told() if told is not None else foreign(module)
    named = isinstance(known, Mapping) and all(isinstance(name, str) and hasattr(module, name) for name in known)
    if not named or not all(map(_are_shapes, known.values())):
        raise ConfigError(
            f"weight_matrices() of {type(module).__name__} must return a dictionary from names of parameters to lists "
            f"of shapes (rows, columns) or (numbers,), got {got(known)}. Return such as {{'weight': [(8, 4), (3,)]}}."
        )
    shapes: dict[str, Shapes] = {}
    for name, parameter in module.named_parameters(recurse=False):
        axes, numel = tuple(parameter.shape), parameter.numel()
        if name not in known:
            shapes[name] = [axes if len(axes) == 2 else (numel,)]
            continue
        shapes[name] = [tuple(shape) for shape in known[name]]
        count = sum(map(math.prod, shapes[name]))
        if count != numel:
            raise ConfigError(
                f"weight_matrices() of {type(module).__name__} must cover the {numel} numbers of {name}, got shapes "
                f"{got(known[name])} of {count} numbers. List the shapes in the order of the numbers."
            )
    return shapes


def matrices_of(module: nn.Module) -> dict[nn.Parameter, Shapes]:
    """The shapes of the numbers of every parameter of a network; see :func:`shapes_of`.

    Example:
        >>> from eqlayers import Linear
        >>> list(matrices_of(nn.Sequential(Linear("8x0e + 4x1o", "2x0e + 3x1o"), nn.Linear(2, 1))).values())
        [[(8, 2), (4, 3)], [(1, 2)], [(1,)]]
    """
    listed: dict[nn.Parameter, Shapes] = {}
    for layer in check_module("module", module).modules():
        for name, shapes in shapes_of(layer).items():
            listed.setdefault(layer.get_parameter(name), shapes)
    return listed


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Groups of parameters for a torch optimizer: parameters with weight decay, and parameters without.

    Parameters with matrices, or with more than one axis, are decayed; biases and scales of norms are not.

    Example:
        >>> groups = parameter_groups(nn.Linear(3, 2), 0.1)
        >>> [(group["weight_decay"], [tuple(p.shape) for p in group["params"]]) for group in groups]
        [(0.1, [(2, 3)]), (0.0, [(2,)])]
    """
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for parameter, shapes in matrices_of(module).items():
        (decayed if parameter.dim() > 1 or any(len(shape) == 2 for shape in shapes) else exempt).append(parameter)
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": exempt, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]
