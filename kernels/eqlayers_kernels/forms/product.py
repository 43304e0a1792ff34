r"""A product as a form of any number of operands, and the forms that are its derivatives.

The form :math:`F(x, y, w, g) = \sum z g` is linear in each of its operands, so one kernel gives z, its gradients, or
the derivatives of both along tangents (`Kind`). Further derivatives are sums of these, with other tensors in place
of the operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

from ..arithmetic.writer import Kind
from .formula import Block, Formula, Operand
from .program import OPERANDS, Program

Rows = tuple[str, str, str, str]


@dataclass(frozen=True)
class ProductForm:
    """A program, what of it is wanted, and the rows of its operands.

    Attributes:
        program: All paths of a product.
        rows: Of x, y, w and z; see `Operand.rows`.
        kind: What is computed: z, gradients, or derivatives of both.
    """

    program: Program
    rows: Rows = ("each", "each", "each", "each")
    kind: Kind = field(default=Kind(0, ("z",)))

    def _operand(self, name: str) -> Operand:
        place = OPERANDS.index("z" if name == "g" else name[-1])
        return Operand(name, self.program.widths[place], (Block(0, self.program.widths[place]),), self.rows[place])

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Of the operands: x, y, w; then g; then tangents."""
        return (*"xyw", *("g" * min(self.kind.order, 1)), *(f"d{name}" for name in self.kind.tangents))

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """What it reads."""
        return tuple(self._operand(name) for name in self.names)

    @cached_property
    def results(self) -> tuple[Operand, ...]:
        """What it writes."""
        return tuple(self._operand(name)._replace(name=f"gradient of {name}") for name in self.kind.results)

    @property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return "src" in self.rows or "dst" in self.rows

    @property
    def weighted(self) -> ProductForm:
        """Of the paths with weights: what remains when another vector takes the weights' place."""
        paths = tuple(path for path in self.program.paths if path.weight is not None)
        return replace(self, program=replace(self.program, paths=paths))

    def _like(self, *kind: object) -> ProductForm:
        return replace(self, kind=Kind(*kind))  # type: ignore[arg-type]

    def gradient(self, given: Sequence[bool], wanted: Sequence[bool]) -> ProductForm | SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.gradient`."""
        names = tuple(name for name, want in zip(self.names, wanted, strict=True) if want)
        moving = tuple(name for name, has in zip(self.kind.results, given, strict=True) if has)
        if self.kind.order == 0 and moving:
            return self._like(1, names)
        if self.kind.order == 1:
            return self._like(2, tuple("z" if name == "g" else name for name in names), moving)
        return SumForm.gradient_of(self, given, wanted, self._pairs(given, names))

    def along(self, moving: Sequence[bool]) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.along`."""
        count, places, parts = len(self.names), _behind(len(self.names), moving), []
        targets = tuple(range(len(self.results)))
        if self.kind.order == 0:
            for slot, place in places.items():
                picks = tuple(place if other == slot else other for other in range(count))
                parts.append(Part(self.weighted if self.names[slot] == "w" else self, picks, targets))
        elif self.kind.order == 1:
            tangents = tuple(self.names[slot] for slot in places if slot < 3)
            if tangents:  # second derivatives are symmetric: the change of the gradients is the gradient of the change
                picks = (*range(count), *(place for slot, place in places.items() if slot < 3))
                parts.append(Part(self._like(2, self.kind.results, tangents), picks, targets))
            if 3 in places:
                parts.append(Part(self, (0, 1, 2, places[3]), targets))
        else:
            named = {("z" if self.names[s] == "g" else self.names[s]): p for s, p in places.items()}
            first = {name: 4 + number for number, name in enumerate(self.kind.tangents)}
            along = {name: named[name] for name in named if name in OPERANDS}
            for a, b, form, picks in _replaced(self, first, along):
                wanted = [name for name in self.kind.results if name not in (a, b)]
                parts += _gradients(form, picks, {name: self.kind.results.index(name) for name in wanted})
            tangents = tuple(name for name in self.kind.tangents if f"d{name}" in named)
            if tangents:
                picks = (0, 1, 2, 3, *(named[f"d{name}"] for name in tangents))
                parts.append(Part(self._like(2, self.kind.results, tangents), picks, targets))
        return SumForm.along_of(self, moving, parts)

    def _pairs(self, given: Sequence[bool], wanted: tuple[str, ...]) -> Iterator[Part]:
        """The parts of the gradient of a second derivative: F with two operands replaced."""
        first = {name: 4 + number for number, name in enumerate(self.kind.tangents)}
        second = {self.kind.results[n]: place for n, place in _behind(len(self.names), given).items()}
        for a, b, form, picks in _replaced(self, first, second):
            targets = {}
            for name in OPERANDS:
                own = f"d{name}" if name == a else "g" if name == "z" else name
                if name != b and own in wanted:
                    targets[name] = wanted.index(own)
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

    @cached_property
    def of_nodes(self) -> bool:
        """Whether any operand or result has rows of senders or receivers."""
        return any(one.rows in ("src", "dst") for one in (*self.operands, *self.results))

    @classmethod
    def gradient_of(
        cls, base: ProductForm | SumForm, given: Sequence[bool], wanted: Sequence[bool], parts: Iterator[Part]
    ) -> SumForm:
        """With the operands and results that a gradient of ``base`` has."""
        extra = [
            one._replace(name=f"cotangent of {one.name}") for one, has in zip(base.results, given, strict=True) if has
        ]
        results = [
            one._replace(name=f"gradient of {one.name}")
            for one, want in zip(base.operands, wanted, strict=True)
            if want
        ]
        return cls((*base.operands, *extra), tuple(results), tuple(parts))

    @classmethod
    def along_of(cls, base: ProductForm | SumForm, moving: Sequence[bool], parts: Sequence[Part]) -> SumForm:
        """With the operands and results that a derivative of ``base`` along tangents has."""
        extra = [
            one._replace(name=f"tangent of {one.name}")
            for one, moves in zip(base.operands, moving, strict=True)
            if moves
        ]
        results = tuple(one._replace(name=f"tangent of {one.name}") for one in base.results)
        return cls((*base.operands, *extra), results, tuple(parts))

    def gradient(self, given: Sequence[bool], wanted: Sequence[bool]) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.gradient`."""
        places, order = _behind(len(self.operands), given), _behind(0, wanted)

        def parts() -> Iterator[Part]:
            for form, picks, targets in self.parts:
                own_given = [given[target] for target in targets]
                own_wanted = [wanted[pick] for pick in picks]
                if any(own_given) and any(own_wanted):
                    extra = tuple(places[target] for target in targets if given[target])
                    own = form.gradient(own_given, own_wanted)
                    yield Part(own, (*picks, *extra), tuple(order[pick] for pick in picks if wanted[pick]))

        return SumForm.gradient_of(self, given, wanted, parts())

    def along(self, moving: Sequence[bool]) -> SumForm:
        """See :meth:`eqlayers_kernels.forms.formula.Formula.along`."""
        places = _behind(len(self.operands), moving)
        parts = [
            Part(form.along([moving[p] for p in picks]), (*picks, *(places[p] for p in picks if moving[p])), targets)
            for form, picks, targets in self.parts
            if any(moving[pick] for pick in picks)
        ]
        return SumForm.along_of(self, moving, parts)


