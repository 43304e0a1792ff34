"""Prints the paths of one kernel in Triton's language: values are vectors over a block of channels."""

from __future__ import annotations

from itertools import count

from ...arithmetic.product import steps_of
from ...arithmetic.writer import RESULTS, Dual, Task, Writer, pointer_of
from ...forms.program import Path, Program

#: Where the row of an operand is fixed: for the whole program, per segment, or per step of the loop.
SCOPES = ("program", "segment", "row")


class Body:
    """Collects the lines of one kernel: before the loop over rows, in it, and after it.

    ``scopes`` has for each operand one of `SCOPES`; ``masked`` says whether the last block of channels is incomplete,
    ``added`` which results are added by atomics. Results in ``workspaces`` have a workspace for partial sums of split
    nodes (two masked stores: AMD's compiler cannot select one of two pointers). ``reads`` is the number of table rows
    that are interpolated to a row of weights.
    """

    def __init__(
        self,
        program: Program,
        task: Task,
        scopes: dict[str, str],
        masked: bool,
        added: frozenset[str],
        workspaces: frozenset[str],
        reads: int = 0,
    ) -> None:
        self.workspaces, self.reads, self.weights = workspaces, reads, program.widths[2]
        self.layout, self.task, self.scopes, self.masked, self.added = program.layout, task, scopes, masked, added
        self.again: frozenset[str] = frozenset()  # addresses of sums that an earlier kernel has started
        self.before: list[str] = []
        self.inside: list[str] = []
        self.after: list[str] = []
        self._read: dict[str, str] = {}
        self._sums: dict[str, tuple[str, str, bool]] = {}  # address -> (operand, name, whether it has channels)
        self._started: set[str] = set()
        self._numbers = count(1)  # of sums

    def column(self, path: Path, operand: str, component: int, step: int) -> str:
        """The column of one component as text, for the channels ``u`` of this block."""
        if operand == "w":
            start, per_component, per_channel = path.weight or 0, 1, 1
        else:
            slot = getattr(path, operand)
            start = slot.start
            per_component, per_channel = (1, slot.dim) if self.layout == "mul_ir" else (slot.mul, 1)
        start += component * per_component
        return f"{start} + u * {step * per_channel}" if step else f"{start}"

    def rows_of_table(self, path: Path, step: int) -> list[str]:
        """Columns of a path's weights in each of the table rows of an interval, as text."""
        channels = f" + u * {step}" if step else ""
        return [f"{(path.weight or 0) + k * self.weights}{channels}" for k in range(self.reads)]

    def read(self, pointer: str, operand: str, column: str, varies: bool) -> str:
        """The variable of an element of an operand, loaded at its first use."""
        address = f"{pointer}_n + {column}"
        if address not in self._read:
            name = self._read[address] = f"{pointer}_{len(self._read)}"
            mask = ", mask=inside, other=0.0" if varies and self.masked else ""
            lines = self.inside if self.scopes[operand] == "row" else self.before
            lines.append(f"{name} = tl.load({address}{mask}).to(ACC)")
        return self._read[address]

    def add(self, operand: str, column: str, varies: bool, text: str, per_channel: bool) -> None:
        """Add to an element of a result; a value that is not ``per_channel`` is added once for all channels."""
        address = f"{RESULTS[operand]}_n + {column}"
        name = self._sums.setdefault(address, (operand, f"{RESULTS[operand]}_sum{next(self._numbers)}", varies))[1]
        if not text:
            return
        name = name if per_channel else f"{name}_whole"
        if self.scopes[operand] == "row":
            self.inside.append(f"{name} = {f'{name} + ' if name in self._started else ''}{text}")
        else:
            if name not in self._started:
                self.before.append(f"{name} = tl.zeros({'(BLOCK,)' if per_channel else '()'}, ACC)")
            self.inside.append(f"{name} = {name} + {text}")
        self._started.add(name)

    def store(self, later: frozenset[str] = frozenset()) -> None:
        """Store the sums of all results except addresses in ``later``, to which later paths add."""
        for address, (operand, name, varies) in list(self._sums.items()):
            if address in later:
                continue
            del self._sums[address]
            lines = self.inside if self.scopes[operand] == "row" else self.after
            parts = [name if varies else f"tl.sum({name}, 0)"] if name in self._started else []
            parts += [f"{name}_whole"] * (f"{name}_whole" in self._started)
            value = " + ".join(parts) or ("tl.zeros((BLOCK,), ACC)" if varies else "0.0")
            mask = ", mask=inside" if varies and self.masked else ""
            if self.scopes[operand] == "program":  # launches after the first add to its sums
                again = f"again{'_u' if varies else ''}{' & inside' if mask else ''}"
                value = f"tl.load({address}, mask={again}, other=0.0) + {value}"
            if address in self.again:
                value = f"tl.load({address}{mask}{', other=0.0' if mask else ''}) + {value}"
            if operand in self.added:
                lines.append(f'tl.atomic_add({address}, {value}{mask}, sem="relaxed")')
            elif (pointer := RESULTS[operand]) in self.workspaces:
                also = f"{'_u' if varies else ''}{' & inside' if mask else ''}"
                lines.append(f"tl.store({address}, {value}, mask=whole{also})")
                lines.append(f"tl.store({pointer}_room{address.removeprefix(pointer)}, {value}, mask=piece{also})")
            else:
                lines.append(f"tl.store({address}, {value}{mask})")


