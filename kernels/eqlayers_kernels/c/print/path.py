"""Prints one path of a program as a C function over the channels of its inner axis, which is one loop."""

from __future__ import annotations

from ...arithmetic.product import PathLines, steps_of
from ...arithmetic.writer import RESULTS, Dual, Task, Writer, pointer_of
from ...forms.program import Path
from .layout import VECTOR_BYTES

#: Of the channels of a component whose sums are left as vectors. With 32 channels, a call took 6 % longer.
FEWEST_BYTES = 512


def takes_vectors(path: Path, task: Task, item: int) -> bool:
    """Whether a path, whose weights mix no channels, has vectors of channels: their sums are left as vectors.

    These are gradients by y of channels that fill many vectors of all processors; for few, sums take too long.
    """
    step = steps_of(path)
    return (
        task.order == 1
        and "y" in task.results
        and path.inner.extent * item in range(FEWEST_BYTES, 1 << 31, max(VECTOR_BYTES))
        and (step["x"], step["y"], step["z"], path.y.mul) == (1, 0, 1, 1)
        and (path.weight is None or step["w"] == 1)
    )


class CWriter(Writer):
    """Collects C lines before, in and after the loop over the channels of a path's inner axis; see `path_body`."""

    def __init__(self, path: Path, task: Task, writes: frozenset[str], reads: int, width: int, vectors: bool) -> None:
        self.sums_pairs, self.type = vectors, "V" if vectors else "T"
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
        if self.sums_pairs and step:
            return f"*(V *)({' + '.join([pointer, *index])})"
        return f"{pointer}[{' + '.join(index) or 0}]"

    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        """Declare a C constant, inside the channel loop if it varies."""
        lines, kind = (self.inside, self.type) if varies else (self.before, "T")
        if value.value:
            lines.append(f"const {kind} {label} = {value.value};")
        if value.tangent:
            lines.append(f"const {kind} d{label} = {value.tangent};")
        return Dual(label if value.value else "", f"d{label}" if value.tangent else "")

    def load(self, operand: str, component: int) -> Dual:
        """Read a component once: inside the channel loop if it differs from channel to channel.

        Weights are combinations of rows of a table where the task has one.
        """
        pointer = pointer_of(operand)
        if operand == "w" and "t" in self.task.factors:
            for k in range(self.reads):
                self.name(f"row{k}", Dual(self._at("t", "w", k * self.width)), bool(self.step["w"]))
            tangent = self._combined("dc") if "c" in self.task.tangents else ""
            return self.name("w0", Dual(self._combined("c"), tangent), bool(self.step["w"]))
        tangent = self._at(f"d{operand}", operand, component) if operand in self.task.tangents else ""
        value = Dual(self._at(pointer, operand, component), tangent)
        return self.name(f"{pointer}{component}", value, bool(self.step[operand]))

    def _combined(self, coefficients: str) -> str:
        self.before += [f"const T {coefficients}{k} = {coefficients}[{k}];" for k in range(self.reads)]
        return " + ".join(f"{coefficients}{k} * row{k}" for k in range(self.reads))

    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add to a result directly, or to a sum over the channels if the result has none."""
        text, overwrite = self.task.part(value), operand in self.writes
        if operand == "w" and "c" in self.task.results:
            text = self.name("gw0", Dual(text), True).value
            for k in range(self.reads):
                self.add_total("c", k, Dual(self._sum(f"s{k}", f"{text} * row{k}")))
            if "w" not in self.task.results:
                return
        target, sign = self._at(RESULTS[operand], operand, component), "=" if overwrite else "+="
        if self.step[operand] and (text or overwrite):
            self.inside.append(f"{target} {sign} {text or 0};")
        elif text or overwrite:
            total = self._sum(f"{RESULTS[operand]}{component}", text) if text else "0"
            self.after.append(f"{target} {sign} {total};")

    def _sum(self, name: str, text: str) -> str:
        self.before.append(f"{self.type} {name} = {'{0}' if self.sums_pairs else 0};")
        self.inside.append(f"{name} += {text};")
        return name

    def total(self, label: str, value: Dual) -> Dual:
        """A C variable in which the channel loop sums a value."""
        v = self._sum(label, value.value) if value.value else ""
        return Dual(v, self._sum(f"d{label}", value.tangent) if value.tangent else "")

    def add_total(self, operand: str, component: int, value: Dual) -> None:
        """Add a value that is summed over channels to a result, or a vector of sums, after the channel loop."""
        text = self.task.part(value)
        if self.sums_pairs:
            self.after.append(f"*(V *)({RESULTS[operand]} + {component} * LANES) += {text};")
        elif text:
            self.after.append(f"{self._at(RESULTS[operand], operand, component)} += {text};")

    def body(self) -> list[str]:
        """All C lines of the function."""
        step = "u += LANES" if self.sums_pairs else "u++"
        loop = [f"for (int u = 0; u < {self.extent}; {step}) {{", *(f"  {line}" for line in self.inside), "}"]
        return [*self.before, *loop, *self.after]


def path_body(
    path: Path, task: Task, writes: frozenset[str], reads: int = 0, width: int = 0, vectors: bool = False
) -> str:
    """The body of a path's C function; results named in ``writes`` are overwritten, others are added to.

    Where the task has a table, ``reads`` of its rows of ``width`` weights are combined. With ``vectors``, see
    `takes_vectors`, sums over channels are vectors.
    """
    out = CWriter(path, task, writes, reads, width, vectors)
    PathLines(path, task.combined, out).write()
    return "\n  ".join(out.body())
