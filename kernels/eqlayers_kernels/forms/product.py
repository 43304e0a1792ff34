r"""A product as a form of any number of operands, and the forms that are its derivatives.

The form :math:`F(x, y, w, g) = \sum z g` is linear in each of its operands, so one kernel gives z, its gradients, or
the derivatives of both along tangents (`Kind`). Further derivatives are sums of these, with other tensors in place
of the operands.

Weights may be read from a table (`Reading`): the form is linear in the table and in the coefficients. Kernels have
second derivatives along all but the table; those along it are first derivatives with another table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from ..arithmetic.writer import Kind
from .content import key_of
from .formula import Block, Operand
from .program import OPERANDS, Program
from .traversal import TRAVERSALS

Rows = tuple[str, ...]
#: Rows of x, y, t, c and z, where weights are read from a table along the edges of a graph.
TABLED = ("src", "each", "table", "each", "dst")


class Reading(NamedTuple):
    """How weights are read from a table: ``w[n] = sum_k c[n, k] t[orders * interval(n) + k]``."""

    reads: int  # rows of the table that make a row of weights
    orders: int  # rows from interval to interval

    def rows(self, intervals: int) -> int:
        """Rows of a table with so many intervals."""
        return self.orders * (intervals - 1) + self.reads

    def intervals(self, rows: int) -> int:
        """Intervals of a table with so many rows; 0 if that is no number of rows of one."""
        more = rows - self.reads  # no divmod: it may be a number that a compiler has not seen
        return 0 if more < 0 or more % self.orders else more // self.orders + 1

    def folded(self, rows: Any) -> Any:
        """Gradients of the rows that intervals read, ``[intervals, reads * width]``, as one of the table's rows."""
        parts = rows.view(rows.shape[0], self.reads, -1)
        out = rows.new_zeros(self.rows(rows.shape[0]), parts.shape[2])
        last = self.orders * (rows.shape[0] - 1) + 1
        for place in range(self.reads):
            out[place : place + last : self.orders] += parts[:, place]
        return out