class TritonWriter(Writer):
    """Writes one path of a kernel into its body; ``number`` is for the names of its variables."""

    weighs_first = True

    def __init__(self, body: Body, number: int, path: Path) -> None:
        self.body, self.number, self.path, self.task = body, number, path, body.task
        self.step = steps_of(path)

    def literal(self, value: float) -> str:
        """A coefficient as text; it takes the type of its other factor."""
        return repr(value)

    def load(self, operand: str, component: int) -> Dual:
        """A component, loaded once per kernel in the scope of its row."""
        step = self.step[operand]
        if operand == "w" and self.body.reads:
            return self._combined(bool(step))
        column = self.body.column(self.path, operand, component, step)
        value = self.body.read(pointer_of(operand), operand, column, bool(step))
        if operand not in self.task.tangents:
            return Dual(value)
        return Dual(value, self.body.read(f"d{operand}", operand, column, bool(step)))

    def _combined(self, varies: bool) -> Dual:
        """The weights, interpolated from the table rows of the edge's interval."""
        if {"x", "y", "z"}.isdisjoint(self.task.results):
            return Dual("w", "dw")
        rows = self._rows(varies)
        value = " + ".join(f"{c} * {t}" for c, t in zip(self._coefficients("c"), rows, strict=True))
        tangent = ""
        if "c" in self.task.tangents:
            tangent = " + ".join(f"{c} * {t}" for c, t in zip(self._coefficients("dc"), rows, strict=True))
        return self.name("w", Dual(value, tangent), varies)

    def _rows(self, varies: bool) -> list[str]:
        return [self.body.read("t", "t", row, varies) for row in self.body.rows_of_table(self.path, self.step["w"])]

    def _coefficients(self, pointer: str) -> list[str]:
        return [self.body.read(pointer, "c", str(k), False) for k in range(self.body.reads)]

    def _add_weights(self, value: Dual) -> None:
        """Add the gradient of the weights to the gradients of the coefficients and of the table's rows."""
        varies, per_channel = bool(self.step["w"]), self.path.inner.extent > 1
        gradient = self.name("gw", value, per_channel)
        computed = self.task.part(gradient)
        if "c" in self.task.results:
            for k, row in enumerate(self._rows(varies)):
                self.body.add("c", str(k), False, f"{computed} * {row}" if computed else "", per_channel)
        if "t" in self.task.results:
            factors = [(computed, self._coefficients("c"))]
            if self.task.order == 2 and "c" in self.task.tangents:
                factors.append((gradient.value, self._coefficients("dc")))
            for k, column in enumerate(self.body.rows_of_table(self.path, self.step["w"])):
                text = " + ".join(f"{c[k]} * {part}" for part, c in factors if part)
                self.body.add("t", column, varies, text, per_channel)

    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        """Assign a value to a variable of this path."""
        label = f"{label}_{self.number}"
        if value.value:
            self.body.inside.append(f"{label} = {value.value}")
        if value.tangent:
            self.body.inside.append(f"d{label} = {value.tangent}")
        return Dual(label if value.value else "", f"d{label}" if value.tangent else "")

    def add(self, operand: str, component: int, value: Dual) -> None:
        """Add to a result; values are summed over the paths of the kernel before they are stored."""
        if operand == "w" and self.body.reads:
            self._add_weights(value)
            return
        step = self.step[operand]
        column = self.body.column(self.path, operand, component, step)
        self.body.add(operand, column, bool(step), self.task.part(value), self.path.inner.extent > 1)

    def total(self, label: str, value: Dual) -> Dual:
        """The sum of a value over the channels of the block."""
        if self.path.inner.extent > 1:
            value = Dual(*(f"tl.sum({text}, 0)" if text else "" for text in value))
        return self.name(label, value, False)

    def add_total(self, operand: str, component: int, value: Dual) -> None:
        """Add a value that is summed over channels to a result."""
        column = self.body.column(self.path, operand, component, 0)
        self.body.add(operand, column, False, self.task.part(value), False)

    def addresses(self, only: str = "") -> frozenset[str]:
        """Addresses of the result elements that the path adds to; of the operand ``only`` if it is named."""
        path, out = self.path, set()
        for operand in only or self.task.results:
            if operand in "tc":
                columns = self.body.rows_of_table(path, self.step["w"])
                columns = columns if operand == "t" else [str(k) for k in range(len(columns))]
                out |= {f"{RESULTS[operand]}_n + {column}" for column in columns if path.weight is not None}
                continue
            count = 1 if operand == "w" else getattr(path, operand).dim
            for component in range(count if operand != "w" or path.weight is not None else 0):
                out.add(f"{RESULTS[operand]}_n + {self.body.column(path, operand, component, self.step[operand])}")
        return frozenset(out)
