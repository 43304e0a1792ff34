"""Formulas under their keys: operators take a key, a string, so that compilers see a constant.

The key of a derivative is that of the formula and how it is derived, ``<key>/g1:10`` for instance: what a process needs
to know is the formula alone.
"""

from __future__ import annotations

from typing import Any

import torch

from eqlayers_kernels.formula import Block, Formula, Node, Operand, derived

from ..errors import ConfigError
from .packed_text import pack, unpack

PREFIX = "eqlayers-formula-1"
_formulas: dict[str, Formula] = {}


def register_formula(base: Formula) -> str:
    """Make a formula known to this process; its key."""
    return _formulas.setdefault(base.key, base).key


def find_formula(key: str) -> Formula:
    """The formula of that key, short or the text of a formula, with derivations behind it.

    Raises:
        ConfigError: Nobody has registered the short key; the text is damaged or of another version.
    """
    found = _formulas.get(key)
    if found is None:
        start, slash, step = key.rpartition("/")
        if slash:
            try:
                found = derived(find_formula(start), step)
            except (ValueError, KeyError, IndexError) as error:
                raise ConfigError(f"the key of a derivative must be one that its formula has, got {step!r}. Correct it.") from error
        elif key.startswith(PREFIX):
            found = read_formula(key)
        else:
            raise ConfigError(
                f"a formula must be built before it is run, got the key {key!r}, which no layer of this process has. "
                f"Build the layer first, or trace it with torch.export: then the graph holds the formula itself."
            )
        _formulas[key] = found
    return found


@torch.compiler.assume_constant_result
def formula_text(key: str) -> str:
    """The text of the formula with a short key; a constant for compilers."""
    return write_formula(find_formula(key))


def write_formula(base: Formula) -> str:
    """The formula as text, the same in every process; see :func:`eqlayers.ops.program_text.write_program`."""
    return pack(PREFIX, base.key, [base.operands, base.results, base.nodes, base.outputs, base.channels])


def read_formula(text: str) -> Formula:
    """The formula of such a text.

    Raises:
        ConfigError: The text is of another version, damaged, or no formula.
    """
    return unpack(PREFIX, text, _formula, "formula")


def _formula(content: Any) -> Formula:
    operands, results, nodes, outputs, channels = content
    if type(channels) is not int or not 0 <= channels:
        raise TypeError(f"expected a number of channels, got {channels!r}")
    return Formula(
        tuple(_operand(*one) for one in operands),
        tuple(_operand(*one) for one in results),
        tuple(_node(*node) for node in nodes),
        tuple(tuple(None if n is None else _whole(n) for n in part) for part in outputs),
        channels,
    )


def _operand(name: Any, width: Any, blocks: Any, rows: Any) -> Operand:
    return Operand(str(name), _whole(width), tuple(Block(*map(_whole, block)) for block in blocks), str(rows))


def _node(kind: Any, args: Any) -> Node:
    if kind == "constant" and len(args) == 1 and type(args[0]) is float:
        return Node(kind, tuple(args))
    arity = {"load": 2, "add": 2, "multiply": 2, "is_positive": 1, "inverse_length": len(args)}
    if arity.get(kind) != len(args) or not args:
        raise TypeError(f"expected a node, got {kind!r} of {args!r}")
    return Node(kind, tuple(map(_whole, args)))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r}")
    return value