@dataclass(frozen=True)
class ProductForm:
    """A program, what of it is wanted, and the rows of its operands."""

    program: Program  # all paths of a product
    rows: Rows = ("each", "each", "each", "each")  # of x, y, w (or t and c) and z; see `Operand.rows`
    kind: Kind = field(default=Kind(0, ("z",)))  # what is computed: z, gradients, or derivatives of both
    reading: Reading | None = None  # of weights from a table t with coefficients c; None for weights as they are

    #: Which kernels are printed for it.
    family = "product"

    @property
    def shared(self) -> bool:
        """Whether one row of weights serves all rows."""
        return self.rows[2] == "one"

    @cached_property
    def name(self) -> str:
        """Short name: forms of one name have the same kernels."""
        return f"{self.program.key}/{key_of((self.rows, self.kind, self.reading))}"

    def with_rows(self, operands: Sequence[str], results: Sequence[str]) -> ProductForm:
        """Copy the form with other rows of x, y and w, and of z."""
        (x, y, w), (z,) = operands, results
        return replace(self, rows=(x, y, w, z))

    def tabled(self, reads: int, orders: int) -> ProductForm:
        """The form along a graph with weights from a table."""
        kind = self.kind._replace(factors=("x", "y", "t", "c"))
        return replace(self, rows=TABLED, kind=kind, reading=Reading(reads, orders))

    @property
    def linear(self) -> tuple[str, ...]:
        """The operands in each of which F is linear; the operand of g is z."""
        return (*self.kind.factors, "z")

    def _operand(self, name: str) -> Operand:
        operand = "z" if name == "g" else name[-1]
        widths = dict(zip(OPERANDS, self.program.widths, strict=True))
        if self.reading is not None:
            widths |= {"t": widths["w"], "c": self.reading.reads}
        width = widths[operand]
        return Operand(name, width, (Block(0, width),), self.rows[self.linear.index(operand)])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the operands; see `Kind.names`."""
        return self.kind.names

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands that it reads."""
        return tuple(self._operand(name) for name in self.names)

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        """The results that it writes."""
        return tuple(self._operand(name)._replace(name=f"gradient of {name}") for name in self.kind.results)

    @property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return "src" in self.rows or "dst" in self.rows

    def traversals(self, graph: bool) -> dict[str, list[int]]:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.traversals`."""
        names = self.kind.results
        if not graph:
            return {"rows": list(range(len(names)))}
        parts = {
            walk: [number for number, name in enumerate(names) if name in one.results]
            for walk, one in TRAVERSALS.items()
        }
        return {walk: numbers for walk, numbers in parts.items() if numbers}

    def part(self, numbers: Sequence[int]) -> ProductForm:
        """The form of these results alone."""
        return replace(self, kind=self.kind._replace(results=tuple(self.kind.results[n] for n in numbers)))

    @property
    def weighted(self) -> ProductForm:
        """The form of the paths with weights: these remain when another vector takes the weights' place."""
        paths = tuple(path for path in self.program.paths if path.weight is not None)
        return replace(self, program=replace(self.program, paths=paths))

    def _like(self, order: int, results: Sequence[str], tangents: Sequence[str] = ()) -> ProductForm:
        return replace(self, kind=Kind(order, tuple(results), tuple(tangents), self.kind.factors))

    def vjp(self, has_cotangent: Sequence[bool], wanted: Sequence[bool]) -> ProductForm | SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.vjp`."""
        names = tuple(name for name, want in zip(self.names, wanted, strict=True) if want)
        tangents = tuple(name for name, has in zip(self.kind.results, has_cotangent, strict=True) if has)
        if self.kind.order == 0 and tangents:
            return self._like(1, names)
        if self.kind.order == 1:
            wanted_names = tuple("z" if name == "g" else name for name in names)
            if self.reading is None:
                return self._like(2, wanted_names, tangents)
            places = {self.kind.results[n]: place for n, place in _behind(len(self.names), has_cotangent).items()}
            targets = {name: place for place, name in enumerate(wanted_names)}
            return SumForm.vjp_of(self, has_cotangent, wanted, self._second(places, targets))
        return SumForm.vjp_of(self, has_cotangent, wanted, self._pairs(has_cotangent, names))

    def _second(self, place_of: dict[str, int], targets: dict[str, int]) -> Iterator[Part]:
        """Derivatives of first gradients along tangents, by their places: kernels have them along all but the table.

        Along the table, they are first derivatives with another table; so is the derivative of the table's gradient
        along coefficients alone, with others of these.
        """
        count = len(self.kind.factors) + 1
        operands, base = tuple(range(count)), self._like(0, ("z",))
        tangents = [name for name in place_of if name in "xyc"]
        alone = tangents == ["c"]
        for results, moves in (("xycz", bool(tangents)), ("t", bool(tangents) and not alone)):
            names = [name for name in targets if name in results]
            if names and moves:
                picks = (*operands, *(place_of[name] for name in tangents))
                yield Part(self._like(2, names, tangents), picks, tuple(targets[name] for name in names))
        for other, results, needed in (("c", "t", alone), ("t", "xycz", "t" in place_of)):
            if needed:
                place = self.linear.index(other)
                picks = tuple(place_of[other] if pick == place else pick for pick in operands)
                yield from _gradients(base.weighted, picks, {n: p for n, p in targets.items() if n in results})

    def jvp(self, has_tangent: Sequence[bool]) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.jvp`."""
        count, places, parts = len(self.names), _behind(len(self.names), has_tangent), []
        targets = tuple(range(len(self.results)))
        last = len(self.kind.factors)  # where g stands
        if self.kind.order == 0:
            for slot, place in places.items():
                picks = tuple(place if other == slot else other for other in range(count))
                parts.append(Part(self.weighted if self.names[slot] in "wtc" else self, picks, targets))
        elif self.kind.order == 1:
            # second derivatives are symmetric: the change of the gradients is the gradient of the change
            named = {self.names[slot]: place for slot, place in places.items() if slot < last}
            if named and self.reading is not None:
                parts += self._second(named, {name: n for n, name in enumerate(self.kind.results)})
            elif named:
                parts.append(
                    Part(self._like(2, self.kind.results, [*named]), (*range(count), *named.values()), targets)
                )
            if last in places:
                parts.append(Part(self, (*range(last), places[last]), targets))
        else:
            named = {("z" if self.names[s] == "g" else self.names[s]): p for s, p in places.items()}
            first = {name: last + 1 + number for number, name in enumerate(self.kind.tangents)}
            along = {name: named[name] for name in named if name in self.linear}
            for a, b, form, picks in _replaced(self, first, along):
                wanted = [name for name in self.kind.results if name not in (a, b)]
                parts += _gradients(form, picks, {name: self.kind.results.index(name) for name in wanted})
            tangents = tuple(name for name in self.kind.tangents if f"d{name}" in named)
            if tangents:
                picks = (*range(last + 1), *(named[f"d{name}"] for name in tangents))
                parts.append(Part(self._like(2, self.kind.results, tangents), picks, targets))
        return SumForm.jvp_of(self, has_tangent, parts)

    def _pairs(self, has_cotangent: Sequence[bool], wanted: tuple[str, ...]) -> Iterator[Part]:
        """The parts of the gradient of a second derivative: F with two operands replaced."""
        first = {name: len(self.linear) + number for number, name in enumerate(self.kind.tangents)}
        second = {self.kind.results[n]: place for n, place in _behind(len(self.names), has_cotangent).items()}
        for a, b, form, picks in _replaced(self, first, second):
            targets = {}
            for name in self.linear:
                operand = f"d{name}" if name == a else "g" if name == "z" else name
                if name != b and operand in wanted:
                    targets[name] = wanted.index(operand)
            yield from _gradients(form, picks, targets)


class Part(NamedTuple):
    """One term of a sum: a form, which of the operands it reads, and to which results its own are added."""

    form: ProductForm | SumForm
    picks: tuple[int, ...]
    targets: tuple[int, ...]


