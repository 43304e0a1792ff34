"""Keys of forms: operators take a key, a string, so that compilers see a constant.

A key names a program or a formula, by hash or as text, and the steps that derive another form from it: ``/m`` sets the
rows of the operands, ``/t`` interpolates the weights of a program in a table (rows per interval, rows from interval to
interval), ``/g`` takes gradients, ``/a`` derivatives along tangents.
"""

from __future__ import annotations

from typing import Any

import torch

from eqlayers_kernels.forms.formula import Formula

from ..errors import ConfigError
from .description import KNOWN, Description
from .program import Form
from .text import FORMULA, PROGRAM, read_formula, read_program


def register_formula(base: Formula) -> Formula:
    """Register the formula, so operators find it by key. Call at construction: torch.compile cannot trace this."""
    if base.key not in KNOWN:
        KNOWN[base.key] = Description(base, base.key)
    return base


def split_key(key: str) -> tuple[str, str, str]:
    """The key of a program or formula, the step that sets rows or '', and all other steps.

    Example:
        >>> split_key("0123456789abcdef/mseod/g1:110")
        ('0123456789abcdef', '/mseod', '/g1:110')
    """
    root, slash, steps = key.partition("/")
    if steps.startswith("m"):
        rows, more, steps = steps.partition("/")
        return root, slash + rows, more + steps
    return root, "", slash + steps


def describe(key: str) -> Description:
    """The description of the form with this key; a text is parsed at the first call.

    ConfigError if no layer of this process has the short key, the text is damaged or of another version, or the form
    has no such derivative.
    """
    known = KNOWN.get(key)
    if known is not None:
        return known
    start, slash, step = key.rpartition("/")
    if slash:
        base = describe(start)
        try:
            return base.step(slash + step)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"a form must have the derivative that its key names, got {step!r}, which this one has not. Call "
                f"the operator through a layer."
            ) from error
    if key.startswith(FORMULA):
        return KNOWN.setdefault(key, Description(read_formula(key), key))
    if key.startswith(PROGRAM):
        return KNOWN.setdefault(key, Form(read_program(key), key))
    raise ConfigError(
        f"a form must be built before it is run, got the key {key!r}, which no layer of this process has. "
        f"Build the layer first, or trace it with torch.export: then the graph holds the program itself."
    )


@torch.compiler.assume_constant_result
def text_of(key: str) -> str:
    """The key with the text of its program or formula instead of the hash; a constant for compilers."""
    root, rows, steps = split_key(key)
    return describe(root).text + rows + steps


def short(key: str) -> str:
    """The key with the hash of its formula instead of the text."""
    root, rows, steps = split_key(key)
    base: Any = describe(root).form
    return (root if base.program else base.key) + rows + steps
