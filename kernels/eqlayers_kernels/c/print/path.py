"""Prints one path of a program as a C function over the channels of its inner axis, which is one loop."""

from __future__ import annotations

from ...arithmetic.product import PathLines, steps_of
from ...arithmetic.writer import RESULTS, Dual, Task, Writer, pointer_of
from ...forms.program import Path


class CWriter(Writer):
    """Collects C lines before, in and after the loop over the channels of a path's inner axis; see `path_body`."""

    def __init__(self, path: Path, task: Task, writes: frozenset[str], reads: int, width: int) -> None:
        self.task, self.writes, self.reads, self.width = task, writes, reads, width
        self.step, self.extent = steps_of(path), path.inner.extent
        self.stride = {"x": path.x.mul, "y": path.y.mul, "w": 1, "z": path.z.mul}
        self.before: list[str] = []
        self.inside: list[str] = []
        self.after: list[str] = []

    def literal(self, value: float) -> str:
        """A coefficient as C literal, cast to the type of the kernel."""
        return f"(T){value!r}"

    def _at(self, pointer: str, operand: str, component: int) -> str:
        """C expression for a component of an operand; ``u`` is the channel."""
        step, offset = self.step[operand], component * self.stride[operand]
        index = [text for text in (f"u * {step}" if step > 1 else "u" * step, f"{offset}" if offset else "") if text]
        return f"{pointer}[{' + '.join(index) or 0}]"

    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        """Declare a C constant, inside the channel loop if it varies."""
        lines = self.inside if varies else self.before
        if value.value:
            lines.append(f"const T {label} = {value.value};")
        if value.tangent:
            lines.append(f"const T d{label} = {value.tangent};")
        return Dual(label if value.value else "", f"d{label}" if value.tangent else "")

    def load(self, operand: str, component: int) -> Dual:
        """Read a component once: inside the channel loop if it differs from channel to channel.

        Weights are combinations of rows of a table where the task has one.
        """
        pointer = pointer_of(operand)
        if operand == "w" and "t" in self.task.factors:
            tangent = self._combined("dc") if "c" in self.task.tangents else ""
            return self.name("w0", Dual(self._combined("c"), tangent), bool(self.step["w"]))
        tangent = self._at(f"d{operand}", operand, component) if operand in self.task.tangents else ""
        value = Dual(self._at(pointer, operand, component), tangent)
        return self.name(f"{pointer}{component}", value, bool(self.step[operand]))

    def _combined(self, coefficients: str) -> str:
        self.before += [f"const T {coefficients}{k} = {coefficients}[{k}];" for k in range(self.reads)]
        rows = (self._at("t", "w", k * self.width) for k in range(self.reads))
        return " + ".join(f"{coefficients}{k} * {row}" for k, row in enumerate(rows))

    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add to a result directly, or to a sum over the channels if the result has none."""
        text, overwrite = self.task.part(value), operand in self.writes
        target, sign = self._at(RESULTS[operand], operand, component), "=" if overwrite else "+="
        if self.step[operand] and (text or overwrite):
            self.inside.append(f"{target} {sign} {text or 0};")
        elif text or overwrite:
            total = self._sum(f"{RESULTS[operand]}{component}", text) if text else "0"
            self.after.append(f"{target} {sign} {total};")

    def _sum(self, name: str, text: str) -> str:
        self.before.append(f"T {name} = 0;")
        self.inside.append(f"{name} += {text};")
        return name

    def total(self, label: str, value: Dual) -> Dual:
        """A C variable in which the channel loop sums a value."""
        v = self._sum(label, value.value) if value.value else ""
        return Dual(v, self._sum(f"d{label}", value.tangent) if value.tangent else "")

    def add_total(self, operand: str, component: int, value: Dual) -> None:
        """Add a value that is summed over channels to a result, after the channel loop."""
        text = self.task.part(value)
        if text:
            self.after.append(f"{self._at(RESULTS[operand], operand, component)} += {text};")

    def body(self) -> list[str]:
        """All C lines of the function."""
        loop = [f"for (int u = 0; u < {self.extent}; u++) {{", *(f"  {line}" for line in self.inside), "}"]
        return [*self.before, *loop, *self.after]


def path_body(path: Path, task: Task, writes: frozenset[str], reads: int = 0, width: int = 0) -> str:
    """The body of a path's C function; results named in ``writes`` are overwritten, others are added to.

    Where the task has a table, ``reads`` of its rows of ``width`` weights are combined.
    """
    out = CWriter(path, task, writes, reads, width)
    PathLines(path, task, out).write()
    return "\n  ".join(out.body())