@dataclass(frozen=True)
class SumForm:
    """A sum of forms over one list of operands; results of no part are 0."""

    operands: tuple[Operand, ...]
    results: tuple[Operand, ...]
    parts: tuple[Part, ...]
    #: It has no kernel of its own: its parts run one after the other.
    family = "sum"

    @cached_property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return any(one.rows in ("src", "dst") for one in (*self.operands, *self.results))

    @property
    def reading(self) -> Reading | None:
        """The reading of its parts."""
        return self.parts[0].form.reading if self.parts else None

    @property
    def program(self) -> Program | None:
        """The program of its first part: of all paths, or of the paths with weights."""
        return self.parts[0].form.program if self.parts else None

    @classmethod
    def vjp_of(
        cls, base: ProductForm | SumForm, has_cotangent: Sequence[bool], wanted: Sequence[bool], parts: Iterator[Part]
    ) -> SumForm:
        """A form with the operands and results that a gradient of ``base`` has."""
        extra = [
            one._replace(name=f"cotangent of {one.name}")
            for one, has in zip(base.results, has_cotangent, strict=True)
            if has
        ]
        results = [
            one._replace(name=f"gradient of {one.name}")
            for one, want in zip(base.operands, wanted, strict=True)
            if want
        ]
        return cls((*base.operands, *extra), tuple(results), tuple(parts))

    @classmethod
    def jvp_of(cls, base: ProductForm | SumForm, has_tangent: Sequence[bool], parts: Sequence[Part]) -> SumForm:
        """A form with the operands and results that a derivative of ``base`` along tangents has."""
        extra = [
            one._replace(name=f"tangent of {one.name}")
            for one, moves in zip(base.operands, has_tangent, strict=True)
            if moves
        ]
        results = tuple(one._replace(name=f"tangent of {one.name}") for one in base.results)
        return cls((*base.operands, *extra), results, tuple(parts))

    def vjp(self, has_cotangent: Sequence[bool], wanted: Sequence[bool]) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.vjp`."""
        places, order = _behind(len(self.operands), has_cotangent), _behind(0, wanted)

        def parts() -> Iterator[Part]:
            for form, picks, targets in self.parts:
                part_has = [has_cotangent[target] for target in targets]
                part_wants = [wanted[pick] for pick in picks]
                if any(part_has) and any(part_wants):
                    extra = tuple(places[target] for target in targets if has_cotangent[target])
                    derivative = form.vjp(part_has, part_wants)
                    yield Part(derivative, (*picks, *extra), tuple(order[pick] for pick in picks if wanted[pick]))

        return SumForm.vjp_of(self, has_cotangent, wanted, parts())

    def jvp(self, has_tangent: Sequence[bool]) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.jvp`."""
        places = _behind(len(self.operands), has_tangent)
        parts = []
        for form, picks, targets in self.parts:
            has = [has_tangent[p] for p in picks]
            if any(has):
                parts.append(Part(form.jvp(has), (*picks, *(places[p] for p in picks if has_tangent[p])), targets))
        return SumForm.jvp_of(self, has_tangent, parts)


class AnyForm(Protocol):
    """A form as descriptions, backends and runners see it: products, sums of products, and formulas are such."""

    family: str  # the key of its printers and runners

    @property
    def operands(self) -> tuple[Operand, ...]:
        """All that it reads."""

    @property
    def results(self) -> tuple[Operand, ...]:
        """All that it computes."""

    @property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""

    @property
    def program(self) -> Program | None:
        """The program of a product; None of a formula."""

    @property
    def reading(self) -> Reading | None:
        """How weights are read from a table; None if they are an operand."""

    def vjp(self, has_cotangent: Sequence[bool], wanted: Sequence[bool]) -> AnyForm:
        """The gradients of the results that have cotangents, by the wanted operands."""

    def jvp(self, has_tangent: Sequence[bool]) -> AnyForm:
        """The derivative of the results along tangents of operands."""


def _behind(count: int, flags: Sequence[bool]) -> dict[int, int]:
    """The places of the flagged operands, one after the other behind ``count`` others."""
    flagged = [number for number, flag in enumerate(flags) if flag]
    return {number: count + place for place, number in enumerate(flagged)}


def _replaced(
    form: ProductForm, first: dict[str, int], second: dict[str, int]
) -> Iterator[tuple[str, str, ProductForm, tuple[int, ...]]]:
    """F with two operands replaced, for all pairs: their names, the form, and where its operands and g stand."""
    base = form._like(0, ("z",))
    for a, along in first.items():
        for b, other in second.items():
            if a != b:
                places = {name: place for place, name in enumerate(base.linear)} | {a: along, b: other}
                replaced = base if {a, b}.isdisjoint("wtc") else base.weighted
                yield a, b, replaced, tuple(places.values())


def _gradients(form: ProductForm, picks: tuple[int, ...], targets: dict[str, int]) -> Iterator[Part]:
    """The gradients of F by these operands; that by g is the product itself."""
    names = tuple(name for name in targets if name != "z")
    if names:
        yield Part(form._like(1, names), picks, tuple(targets[name] for name in names))
    if "z" in targets:
        yield Part(form, picks[:-1], (targets["z"],))
