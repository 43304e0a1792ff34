"""Prints one path of a program as a C function: its value, its gradients, or their derivatives, in one loop.

What does not depend on the channel of the innermost loop is computed before it: where one operand of x and y is the
same for all channels (spherical harmonics, as a rule) it is contracted with the coefficients,
``A[i, k] = sum_j s y[j]``, and only ``z[k] += w A[i, k] x[i]`` remains. The gradients are
``r[i] = sum_k A[i, k] g[k]``, ``gx[i] = w r[i]``, ``gw = sum_i x[i] r[i]`` and ``gy[j] = sum s w x[i] g[k]``, which is
contracted per channel: one sum over channels for every component of y, instead of one for every pair (i, k).
Second derivatives are the same lines on dual numbers.
"""

from __future__ import annotations

from typing import NamedTuple

from ..program import Path
from .dual import Dual, constant, plus, times

#: Pointers of a path's function, in order: operands, their tangents, and results.
INPUTS = ("x", "y", "w", "g", "dx", "dy", "dw")
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


class _Printer:
    """Collects the lines before, in and behind the loop of one path."""

    def __init__(self, path: Path, kind: Kind, writes: frozenset[str]) -> None:
        self.path, self.kind, self.writes = path, kind, writes
        inner = path.inner
        self.step = dict(zip("xywz", inner.steps, strict=True)) if inner.extent > 1 else dict.fromkeys("xywz", 0)
        self.stride = {"x": path.x.mul, "y": path.y.mul, "w": 1, "z": path.z.mul}
        self.before: list[str] = []
        self.inside: list[str] = []
        self.after: list[str] = []

    def at(self, pointer: str, operand: str, component: int) -> str:
        """Element of an operand; ``u`` counts channels."""
        step, offset = self.step[operand], component * self.stride[operand]
        index = [text for text in (f"u * {step}" if step > 1 else "u" * step, f"{offset}" if offset else "") if text]
        return f"{pointer}[{' + '.join(index) or 0}]"

    def lines(self, operand: str) -> list[str]:
        """Where an operand is read: in the loop if it has its channels."""
        return self.inside if self.step[operand] else self.before

    def name(self, lines: list[str], name: str, value: Dual) -> Dual:
        """Give a value a name."""
        if value.value:
            lines.append(f"const T {name} = {value.value};")
        if value.tangent:
            lines.append(f"const T d{name} = {value.tangent};")
        return Dual(name if value.value else "", f"d{name}" if value.tangent else "")

    def load(self, operand: str, component: int) -> Dual:
        """A component of an operand, read once; with its tangent if it has one."""
        pointer = "g" if operand == "z" else operand
        tangent = self.at(f"d{operand}", operand, component) if operand in self.kind.tangents else ""
        value = Dual(self.at(pointer, operand, component), tangent)
        return self.name(self.lines(operand), f"{pointer}{component}", value)

    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add to a result, in the loop: directly, or to a sum over the channels if the result has none."""
        text = self.kind.part(value)
        if operand not in self.kind.results:
            return
        target = self.at(RESULTS[operand], operand, component)
        overwrite = operand in self.writes
        if self.step[operand]:
            if text or overwrite:
                self.inside.append(f"{target} {'=' if overwrite else '+='} {text or 0};")
        elif text or overwrite:
            total = Dual(self.sum(f"{RESULTS[operand]}{component}", text)) if text else Dual("0")
            self.after.append(f"{target} {'=' if overwrite else '+='} {total.value};")

    def sum(self, name: str, text: str) -> str:
        """A sum over the channels of the loop."""
        self.before.append(f"T {name} = 0;")
        self.inside.append(f"{name} += {text};")
        return name

    def sums(self, name: str, value: Dual) -> Dual:
        """A dual sum over the channels of the loop."""
        v = self.sum(name, value.value) if value.value else ""
        return Dual(v, self.sum(f"d{name}", value.tangent) if value.tangent else "")

    def result_after(self, operand: str, component: int, value: Dual) -> None:
        """Add to a result behind the loop."""
        text = self.kind.part(value)
        if text:
            self.after.append(f"{self.at(RESULTS[operand], operand, component)} += {text};")

    def body(self) -> list[str]:
        """All lines of the function."""
        path, kind = self.path, self.kind
        w = self.load("w", 0) if path.weight is not None else None
        g = {k: self.load("z", k) for k in sorted({t[2] for t in path.terms})} if kind.gradients else {}
        if self.step["x"] and self.step["y"]:
            self._both(w, g)
        elif self.step["x"] or self.step["y"]:
            self._one(w, g, *(("x", "y") if self.step["x"] else ("y", "x")))
        else:
            self._none(w, g)
        loop = [f"for (int u = 0; u < {path.inner.extent}; u++) {{", *(f"  {line}" for line in self.inside), "}"]
        return [*self.before, *loop, *self.after]

    def _z(self, w: Dual | None, sums: dict[int, list[Dual]]) -> None:
        for k in range(self.path.z.dim):
            self.add("z", k, times(w, plus(sums.get(k, ()))) if "z" in self.kind.results else Dual())

    def _one(self, w: Dual | None, g: dict[int, Dual], many: str, one: str) -> None:
        """X or y is the same for all channels: contracted first."""
        swap = many == "y"
        terms = [((j, i, k, s) if swap else (i, j, k, s)) for i, j, k, s in self.path.terms]
        ones = {j: self.load(one, j) for j in sorted({t[1] for t in terms})}
        manys = {i: self.load(many, i) for i in sorted({t[0] for t in terms})}
        table: dict[tuple[int, int], list[Dual]] = {}
        for i, j, k, s in terms:
            table.setdefault((i, k), []).append(times(constant(s), ones[j]))
        a = {(i, k): self.name(self.before, f"a{i}_{k}", plus(values)) for (i, k), values in table.items()}
        self._z(w, _by(1, {(i, k): times(value, manys[i]) for (i, k), value in a.items()}))
        if not self.kind.gradients:
            return
        r = {
            i: self.name(self.inside, f"r{i}", plus(values))
            for i, values in _by(0, {(i, k): times(value, g[k]) for (i, k), value in a.items()}).items()
        }
        for i, value in r.items():
            self.add(many, i, times(w, value))
        if w is not None:
            self.add("w", 0, plus(times(manys[i], value) for i, value in r.items()))
        if one in self.kind.results:
            weighted = {i: self.name(self.inside, f"wm{i}", times(w, value)) for i, value in manys.items()}
            products = {(i, k): times(weighted[i], g[k]) for i, k in a}
            named = {pair: self.name(self.inside, f"p{pair[0]}_{pair[1]}", v) for pair, v in products.items()}
            back: dict[int, list[Dual]] = {}
            for i, j, k, s in terms:
                back.setdefault(j, []).append(times(constant(s), named[i, k]))
            for j, values in back.items():
                self.add(one, j, plus(values))

    def _factors(self) -> tuple[dict[int, Dual], dict[int, Dual], dict[int, list[Dual]]]:
        """Components of x and of y, and the products of both that make each component of z."""
        x = {i: self.load("x", i) for i in sorted({t[0] for t in self.path.terms})}
        y = {j: self.load("y", j) for j in sorted({t[1] for t in self.path.terms})}
        table: dict[int, list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            table.setdefault(k, []).append(times(constant(s), x[i], y[j]))
        return x, y, table

    def _none(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """Neither x nor y has the channels of the loop: their product is contracted first."""
        x, y, table = self._factors()
        products = {k: self.name(self.before, f"t{k}", plus(values)) for k, values in table.items()}
        self._z(w, {k: [value] for k, value in products.items()})
        if not self.kind.gradients:
            return
        if w is not None:
            self.add("w", 0, plus(times(value, g[k]) for k, value in products.items()))
        if not {"x", "y"} & set(self.kind.results):
            return
        h = {k: self.sums(f"h{k}", times(w, g[k])) for k in products}
        back: dict[tuple[str, int], list[Dual]] = {}
        for i, j, k, s in self.path.terms:
            back.setdefault(("x", i), []).append(times(constant(s), y[j], h[k]))
            back.setdefault(("y", j), []).append(times(constant(s), x[i], h[k]))
        for (operand, component), values in back.items():
            if operand in self.kind.results:
                self.result_after(operand, component, plus(values))

    def _both(self, w: Dual | None, g: dict[int, Dual]) -> None:
        """X and y have the channels of the loop: nothing to contract first."""
        x, y, table = self._factors()
        self._z(w, table)
        if not self.kind.gradients:
            return
        found: dict[str, dict[int, list[Dual]]] = {"x": {}, "y": {}}
        for i, j, k, s in self.path.terms:
            found["x"].setdefault(i, []).append(times(constant(s), y[j], g[k]))
            found["y"].setdefault(j, []).append(times(constant(s), x[i], g[k]))
        r = {i: self.name(self.inside, f"r{i}", plus(values)) for i, values in found["x"].items()}
        for i, value in r.items():
            self.add("x", i, times(w, value))
        for j, values in found["y"].items():
            self.add("y", j, times(w, plus(values)))
        if w is not None:
            self.add("w", 0, plus(times(x[i], value) for i, value in r.items()))


def _by(place: int, values: dict[tuple[int, int], Dual]) -> dict[int, list[Dual]]:
    """Values of pairs (i, k), collected by one of the two."""
    out: dict[int, list[Dual]] = {}
    for pair, value in values.items():
        out.setdefault(pair[place], []).append(value)
    return out


def path_body(path: Path, kind: Kind, writes: frozenset[str]) -> str:
    """The body of a path's function over the pointers of ``kind``; equal paths have equal bodies.

    It overwrites the results that ``writes`` names ('z', 'w'), and adds to the others.
    """
    return "\n  ".join(_Printer(path, kind, writes).body())
