r"""A product as a form of any number of operands, and the forms that are its derivatives.

The form :math:`F(x, y, w, g) = \sum z g` is linear in each of its operands, so kernels for z, its gradients, and the
derivatives of both along tangents (`Task`) suffice: other derivatives are sums of these with other tensors as operands.

Weights may be interpolated in a table (`Reading`): the form is linear in the table and in the coefficients. Kernels
have second derivatives along all operands but the table; derivatives along it are first ones with another table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import compress
from typing import Any, NamedTuple

from ..arithmetic.writer import Task
from .formula import TRAVERSALS, Block, Formula, Operand, renamed
from .program import OPERANDS, Program, key_of

Rows = tuple[str, ...]
Flags = Sequence[bool]
#: Rows of x, y, t, c and z, where weights are read from a table along the edges of a graph.
TABLED = ("src", "each", "table", "each", "dst")


class Reading(NamedTuple):
    """How weights are interpolated in a table: ``w[n] = sum_k c[n, k] t[orders * interval(n) + k]``."""

    reads: int  # rows of the table that make a row of weights
    orders: int  # rows from interval to interval

    def rows(self, intervals: int) -> int:
        """Number of rows of a table with ``intervals`` intervals."""
        return self.orders * (intervals - 1) + self.reads

    def intervals(self, rows: int) -> int:
        """Number of intervals of a table with ``rows`` rows; 0 if no table has so many rows."""
        more = rows - self.reads  # no divmod: the number may be symbolic
        return 0 if more < 0 or more % self.orders else more // self.orders + 1

    def folded(self, rows: Any) -> Any:
        """Sum gradients of each interval's rows, ``[intervals, reads * width]``, to gradients of the table's rows."""
        parts = rows.view(rows.shape[0], self.reads, -1)
        out = rows.new_zeros(self.rows(rows.shape[0]), parts.shape[2])
        last = self.orders * (rows.shape[0] - 1) + 1
        for position in range(self.reads):
            out[position : position + last : self.orders].add_(parts[:, position])
        return out


@dataclass(frozen=True)
class ProductForm:
    """A product: its program, the task of the kernel, and the rows of its operands."""

    program: Program  # all paths of a product
    rows: Rows = ("each", "each", "each", "each")  # of x, y, w (or t and c) and z; see `Operand.rows`
    task: Task = field(default=Task(0, ("z",)))  # z, gradients, or derivatives of both
    reading: Reading | None = None  # of weights from a table t with coefficients c; None for weights as an operand

    #: The key of printers and runners of kernels.
    family = "product"

    @property
    def shared(self) -> bool:
        """Whether one row of weights serves all rows."""
        return self.rows[2] == "one"

    @cached_property
    def name(self) -> str:
        """Hash of program, rows, task and reading: forms with equal names have the same kernels."""
        return f"{self.program.key}/{key_of((self.rows, self.task, self.reading))}"

    def with_rows(self, operands: Sequence[str], results: Sequence[str]) -> ProductForm:
        """Copy the form with other rows of x, y and w, and of z."""
        (x, y, w), (z,) = operands, results
        return replace(self, rows=(x, y, w, z))

    def tabled(self, reads: int, orders: int) -> ProductForm:
        """The form of a product along edges whose weights are interpolated in a table of splines.

        A row of weights is a sum over ``reads`` successive rows of the table, and the table has ``orders`` rows for
        each interval: 4 and 1 of a B-spline, for example.
        """
        task = self.task._replace(factors=("x", "y", "t", "c"))
        return replace(self, rows=TABLED, task=task, reading=Reading(reads, orders))

    @property
    def linear(self) -> tuple[str, ...]:
        """Names of the operands in which F is linear; 'z' stands for g."""
        return (*self.task.factors, "z")

    def _operand(self, name: str) -> Operand:
        operand = "z" if name == "g" else name[-1]
        widths = dict(zip(OPERANDS, self.program.widths, strict=True))
        if self.reading is not None:
            widths |= {"t": widths["w"], "c": self.reading.reads}
        width = widths[operand]
        return Operand(name, width, (Block(0, width),), self.rows[self.linear.index(operand)])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the operands; see `Task.names`."""
        return self.task.names

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands, in the order of `names`."""
        return tuple(self._operand(name) for name in self.names)

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        """The results, in the order of ``task.results``."""
        return renamed("gradient", map(self._operand, self.task.results))

    @property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return "src" in self.rows or "dst" in self.rows

    @property
    def moving(self) -> list[bool]:
        """Whether each result is more than 0: a gradient by an operand depends on all others, and not on it."""
        return [self.task.order < 2 or any(name != one for name in self.task.tangents) for one in self.task.results]

    def traversals(self, graph: bool) -> dict[str, list[int]]:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.traversals`."""
        names = self.task.results
        if not graph:
            return {"rows": list(range(len(names)))}
        parts = {of: [n for n, name in enumerate(names) if name in one.results] for of, one in TRAVERSALS.items()}
        return {traversal: numbers for traversal, numbers in parts.items() if numbers}

    def part(self, numbers: Sequence[int]) -> ProductForm:
        """The form of some results alone."""
        return replace(self, task=self.task._replace(results=tuple(self.task.results[n] for n in numbers)))

    @property
    def weighted(self) -> ProductForm:
        """The form of the paths with weights alone, for derivatives along the weights."""
        paths = tuple(path for path in self.program.paths if path.weight is not None)
        return replace(self, program=replace(self.program, paths=paths))

    def _like(self, order: int, results: Sequence[str], tangents: Sequence[str] = ()) -> ProductForm:
        return replace(self, task=Task(order, tuple(results), tuple(tangents), self.task.factors))

    def vjp(self, has_cotangent: Flags, requested: Flags) -> ProductForm | SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.vjp`."""
        names = tuple(name for name, is_requested in zip(self.names, requested, strict=True) if is_requested)
        tangents = tuple(name for name, has in zip(self.task.results, has_cotangent, strict=True) if has)
        if self.task.order == 0 and tangents:
            return self._like(1, names)
        if self.task.order == 1:
            requested_names = tuple("z" if name == "g" else name for name in names)
            if self.reading is None:
                return self._like(2, requested_names, tangents)
            positions = {self.task.results[n]: p for n, p in _positions(len(self.names), has_cotangent).items()}
            targets = {name: position for position, name in enumerate(requested_names)}
            return SumForm.vjp_of(self, has_cotangent, requested, self._second(positions, targets))
        return SumForm.vjp_of(self, has_cotangent, requested, self._pairs(has_cotangent, names))

    def _second(self, position_of: dict[str, int], targets: dict[str, int]) -> Iterator[Part]:
        """Parts whose sum is the derivative of first gradients along tangents: one, but for weights from a table.

        ``position_of`` has the operand number of each tangent, ``targets`` the result number of each gradient. Kernels
        have second derivatives along all operands but the table; along the table, and for the table's gradient along
        coefficients alone, first derivatives are taken with the tangent as operand.
        """
        operands, base = tuple(range(len(self.linear))), self._like(0, ("z",))
        if self.reading is None:
            if position_of:
                derivative = self._like(2, [*targets], [*position_of])
                yield Part(derivative, (*operands, *position_of.values()), tuple(targets.values()))
            return
        tangents = [name for name in position_of if name in "xycz"]
        alone = not {"x", "y"}.intersection(tangents)
        for results, moves in (("xycz", bool(tangents)), ("t", bool(tangents) and not alone)):
            names = [name for name in targets if name in results]
            if names and moves:
                picks = (*operands, *(position_of[name] for name in tangents))
                yield Part(self._like(2, names, tangents), picks, tuple(targets[name] for name in names))
        for other, results, needed in (("c", "t", alone), ("z", "t", alone), ("t", "xycz", True)):
            if needed and other in position_of:
                position = self.linear.index(other)
                picks = tuple(position_of[other] if pick == position else pick for pick in operands)
                yield from _gradients(base.weighted, picks, {n: p for n, p in targets.items() if n in results})

    def jvp(self, has_tangent: Flags) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.jvp`."""
        count, positions, parts = len(self.names), _positions(len(self.names), has_tangent), []
        targets = tuple(range(len(self.results)))
        last = len(self.task.factors)  # position of g
        if self.task.order == 0:
            for slot, position in positions.items():
                picks = tuple(position if other == slot else other for other in range(count))
                parts.append(Part(self.weighted if self.names[slot] in "wtc" else self, picks, targets))
        elif self.task.order == 1:
            # second derivatives are symmetric: the change of the gradients is the gradient of the change
            named = {self.linear[slot]: position for slot, position in positions.items()}
            if [*named] == ["z"]:
                parts.append(Part(self, (*range(last), positions[last]), targets))
            else:
                parts += self._second(named, {name: n for n, name in enumerate(self.task.results)})
        else:
            named = {("z" if self.names[s] == "g" else self.names[s]): p for s, p in positions.items()}
            first = {name: last + 1 + number for number, name in enumerate(self.task.tangents)}
            along = {name: named[name] for name in named if name in self.linear}
            for a, b, form, picks in _replaced(self, first, along):
                requested = [name for name in self.task.results if name not in (a, b)]
                parts += _gradients(form, picks, {name: self.task.results.index(name) for name in requested})
            tangents = tuple(name for name in self.task.tangents if f"d{name}" in named)
            if tangents:
                picks = (*range(last + 1), *(named[f"d{name}"] for name in tangents))
                parts.append(Part(self._like(2, self.task.results, tangents), picks, targets))
        return SumForm.jvp_of(self, has_tangent, parts)

    @property
    def channelwise(self) -> bool:
        """Whether every channel of the results comes from a channel of x or y."""
        axes = (axis for path in self.program.paths for axis in path.axes if axis.extent > 1)
        return all(axis.x or axis.y for axis in axes)

    def apart(self) -> SumForm:
        """A derivative along operands and g, for kernels that cannot do both, as one along operands and a gradient."""
        count, targets = len(self.linear), {name: number for number, name in enumerate(self.task.results)}
        named = {name: count + number for number, name in enumerate(self.task.tangents)}
        picks = (*range(count - 1), named.pop("z"))
        gradient = _gradients(self, picks, {name: n for name, n in targets.items() if name != "z"})
        return SumForm(self.operands, self.results, (*self._second(named, targets), *gradient))

    def _pairs(self, has_cotangent: Flags, requested: tuple[str, ...]) -> Iterator[Part]:
        """Parts whose sum is the gradient of a second derivative: F with two operands replaced by tangents."""
        first = {name: len(self.linear) + number for number, name in enumerate(self.task.tangents)}
        second = {self.task.results[n]: position for n, position in _positions(len(self.names), has_cotangent).items()}
        for a, b, form, picks in _replaced(self, first, second):
            targets = {}
            for name in self.linear:
                operand = f"d{name}" if name == a else "g" if name == "z" else name
                if name != b and operand in requested:
                    targets[name] = requested.index(operand)
            yield from _gradients(form, picks, targets)


class Part(NamedTuple):
    """A term of a `SumForm`: a form, the numbers of the operands it reads, and of the results it is added to."""

    form: ProductForm | SumForm
    picks: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class SumForm:
    """A sum of forms over shared operands; results to which no part is added are 0."""

    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    parts: tuple[Part, ...]
    #: A sum has no kernel: its parts run one after the other.
    family = "sum"

    @cached_property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return any(operand.rows in ("src", "dst") for operand in (*self.operands, *self.results))

    @property
    def moving(self) -> list[bool]:
        """Whether any part is added to each result."""
        reached = {n for p in self.parts for n, moves in zip(p.targets, p.form.moving, strict=True) if moves}
        return [number in reached for number in range(len(self.results))]

    @property
    def reading(self) -> Reading | None:
        """How the parts interpolate weights in a table; None if weights are an operand."""
        return self.parts[0].form.reading if self.parts else None

    @property
    def program(self) -> Program | None:
        """The program of the first part; None without parts."""
        return self.parts[0].form.program if self.parts else None

    @classmethod
    def vjp_of(
        cls, base: ProductForm | SumForm, has_cotangent: Flags, requested: Flags, parts: Iterator[Part]
    ) -> SumForm:
        """The sum of ``parts`` with the operands and results of a gradient of ``base``."""
        extra = renamed("cotangent", compress(base.results, has_cotangent))
        return cls((*base.operands, *extra), renamed("gradient", compress(base.operands, requested)), tuple(parts))

    @classmethod
    def jvp_of(cls, base: ProductForm | SumForm, has_tangent: Flags, parts: Sequence[Part]) -> SumForm:
        """The sum of ``parts`` with the operands and results of a derivative of ``base`` along tangents."""
        extra = renamed("tangent", compress(base.operands, has_tangent))
        return cls((*base.operands, *extra), renamed("tangent", base.results), tuple(parts))

    def vjp(self, has_cotangent: Flags, requested: Flags) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.vjp`."""
        positions, order = _positions(len(self.operands), has_cotangent), _positions(0, requested)

        def parts() -> Iterator[Part]:
            for form, picks, targets in self.parts:
                part_has = [has_cotangent[target] for target in targets]
                part_requested = [requested[pick] for pick in picks]
                if any(part_has) and any(part_requested):
                    extra = tuple(positions[target] for target in targets if has_cotangent[target])
                    derivative = form.vjp(part_has, part_requested)
                    yield Part(derivative, (*picks, *extra), tuple(order[pick] for pick in picks if requested[pick]))

        return SumForm.vjp_of(self, has_cotangent, requested, parts())

    def jvp(self, has_tangent: Flags) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.jvp`."""
        positions = _positions(len(self.operands), has_tangent)
        parts = []
        for form, picks, targets in self.parts:
            has = [has_tangent[p] for p in picks]
            if any(has):
                parts.append(Part(form.jvp(has), (*picks, *(positions[p] for p in picks if has_tangent[p])), targets))
        return SumForm.jvp_of(self, has_tangent, parts)


#: A form: its ``family`` is the key of its printers and runners; `Formula` says what the other members are.
AnyForm = ProductForm | SumForm | Formula


def _positions(count: int, flags: Flags) -> dict[int, int]:
    """Positions of the flagged operands if they are appended, in order, to ``count`` others."""
    flagged = [number for number, flag in enumerate(flags) if flag]
    return {number: count + position for position, number in enumerate(flagged)}


def _replaced(
    form: ProductForm, first: dict[str, int], second: dict[str, int]
) -> Iterator[tuple[str, str, ProductForm, tuple[int, ...]]]:
    """F with two operands replaced, for all pairs: the two names, the form, and the operand numbers that it reads."""
    base = form._like(0, ("z",))
    for a, along in first.items():
        for b, other in second.items():
            if a != b:
                positions = {name: position for position, name in enumerate(base.linear)} | {a: along, b: other}
                replaced = base if {a, b}.isdisjoint("wtc") else base.weighted
                yield a, b, replaced, tuple(positions.values())


def _gradients(form: ProductForm, picks: tuple[int, ...], targets: dict[str, int]) -> Iterator[Part]:
    """Parts that are the gradients of F by the operands in ``targets``; the gradient by g is the product itself."""
    names = tuple(name for name in targets if name != "z")
    if names:
        yield Part(form._like(1, names), picks, tuple(targets[name] for name in names))
    if "z" in targets:
        yield Part(form, picks[:-1], (targets["z"],))