AnyForm = ProductForm | SumForm | Formula


def _behind(count: int, flags: Sequence[bool]) -> dict[int, int]:
    """The places of what is flagged, one after the other behind ``count`` others."""
    flagged = [number for number, flag in enumerate(flags) if flag]
    return {number: count + place for place, number in enumerate(flagged)}


def _replaced(
    form: ProductForm, first: dict[str, int], second: dict[str, int]
) -> Iterator[tuple[str, str, ProductForm, tuple[int, ...]]]:
    """F with two operands replaced, for all pairs: their names, the form, and where its x, y, w and g stand."""
    base = form._like(0, ("z",))
    for a, along in first.items():
        for b, other in second.items():
            if a != b:
                places = dict(zip(OPERANDS, range(4), strict=True)) | {a: along, b: other}
                yield a, b, base.weighted if "w" in (a, b) else base, tuple(places[name] for name in OPERANDS)


def _gradients(form: ProductForm, picks: tuple[int, ...], targets: dict[str, int]) -> Iterator[Part]:
    """The gradients of F by these operands; that by g is the product itself."""
    names = tuple(name for name in targets if name != "z")
    if names:
        yield Part(form._like(1, names), picks, tuple(targets[name] for name in names))
    if "z" in targets:
        yield Part(form, picks[:3], (targets["z"],))
