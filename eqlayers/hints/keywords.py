"""Errors for unknown or missing arguments: replace Python's TypeError by one that suggests the right argument.

Valid calls have no additional cost. The example for a missing argument is the first call in the docstring.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch

from ..core.checks import got
from ..core.errors import ArgumentError
from .names import ARGUMENTS, nearest

_F = TypeVar("_F", bound=Callable[..., Any])
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"^([\w.<>]+)\(\) missing \d+ required (?:positional|keyword-only) arguments?: (.+)$")

#: Example calls of functions whose docstring has none, or one that uses earlier variables.
EXAMPLES: dict[str, str] = {
    "Committee": "Committee([load_potential('member1.pt'), load_potential('member2.pt')])",
    "FormulaLayer": "FormulaLayer(lambda x: [x[0] ** 2 + x[1] ** 2 + x[2] ** 2], {'x': '8x1o'}, '8x0e')",
    "Potential": "Potential(MACE([1, 8]), [1, 8])",
    "TensorProductConv": (
        "TensorProductConv('8x0e', '0e + 1o', '8x0e + 8x1o', [(0, 0, 0, 'uvu', True), (0, 1, 1, 'uvu', True)], "
        "shared_weights=False)"
    ),
    "load_potential": "load_potential('potential.pt')",
    "Calculator": "Calculator('potential.pt')",
}


def parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Parameters of a function or constructor, and of base constructors that receive its ``**kwargs``."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    chain: Iterable[Any] = [function]
    if isinstance(function, type):
        stop = torch.nn.Module.__mro__
        chain = [c.__dict__["__init__"] for c in function.__mro__ if c not in stop and "__init__" in c.__dict__]
    by_name: dict[str, inspect.Parameter] = {}
    for init in chain:
        all_ = inspect.signature(init).parameters.values()
        by_name = {p.name: p for p in all_ if p.kind in named and p.name != "self"} | by_name
        if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in all_):
            break
    return list(by_name.values())


def right_name(wrong: str, names: Iterable[str]) -> str | None:
    """The argument among ``names`` that ``wrong`` probably means, or an expression to write; None if unknown.

    Example:
        >>> right_name("r_max", ["species", "cutoff"]), right_name("laeyrs", ["layers"]), right_name("foo", ["layers"])
        ('cutoff', 'layers', None)
    """
    names = [name for name in names if not name.startswith("_")]
    rows = (use for use, words in ARGUMENTS.items() if wrong in words.split())
    return next((use for use in rows if re.split(r"\W", use)[0] in names), None) or nearest(wrong, names, 0.75)


def _unknown_argument(function: Callable[..., Any], wrong: str, value: Any) -> ArgumentError:
    """The error for an unknown argument, with a suggestion."""
    known = parameters(function)
    names = [p.name for p in known if not p.name.startswith("_")]
    start = f"arguments of {function.__name__} must be among those that it has, got {wrong}={got(value)}."
    right = right_name(wrong, names)
    if right is None:
        return ArgumentError(f"{start} It has {', '.join(names)}.")
    if right not in names:  # an expression to write
        return ArgumentError(f"{start} Write {right}.")
    default = next(p.default for p in known if p.name == right)
    usual = "" if default in (inspect.Parameter.empty, None) else f" (by default {default!r})"
    return ArgumentError(f"{start} Write {right}={usual}.")


def _raise_unknown(function: Callable[..., Any], keywords: Mapping[str, Any], error: TypeError) -> None:
    """Raise an ArgumentError with a suggestion if a TypeError is about an unknown keyword of this call."""
    match = _UNEXPECTED.search(str(error))
    wrong = None if match is None else match[1]
    if " required " in str(error):  # a misspelt argument went to **kwargs, so that the right one is missing
        names = {p.name for p in parameters(function)}
        wrong = next((name for name in keywords if name not in names and right_name(name, names) is not None), None)
    if isinstance(error, ArgumentError):
        wrong = next((name for name in keywords if f" got {name}=" in str(error)), None)
    if wrong in keywords and wrong not in {p.name for p in parameters(function)}:
        raise _unknown_argument(function, str(wrong), keywords[str(wrong)]) from None


def example(function: Callable[..., Any]) -> str | None:
    """An example call of a class or function, from :data:`EXAMPLES` or the first in its docstring, or None.

    Example:
        >>> from eqlayers.nn import Dropout
        >>> example(Dropout)
        "Dropout('2x1o', 0.5)"
    """
    from doctest import DocTestParser  # imported only for errors

    for owner in function.__mro__ if isinstance(function, type) else (function,):
        if owner.__name__ in EXAMPLES:
            return EXAMPLES[owner.__name__]
        for statement in DocTestParser().get_examples(owner.__doc__ or ""):
            calls = (node for node in ast.walk(ast.parse(statement.source)) if isinstance(node, ast.Call))
            for call in calls:
                name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", None)
                if name == owner.__name__:
                    return f"{name}({', '.join(map(ast.unparse, [*call.args, *call.keywords]))})"
    return None


def _raise_missing(
    function: Callable[..., Any], args: tuple[Any, ...], keywords: Mapping[str, Any], error: TypeError
) -> None:
    """Raise an ArgumentError with an example if a TypeError is about missing arguments of this call."""
    match = _MISSING.match(str(error))
    owners = [f"{c.__qualname__}.__init__" for c in function.__mro__] if isinstance(function, type) else []
    if match is None or match[1] not in [*owners, function.__qualname__]:
        return
    call, missing = example(function), match[2].replace("'", "")
    written = ", ".join([*map(got, args), *(f"{name}={got(value)}" for name, value in keywords.items())])
    names = ", ".join(p.name for p in parameters(function) if not p.name.startswith("_"))
    raise ArgumentError(
        f"arguments of {function.__name__} must include {missing}, got {written or 'none'}. "
        + (f"It has {names}." if call is None else f"Write, for example, {call}.")
    ) from None


def named_arguments(function: _F) -> _F:
    """Decorate a class or function: errors of unknown or missing arguments suggest the right name or an example.

    Example:
        >>> @named_arguments
        ... def edges(positions, cutoff=5.0): ...
        >>> edges(None, r_max=4.0)
        Traceback (most recent call last):
            ...
        eqlayers.errors.ArgumentError: arguments of edges must be among those that it has, got r_max=4.0. Write \
