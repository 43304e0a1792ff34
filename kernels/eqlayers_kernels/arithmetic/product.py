"""The arithmetic of one path, in the words of no language: its value, its gradients, or their derivatives.

What does not depend on the channels of the path's inner axis comes first: where one operand of x and y is the same for
all channels (spherical harmonics, as a rule) it is contracted with the coefficients,
``A[i, k] = sum_j s y[j]``, and only ``z[k] += w A[i, k] x[i]`` remains. The gradients are
``r[i] = sum_k A[i, k] g[k]``, ``gx[i] = w r[i]``, ``gw = sum_i x[i] r[i]`` and ``gy[j] = sum s w x[i] g[k]``, which is
contracted per channel: one sum over channels for every component of y, instead of one for every pair (i, k).
Second derivatives are the same lines on dual numbers.
"""

from __future__ import annotations

from ..forms.program import Path
from .dual import Dual, plus, times
from .writer import Kind, Writer


def steps_of(path: Path) -> dict[str, int]:
    """Channels that each operand advances along the inner axis, 0 where there is only one."""
    inner = path.inner
    return dict(zip("xywz", inner.steps, strict=True)) if inner.extent > 1 else dict.fromkeys("xywz", 0)


class PathLines:
    """Says what is to be computed for one path, whose outer axes are the caller's; ``out`` says how it is written."""

    def __init__(self, path: Path, kind: Kind, out: Writer) -> None:
        self.path, self.kind, self.out = path, kind, out
        self.step = steps_of(path)

    def write(self) -> None:
        """Everything, in order."""
        path, kind = self.path, self.kind
        w = self.out.load("w", 0) if path.weight is not None else None
        g = {k: self.out.load("z", k) for k in sorted({t[2] for t in path.terms})} if kind.gradients else {}
        if self.step["x"] and self.step["y"]:
            self._both(w, g)
        elif self.step["x"] or self.step["y"]:
            self._one(w, g, *(("x", "y") if self.step["x"] else ("y", "x")))
        else:
            self._none(w, g)

    def _constant(self, value: float) -> Dual:
        return Dual(self.out.literal(value))

    def _wanted(self, operand: str) -> bool:
        return operand in self.kind.results

    def _z(self, w: Dual | None, sums: dict[int, list[Dual]]) -> None:
        if self._wanted("z"):
            for k in range(self.path.z.dim):
                self.out.add("z", k, times(w, plus(sums.get(k, ()))))

    def _add_w(self, value: Dual) -> None:
        if self._wanted("w"):
            self.out.add("w", 0, value)

    def _one(self, w: Dual | None, g: dict[int, Dual], many: str, one: str) -> None:
        """X or y is the same for all channels: contracted first."""
        swap = many == "y"
        terms = [((j, i, k, s) if swap else (i, j, k, s)) for i, j, k, s in self.path.terms]
        ones = {j: self.out.load(one, j) for j in sorted({t[1] for t in terms})}
        manys = {i: self.out.load(many, i) for i in sorted({t[0] for t in terms})}
        table: dict[tuple[int, int], list[Dual]] = {}
        for i, j, k, s in terms:
            table.setdefault((i, k), []).append(times(self._constant(s), ones[j]))
        a = {(i, k): self.out.name(f"a{i}_{k}", plus(values), False) for (i, k), values in table.items()}
        weighted: dict[int, Dual] = {}

        def weigh() -> dict[int, Dual]:
            if not weighted:
                weighted.update({i: self.out.name(f"wm{i}", times(w, value), True) for i, value in manys.items()})
            return weighted

        if self.out.weighs_first and self.kind.order == 2 and self._wanted("z"):  # the weights' tangent is in w x
            self._z(None, _by(1, {(i, k): times(value, weigh()[i]) for (i, k), value in a.items()}))
        else:
            self._z(w, _by(1, {(i, k): times(value, manys[i]) for (i, k), value in a.items()}))
        if not self.kind.gradients:
            return
        r = {
            i: self.out.name(f"r{i}", plus(values), True)
            for i, values in _by(0, {(i, k): times(value, g[k]) for (i, k), value in a.items()}).items()
        }
        if self._wanted(many):
            for i, value in r.items():
                self.out.add(many, i, times(w, value))
        if w is not None:
            self._add_w(plus(times(manys[i], value) for i, value in r.items()))
        if self._wanted(one):
            products = {(i, k): times(weigh()[i], g[k]) for i, k in a}
            named = {pair: self.out.name(f"p{pair[0]}_{pair[1]}", v, True) for pair, v in products.items()}
            back: dict[int, list[Dual]] = {}
            for i, j, k, s in terms:
                back.setdefault(j, []).append(times(self._constant(s), named[i, k]))
            for j, values in back.items():
                self.out.add(one, j, plus(values))

    def _factors(self) -> tuple[dict[int, Dual], dict[int, Dual], dict[int, list[Dual]]]:
        """Components of x and of y, and the products of both that make each component of z."""
        x = {i: self.out.load("x", i) for i in sorted({t[0] for t in self.path.terms})}
        y = {j: self.out.load("y", j) for j in sorted({t[1] for t in self.path.terms})}
        table: dict[int, list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            table.setdefault(k, []).append(times(self._constant(s), x[i], y[j]))
        return x, y, table

    def _none(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """Neither x nor y has the channels of the inner axis: their product is contracted first."""
        x, y, table = self._factors()
        products = {k: self.out.name(f"t{k}", plus(values), False) for k, values in table.items()}
        self._z(w, {k: [value] for k, value in products.items()})
        if not self.kind.gradients:
            return
        if w is not None:
            self._add_w(plus(times(value, g[k]) for k, value in products.items()))
        if not {"x", "y"} & set(self.kind.results):
            return
        h = {k: self.out.total(f"h{k}", times(w, g[k])) for k in products}
        back: dict[tuple[str, int], list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            back.setdefault(("x", i), []).append(times(self._constant(s), y[j], h[k]))
            back.setdefault(("y", j), []).append(times(self._constant(s), x[i], h[k]))
        for (operand, component), values in back.items():
            if self._wanted(operand):
                self.out.add_total(operand, component, plus(values))

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
        r = {i: self.out.name(f"r{i}", plus(values), True) for i, values in found["x"].items()}
        if self._wanted("x"):
            for i, value in r.items():
                self.out.add("x", i, times(w, value))
        if self._wanted("y"):
            for j, values in found["y"].items():
                self.out.add("y", j, times(w, plus(values)))
        if w is not None:
            self._add_w(plus(times(x[i], value) for i, value in r.items()))


def _by(place: int, values: dict[tuple[int, int], Dual]) -> dict[int, list[Dual]]:
    """Values of pairs (i, k), collected by one of the two."""
    out: dict[int, list[Dual]] = {}
    for pair, value in values.items():
        out.setdefault(pair[place], []).append(value)
    return out
