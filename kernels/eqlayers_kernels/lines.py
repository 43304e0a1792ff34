"""The arithmetic of one path, in the words of no language: its value, its gradients, or their derivatives.

What does not depend on the channels of the path's inner axis comes first: where one operand of x and y is the same for
all channels (spherical harmonics, as a rule) it is contracted with the coefficients,
``A[i, k] = sum_j s y[j]``, and only ``z[k] += w A[i, k] x[i]`` remains. The gradients are
``r[i] = sum_k A[i, k] g[k]``, ``gx[i] = w r[i]``, ``gw = sum_i x[i] r[i]`` and ``gy[j] = sum s w x[i] g[k]``, which is
contracted per channel: one sum over channels for every component of y, instead of one for every pair (i, k).
Second derivatives are the same lines on dual numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

from .dual import Dual, plus, times
from .program import Path

#: Pointers of a kernel, in order: operands, their tangents, and results.
RESULTS = {"x": "gx", "y": "gy", "w": "gw", "z": "z"}


class Kind(NamedTuple):
    """What a kernel computes.

    ``order`` 0 is z; 1 is gradients of ``sum(z * g)``; 2 is the derivative of z and of those gradients along the
    ``tangents`` (of x, y, w, and of g as 'z'). ``results`` names the operands whose gradient is wanted; 'z' stands
    for the gradient of g.
    """

    order: int
    results: tuple[str, ...]
    tangents: tuple[str, ...] = ()

    def part(self, value: Dual) -> str:
        """What of a dual number is the result."""
        return value.tangent if self.order == 2 else value.value

    @property
    def pointers(self) -> list[tuple[str, str]]:
        """(name, operand that it is shaped as) of every pointer; results last."""
        out = [("x", "x"), ("y", "y"), ("w", "w")]
        if set(self.results) - {"z"}:
            out.append(("g", "z"))
        out.extend((f"d{name}", name) for name in self.tangents)
        return out + [(RESULTS[name], name) for name in self.results]

    @property
    def gradients(self) -> bool:
        """Whether anything but z is wanted."""
        return bool(set(self.results) - {"z"})


class PathLines(ABC):
    """Says what is to be computed for one path; a language says how it is written.

    Args:
        path: The path; its outer axes are the caller's business.
        kind: What to compute.
    """

    def __init__(self, path: Path, kind: Kind) -> None:
        self.path, self.kind = path, kind
        inner = path.inner
        self.step = dict(zip("xywz", inner.steps, strict=True)) if inner.extent > 1 else dict.fromkeys("xywz", 0)

    # -- the language -------------------------------------------------------------------------------------------------

    @abstractmethod
    def literal(self, value: float) -> str:
        """A coefficient."""

    @abstractmethod
    def load(self, operand: str, component: int) -> Dual:
        """A component of an operand ('z' is its cotangent g), with its tangent if it has one."""

    @abstractmethod
    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        """Give a value a name; ``varies`` says whether it differs from channel to channel."""

    @abstractmethod
    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add a value that differs from channel to channel to a wanted result; sum it if the result has no channels."""

    @abstractmethod
    def total(self, label: str, value: Dual) -> Dual:
        """The sum of a value over the channels."""

    @abstractmethod
    def add_total(self, operand: str, component: int, value: Dual) -> None:
        """Add a value made of sums over the channels to a wanted result."""

    # -- the arithmetic -----------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Everything, in order."""
        path, kind = self.path, self.kind
        w = self.load("w", 0) if path.weight is not None else None
        g = {k: self.load("z", k) for k in sorted({t[2] for t in path.terms})} if kind.gradients else {}
        if self.step["x"] and self.step["y"]:
            self._both(w, g)
        elif self.step["x"] or self.step["y"]:
            self._one(w, g, *(("x", "y") if self.step["x"] else ("y", "x")))
        else:
            self._none(w, g)

    def _constant(self, value: float) -> Dual:
        return Dual(self.literal(value))

    def _wanted(self, operand: str) -> bool:
        return operand in self.kind.results

    def _z(self, w: Dual | None, sums: dict[int, list[Dual]]) -> None:
        if self._wanted("z"):
            for k in range(self.path.z.dim):
                self.add("z", k, times(w, plus(sums.get(k, ()))))

    def _add_w(self, value: Dual) -> None:
        if self._wanted("w"):
            self.add("w", 0, value)

    def _one(self, w: Dual | None, g: dict[int, Dual], many: str, one: str) -> None:
        """X or y is the same for all channels: contracted first."""
        swap = many == "y"
        terms = [((j, i, k, s) if swap else (i, j, k, s)) for i, j, k, s in self.path.terms]
        ones = {j: self.load(one, j) for j in sorted({t[1] for t in terms})}
        manys = {i: self.load(many, i) for i in sorted({t[0] for t in terms})}
        table: dict[tuple[int, int], list[Dual]] = {}
        for i, j, k, s in terms:
            table.setdefault((i, k), []).append(times(self._constant(s), ones[j]))
        a = {(i, k): self.name(f"a{i}_{k}", plus(values), False) for (i, k), values in table.items()}
        self._z(w, _by(1, {(i, k): times(value, manys[i]) for (i, k), value in a.items()}))
        if not self.kind.gradients:
            return
        r = {
            i: self.name(f"r{i}", plus(values), True)
            for i, values in _by(0, {(i, k): times(value, g[k]) for (i, k), value in a.items()}).items()
        }
        if self._wanted(many):
            for i, value in r.items():
                self.add(many, i, times(w, value))
        if w is not None:
            self._add_w(plus(times(manys[i], value) for i, value in r.items()))
        if self._wanted(one):
            weighted = {i: self.name(f"wm{i}", times(w, value), True) for i, value in manys.items()}
            products = {(i, k): times(weighted[i], g[k]) for i, k in a}
            named = {pair: self.name(f"p{pair[0]}_{pair[1]}", v, True) for pair, v in products.items()}
            back: dict[int, list[Dual]] = {}
            for i, j, k, s in terms:
                back.setdefault(j, []).append(times(self._constant(s), named[i, k]))
            for j, values in back.items():
                self.add(one, j, plus(values))

    def _factors(self) -> tuple[dict[int, Dual], dict[int, Dual], dict[int, list[Dual]]]:
        """Components of x and of y, and the products of both that make each component of z."""
        x = {i: self.load("x", i) for i in sorted({t[0] for t in self.path.terms})}
        y = {j: self.load("y", j) for j in sorted({t[1] for t in self.path.terms})}
        table: dict[int, list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            table.setdefault(k, []).append(times(self._constant(s), x[i], y[j]))
        return x, y, table

    def _none(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """Neither x nor y has the channels of the inner axis: their product is contracted first."""
        x, y, table = self._factors()
        products = {k: self.name(f"t{k}", plus(values), False) for k, values in table.items()}
        self._z(w, {k: [value] for k, value in products.items()})
        if not self.kind.gradients:
            return
        if w is not None:
            self._add_w(plus(times(value, g[k]) for k, value in products.items()))
        if not {"x", "y"} & set(self.kind.results):
            return
        h = {k: self.total(f"h{k}", times(w, g[k])) for k in products}
        back: dict[tuple[str, int], list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            back.setdefault(("x", i), []).append(times(self._constant(s), y[j], h[k]))
            back.setdefault(("y", j), []).append(times(self._constant(s), x[i], h[k]))
        for (operand, component), values in back.items():
            if self._wanted(operand):
                self.add_total(operand, component, plus(values))

    def _both(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """X and y have the channels of the inner axis: nothing to contract first."""
        x, y, table = self._factors()
        self._z(w, table)
        if not self.kind.gradients:
            return
        found: dict[str, dict[int, list[Dual]]] = {"x": {}, "y": {}}
        for i, j, k, s in self.path.terms:
            found["x"].setdefault(i, []).append(times(self._constant(s), y[j], g[k]))
            found["y"].setdefault(j, []).append(times(self._constant(s), x[i], g[k]))
        r = {i: self.name(f"r{i}", plus(values), True) for i, values in found["x"].items()}
        if self._wanted("x"):
            for i, value in r.items():
                self.add("x", i, times(w, value))
        if self._wanted("y"):
            for j, values in found["y"].items():
                self.add("y", j, times(w, plus(values)))
        if w is not None:
            self._add_w(plus(times(x[i], value) for i, value in r.items()))


def _by(place: int, values: dict[tuple[int, int], Dual]) -> dict[int, list[Dual]]:
    """Values of pairs (i, k), collected by one of the two."""
    out: dict[int, list[Dual]] = {}
    for pair, value in values.items():
        out.setdefault(pair[place], []).append(value)
    return out


def pointer_of(operand: str) -> str:
    """The pointer from which an operand is read: what has the shape of z is its cotangent."""
    return "g" if operand == "z" else operand
