"""The arithmetic of a path, written down as numbers, gives products, gradients and second derivatives."""

from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.arithmetic.product import PathLines, steps_of
from eqlayers_kernels.arithmetic.writer import Dual, Task, Writer
from eqlayers_kernels.forms.program import Path, Program
from tests.each import each

#: One axis: of x and y, of x, of y, and of neither; with one channel.
SPECS = (
    ("uuu", (6, 6, 0), (3, 5, 3)), ("uvu", (4, 1, 0), (3, 3, 5)), ("uvv", (1, 5, 0), (3, 3, 1)),
    ("uvw", (1, 1, 7), (3, 3, 3)), ("uvu", (1, 1, 0), (3, 5, 3)),
)  # fmt: skip
KINDS = [
    Task(0, ("z",)), Task(1, ("x", "y", "w")), Task(1, ("y",)), Task(2, ("x", "y", "w", "z"), ("x", "y", "w")),
    Task(2, ("z",), ("w",)), Task(2, ("w", "x"), ("y",)),
]  # fmt: skip


class Numbers(Writer):
    """The language of one row: texts are computed where they are written, for all channels at once."""

    def __init__(self, program: Program, path: Path, task: Task, row: dict[str, Any], results: dict[str, Any]) -> None:
        self.program, self.path, self.task, self.row, self.results = program, path, task, row, results
        self.step, self.known = steps_of(path), {}

    def _columns(self, operand: str, component: int) -> Any:
        channels = self.path.inner.offsets(operand)
        if operand == "w":
            return self.path.weight + channels
        return getattr(self.path, operand).columns(self.program.layout)[component][channels]

    def _value(self, text: str) -> Any:
        return eval(text, {}, self.known) if text else 0.0

    def literal(self, value: float) -> str:
        return repr(value)

    def load(self, operand: str, component: int) -> Dual:
        columns, texts = self._columns(operand, component), []
        for name in ("g" if operand == "z" else operand, f"d{operand}"):
            text = f"{name}{component}"
            value = self.row[name][columns]
            self.known[text] = value if self.step[operand] else value[0]
            texts.append(text)
        return Dual(texts[0], texts[1] if operand in self.task.tangents else "")

    def name(self, label: str, value: Dual, varies: bool) -> Dual:
        parts = [self._value(text) for text in value]
        assert varies or all(np.ndim(part) == 0 for part in parts), f"{label} differs from channel to channel"
        self.known |= {label: parts[0], f"d{label}": parts[1]}
        return Dual(label if value.value else "", f"d{label}" if value.tangent else "")

    def add(self, operand: str, component: int, value: Dual) -> None:
        columns = self._columns(operand, component)
        part = np.broadcast_to(self._value(self.task.part(value)), columns.shape)
        np.add.at(self.results[operand], columns, part)

    def total(self, label: str, value: Dual) -> Dual:
        extent = self.path.inner.extent
        sums = {
            f"{prefix}{label}": np.broadcast_to(self._value(text), extent).sum()
            for prefix, text in zip(("", "d"), value, strict=True)
        }
        self.known |= sums
        return Dual(label if value.value else "", f"d{label}" if value.tangent else "")

    def add_total(self, operand: str, component: int, value: Dual) -> None:
        assert self.step[operand] == 0, f"{operand} has channels of its own"
        self.results[operand][self._columns(operand, component)[0]] += self._value(self.task.part(value))


class FirstWeighed(Numbers):
    weighs_first = True


@pytest.mark.parametrize("language", [Numbers, FirstWeighed])
@each("weighted", [True, False])
def test_every_kind_is_that_of_the_definition(programs: Any, language: type[Numbers], weighted: bool) -> None:
    program = programs.random_program("mul_ir", weighted, SPECS)
    assert not any(axis.length > 1 for path in program.paths for axis in path.outer)
    arrays = programs.draw(program, "float64", 1)
    widths = dict(zip("xywz", program.widths, strict=True))
    for task in KINDS:
        wanted = programs.expected(program, task, dict(arrays))
        row = {name: array[0] for name, array in arrays.items()} | {"dz": np.zeros(widths["z"])}
        results = {name: np.zeros(widths[name]) for name in task.results}
        for path in program.paths:
            PathLines(path, task, language(program, path, task, row, results)).write()
        for name in task.results:
            value, size, _ = wanted[name]
            # a hundred roundings of the largest sum of magnitudes
            np.testing.assert_allclose(results[name], value[0], rtol=0, atol=1e-14 * max(1.0, size.max()))
