"""Operators of torch that compute each element from the same element of their operands, as formulas in C."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .values import TYPES

#: Operator -> C, of operands 0, 1, ...; ``F`` ends the name of a function of the type.
FORMULAS = {
    "add": "{0} + {1}",
    "sub": "{0} - {1}",
    "rsub": "{1} - {0}",
    "mul": "{0} * {1}",
    "div": "{0} / {1}",
    "neg": "-{0}",
    "reciprocal": "1 / {0}",
    "sqrt": "sqrtF({0})",
    "rsqrt": "1 / sqrtF({0})",
    "exp": "expF({0})",
    "log": "logF({0})",
    "sin": "sinF({0})",
    "cos": "cosF({0})",
    "tanh": "tanhF({0})",
    "abs": "fabsF({0})",
    "sign": "({0} > 0) - ({0} < 0)",
    "relu": "{0} <= 0 ? 0 : {0}",
    "threshold_backward": "{1} <= {2} ? 0 : {0}",
    **{name: f"{name}F({{0}})" for name in ("sinh", "cosh", "tan", "atan", "asin", "acos", "erf", "erfc", "expm1")},
    **{name: f"{name}F({{0}})" for name in ("log1p", "log2", "log10", "exp2", "floor", "ceil", "trunc")},
    **{name: f"{name}F({{0}}, {{1}})" for name in ("pow", "atan2", "hypot", "fmod")},
    "remainder": "fmodF({0}, {1}) + (({1} < 0 ? fmodF({0}, {1}) > 0 : fmodF({0}, {1}) < 0) ? {1} : 0)",
    "floor_divide": "({0} - ({0} % {1} + {1}) % {1}) / {1}",
    "sigmoid": "1 / (1 + expF(-{0}))",
    "sigmoid_backward": "{0} * {1} * (1 - {1})",
    "tanh_backward": "{0} * (1 - {1} * {1})",
    "silu": "{0} / (1 + expF(-{0}))",
    "silu_backward": "{0} / (1 + expF(-{1})) * (1 + {1} * (1 - 1 / (1 + expF(-{1}))))",
    "maximum": "{0} != {0} || {0} > {1} ? {0} : {1}",
    "minimum": "{0} != {0} || {0} < {1} ? {0} : {1}",
    "where": "{0} ? {1} : {2}",
    "masked_fill": "{1} ? {2} : {0}",
    "eq": "{0} == {1}",
    "ne": "{0} != {1}",
    "lt": "{0} < {1}",
    "le": "{0} <= {1}",
    "gt": "{0} > {1}",
    "ge": "{0} >= {1}",
    "logical_not": "!{0}",
    "logical_and": "{0} && {1}",
    "logical_or": "{0} || {1}",
    "bitwise_and": "{0} & {1}",
    "bitwise_or": "{0} | {1}",
    "_to_copy": "{0}",
}


#: Keywords that change no numbers.
IGNORED = ("dtype", "layout", "device", "pin_memory", "non_blocking", "memory_format")
#: Values of keywords that are defaults.
DEFAULTS = {"alpha": 1}
#: Operators that compare, whose operands have another type than their result.
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")


def unread(name: str, operands: Sequence[Any], options: dict[str, Any]) -> str | None:
    """An operand or a keyword that the formula of an operator does not read; None if it reads all."""
    for key, value in options.items():
        if key not in IGNORED and value is not None and value != DEFAULTS.get(key):
            return f"{key}={value}"
    if name in FORMULAS and f"{{{len(operands) - 1}}}" not in FORMULAS[name]:
        return f"{len(operands)} operands"
    return None


def formula(name: str, operands: Sequence[str], dtype: torch.dtype) -> str:
    """The C expression of an operator among `FORMULAS`, in the type of its operands."""
    if name == "remainder" and not dtype.is_floating_point:
        return "({0} % {1} + {1}) % {1}".format(*operands)
    return FORMULAS[name].replace("F(", "f(" if dtype == torch.float32 else "(").format(*operands)


def number(value: Any, dtype: torch.dtype) -> str:
    """A number in C."""
    if dtype is torch.bool or isinstance(value, bool):
        return str(int(value))
    if not dtype.is_floating_point:
        return f"INT64_C({int(value)})"
    value = float(value)
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"(({TYPES[dtype]}){value!r})"
