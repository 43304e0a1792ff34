"""The arithmetic of one path of a product, independent of the language: value, gradients, or second derivatives.

Terms that are equal for all channels of the path's inner axis come first: if x or y is the same for all channels
(usually y, the spherical harmonics), it is contracted with the coefficients,
``A[i, k] = sum_j s y[j]``, and only ``z[k] += w A[i, k] x[i]`` remains. The gradients are
``r[i] = sum_k A[i, k] g[k]``, ``gx[i] = w r[i]``, ``gw = sum_i x[i] r[i]`` and ``gy[j] = sum s w x[i] g[k]``, which is
contracted per channel: one sum over channels for every component of y, instead of one for every pair (i, k). Where sums
are vectors (`Writer.sums_pairs`), each pair is summed, and the sums are contracted.
Second derivatives are the same lines on dual numbers.
"""

from __future__ import annotations

from ..forms.program import Path
from .writer import Dual, Task, Writer, plus, times


def steps_of(path: Path) -> dict[str, int]:
    """Channels that each operand advances per step of the path's inner axis; all 0 if the axis has one channel."""
    inner = path.inner
    return dict(zip("xywz", inner.steps, strict=True)) if inner.extent > 1 else dict.fromkeys("xywz", 0)


class PathLines:
    """Writes the arithmetic of one path with the writer ``out``; loops over outer axes are left to the caller."""

    def __init__(self, path: Path, task: Task, out: Writer) -> None:
        self.path, self.task, self.out = path, task, out
        self.step = steps_of(path)

    def write(self) -> None:
        """Write all statements of the task, in order."""
        path, task = self.path, self.task
        w = self.out.load("w", 0) if path.weight is not None else None
        g = {k: self.out.load("z", k) for k in sorted({t[2] for t in path.terms})} if task.gradients else {}
        if self.step["x"] and self.step["y"]:
            self._both_vary(w, g)
        elif self.step["x"] or self.step["y"]:
            self._one_varies(w, g, *(("x", "y") if self.step["x"] else ("y", "x")))
        else:
            self._none_varies(w, g)

    def _constant(self, value: float) -> Dual:
        return Dual(self.out.literal(value))

    def _has_result(self, operand: str) -> bool:
        return operand in self.task.results

    def _z(self, w: Dual | None, sums: dict[int, list[Dual]]) -> None:
        if self._has_result("z"):
            for k in range(self.path.z.dim):
                self.out.add("z", k, times(w, plus(sums.get(k, ()))))

    def _add_w(self, value: Dual) -> None:
        if self._has_result("w"):
            self.out.add("w", 0, value)

    def _one_varies(self, w: Dual | None, g: dict[int, Dual], varying: str, uniform: str) -> None:
        """Write a path whose operand ``uniform`` (x or y) is equal for all channels: it is contracted first."""
        swap = varying == "y"
        terms = [((j, i, k, s) if swap else (i, j, k, s)) for i, j, k, s in self.path.terms]
        numbers = {j: self.out.load(uniform, j) for j in sorted({t[1] for t in terms})}
        vectors = {i: self.out.load(varying, i) for i in sorted({t[0] for t in terms})}
        table: dict[tuple[int, int], list[Dual]] = {}
        for i, j, k, s in terms:
            table.setdefault((i, k), []).append(times(self._constant(s), numbers[j]))
        a = {(i, k): self.out.name(f"a{i}_{k}", plus(values), False) for (i, k), values in table.items()}
        weighted: dict[int, Dual] = {}

        def weigh() -> dict[int, Dual]:
            if not weighted:
                weighted.update({i: self.out.name(f"wm{i}", times(w, value), True) for i, value in vectors.items()})
            return weighted

        if self.out.weighs_first and self.task.order == 2 and self._has_result("z"):  # the weights' tangent is in w x
            self._z(None, _by(1, {(i, k): times(value, weigh()[i]) for (i, k), value in a.items()}))
        else:
            self._z(w, _by(1, {(i, k): times(value, vectors[i]) for (i, k), value in a.items()}))
        if not self.task.gradients:
            return
        r = {
            i: self.out.name(f"r{i}", plus(values), True)
            for i, values in _by(0, {(i, k): times(value, g[k]) for (i, k), value in a.items()}).items()
        }
        if self._has_result(varying):
            for i, value in r.items():
                self.out.add(varying, i, times(w, value))
        if w is not None:
            self._add_w(plus(times(vectors[i], value) for i, value in r.items()))
        if self._has_result(uniform):
            products = {(i, k): times(weigh()[i], g[k]) for i, k in a}
            sums = self.out.sums_pairs
            named = {
                (i, k): self.out.total(f"p{i}_{k}", v) if sums else self.out.name(f"p{i}_{k}", v, True)
                for (i, k), v in products.items()
            }
            back: dict[int, list[Dual]] = {}
            for i, j, k, s in terms:
                back.setdefault(j, []).append(times(self._constant(s), named[i, k]))
            for j, values in back.items():
                (self.out.add_total if sums else self.out.add)(uniform, j, plus(values))

    def _factors(self) -> tuple[dict[int, Dual], dict[int, Dual], dict[int, list[Dual]]]:
        """Components of x and of y, and for each component of z the products of both that are summed in it."""
        x = {i: self.out.load("x", i) for i in sorted({t[0] for t in self.path.terms})}
        y = {j: self.out.load("y", j) for j in sorted({t[1] for t in self.path.terms})}
        table: dict[int, list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            table.setdefault(k, []).append(times(self._constant(s), x[i], y[j]))
        return x, y, table

    def _none_varies(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """Write a path whose x and y are both equal for all channels: their product is contracted first."""
        x, y, table = self._factors()
        products = {k: self.out.name(f"t{k}", plus(values), False) for k, values in table.items()}
        self._z(w, {k: [value] for k, value in products.items()})
        if not self.task.gradients:
            return
        if w is not None:
            self._add_w(plus(times(value, g[k]) for k, value in products.items()))
        if not {"x", "y"} & set(self.task.results):
            return
        h = {k: self.out.total(f"h{k}", times(w, g[k])) for k in products}
        back: dict[tuple[str, int], list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            back.setdefault(("x", i), []).append(times(self._constant(s), y[j], h[k]))
            back.setdefault(("y", j), []).append(times(self._constant(s), x[i], h[k]))
        for (operand, component), values in back.items():
            if self._has_result(operand):
                self.out.add_total(operand, component, plus(values))

    def _both_vary(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """Write a path whose x and y both vary with the channel: nothing is contracted before the channel loop."""
        x, y, table = self._factors()
        self._z(w, table)
        if not self.task.gradients:
            return
        gradients: dict[str, dict[int, list[Dual]]] = {"x": {}, "y": {}}
        for i, j, k, s in self.path.terms:
            gradients["x"].setdefault(i, []).append(times(self._constant(s), y[j], g[k]))
            gradients["y"].setdefault(j, []).append(times(self._constant(s), x[i], g[k]))
        r = {i: self.out.name(f"r{i}", plus(values), True) for i, values in gradients["x"].items()}
        if self._has_result("x"):
            for i, value in r.items():
                self.out.add("x", i, times(w, value))
        if self._has_result("y"):
            for j, values in gradients["y"].items():
                self.out.add("y", j, times(w, plus(values)))
        if w is not None:
            self._add_w(plus(times(x[i], value) for i, value in r.items()))


def _by(position: int, values: dict[tuple[int, int], Dual]) -> dict[int, list[Dual]]:
    """Values of pairs (i, k), grouped by i (``position`` 0) or by k (1)."""
    out: dict[int, list[Dual]] = {}
    for pair, value in values.items():
        out.setdefault(pair[position], []).append(value)
    return out
