"""Forms under their keys: operators take a key, a string, so that compilers see a constant.

A key names a program or a formula, short or as text, and the steps that derive another form from it: ``/m`` sets the
rows of the operands, ``/t`` reads the weights of a program from a table (rows for one, rows from place to place),
``/g`` takes gradients, ``/a`` derivatives along tangents. The program or the formula therefore gives all its
derivatives.
"""

from __future__ import annotations

from typing import Any

import torch

from eqlayers_kernels.forms.expression import FUNCTIONS
from eqlayers_kernels.forms.formula import ROWS, Block, Formula, Node, Operand
from eqlayers_kernels.forms.product import AnyForm, ProductForm

from ..errors import ConfigError
from .description import KNOWN, Description
from .packed_text import pack, unpack
from .program import find_form
from .program import with_rows as with_rows

PREFIX = "eqlayers-formula-"
MOST_READS = 16  # rows of a table
_LETTERS = {rows[0]: rows for rows in ROWS}


def register_formula(base: Formula) -> Formula:
    """Register the formula, so operators find it by key. Call at construction: torch.compile cannot trace this."""
    if base.key not in KNOWN:
        KNOWN[base.key] = Description(base, base.key)
    return base


def take_apart(key: str) -> tuple[str, str, str]:
    """The key of a program or formula, the step that sets rows or '', and all other steps.

    Example:
        >>> take_apart("0123456789abcdef/mseod/g1:110")
        ('0123456789abcdef', '/mseod', '/g1:110')
    """
    root, slash, steps = key.partition("/")
    if steps.startswith("m"):
        rows, more, steps = steps.partition("/")
        return root, slash + rows, more + steps
    return root, "", slash + steps


def find(key: str) -> AnyForm:
    """The form of that key; see :func:`describe`."""
    return describe(key).form


def describe(key: str) -> Description:
    """The form of that key, with its derivatives and kernels.

    Raises:
        ConfigError: No layer of this process has the short key; the text is damaged or of another version; the form
            has no such derivative.
    """
    found = KNOWN.get(key)
    if found is None:
        start, slash, step = key.rpartition("/")
        if slash:
            base = describe(start)
            try:
                found = base.step(key, _step(base.form, step))
            except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
                raise ConfigError(
                    f"a form must have the derivative that its key names, got {step!r}, which this one has not. Call "
                    f"the operator through a layer."
                ) from error
        elif key.startswith(PREFIX):
            found = KNOWN[key] = Description(read_formula(key), key)
        else:
            program = find_form(key).program
            found = KNOWN[key] = Description(ProductForm(program), key, program.key)
    return found


def _step(base: Any, step: str) -> AnyForm:
    """The form that a step derives; raises what a form without such a derivative raises."""
    kind, text = step[0], step[1:]
    found: AnyForm
    if kind == "m":
        rows, count = tuple(_LETTERS[letter] for letter in text), len(base.operands)
        found = base.with_rows(rows[:count], rows[count:])
        return found
    if kind == "t":
        reads, orders = (int(number) for number in text.split(":"))
        if 0 < orders <= reads <= MOST_READS:
            found = base.tabled(reads, orders)
            return found
        raise ValueError
    flags = [[{"0": False, "1": True}[digit] for digit in part] for part in text.split(":")]
    if kind == "g":
        given, wanted = flags
        return base.gradient(given, wanted)
    if kind == "a":
        (moving,) = flags
        if len(moving) != len(base.operands):
            raise ValueError
        return base.along(moving)
    raise ValueError


@torch.compiler.assume_constant_result
def text_of(key: str) -> str:
    """The key with the text of its program or formula in place of the short key; a constant for compilers."""
    root, rows, steps = take_apart(key)
    known = KNOWN.get(root)
    base: Any = None if known is None or known.program else known.form
    return (find_form(root).text if base is None else write_formula(base)) + rows + steps


def short(key: str) -> str:
    """The key of a formula with the short key in place of its text."""
    root, rows, steps = take_apart(key)
    found = describe(root)
    return (root if found.program else found.form.key) + rows + steps  # type: ignore[union-attr]


# -- formulas as text -------------------------------------------------------------------------------------------------


def write_formula(base: Formula) -> str:
    """The formula as text, the same in every process; see :func:`eqlayers.core.forms.program_text.write_program`."""
    return pack(PREFIX, base.content)


def read_formula(text: str) -> Formula:
    """The formula of such a text.

    Raises:
        ConfigError: The text is of another version, damaged, or no formula.
    """
    return unpack(PREFIX, text, _formula, "formula")


def _formula(content: Any) -> Formula:
    operands, results, nodes, outputs, channels = content
    if type(channels) is not int or not channels >= 0:
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
    arity = {"load": 2, "add": 2, "multiply": 2, "inverse_length": len(args), **dict.fromkeys(FUNCTIONS, 1)}
    if arity.get(kind) != len(args) or not args:
        raise TypeError(f"expected a node, got {kind!r} of {args!r}")
    return Node(kind, tuple(map(_whole, args)))


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"expected a whole number, got {value!r}")
    return value