cutoff= (by default 5.0).
    """
    if isinstance(function, type):
        _wrap_constructor(function)
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if kwargs:
                _raise_unknown(function, kwargs, error)
            _raise_missing(function, args, kwargs, error)
            raise

    return call  # type: ignore[return-value]


def _wrap_constructor(owner: type) -> None:
    """Replace ``__init__`` of a class by one that raises the errors of this module."""
    init = owner.__dict__["__init__"]

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except TypeError as error:
            called = type(self).__init__
            if kwargs:
                _raise_unknown(type(self) if called is __init__ else owner, kwargs, error)
            if called is __init__:
                _raise_missing(type(self), args, kwargs, error)
            elif not hasattr(called, "names_arguments"):  # otherwise the constructor of the subclass raises
                _raise_missing(owner, args, kwargs, error)
            raise

    __init__.names_arguments = True  # type: ignore[attr-defined]
    owner.__init__ = __init__  # type: ignore[misc]


def refuse_others(owner: type, options: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise for the first of ``options`` that is not among ``names``, the arguments that ``owner`` uses."""
    for name in sorted(options.keys() - set(names)):
        raise _unknown_argument(owner, name, options[name])


def name_arguments(part: Mapping[str, Any], names: Iterable[str]) -> None:
    """Wrap constructors of the modules exported by a package part, as :func:`named_arguments` does."""
    for name in names:
        value = part[name]
        if isinstance(value, type) and issubclass(value, torch.nn.Module):
            owner = next(c for c in value.__mro__ if "__init__" in c.__dict__)
            ours = owner.__module__.startswith("eqlayers.")
            if ours and not hasattr(owner.__dict__["__init__"], "names_arguments"):
                _wrap_constructor(owner)
