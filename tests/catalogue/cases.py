"""Entries of the list of layers: how to make it, what it is called with, and how that turns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from eqlayers.irreps.algebra import as_irreps, representation_matrix
from eqlayers.irreps.layout import to_ir_mul, to_mul_ir
from tests.each import seeded

#: How an operand turns: its irreps, or a function of it and of an orthogonal matrix [3, 3].
Turn = str | Callable[[Tensor, Tensor], Tensor]
#: Rows of a case that has no say of its own.
ROWS = 5
#: Layouts of a layer that has features in 'mul_ir' alone.
ONE = ("mul_ir",)


@dataclass(frozen=True)
class Case:
    """A layer of the list.

    Attributes:
        name: Of the class, and after a comma what is special.
        make: From the layout to a layer of float32 with random weights; one whose operands have no layout ignores it.
        inputs: From a number of rows (of nodes for graphs) and a generator to the arguments of a call, by name: float64
            in 'mul_ir', indices int64.
        acts: How arguments turn; those that are left out stay as they are.
        out: How each result turns.
        rows: Argument -> whose rows it has: 'node', 'edge', 'index' (``[2, E]`` numbers of nodes) or 'one'; those that
            are left out, and the results unless ``out_rows`` says so, have a row for each of the batch.
        out_rows: Whose rows the results have: 'row', 'node', 'edge' or 'one' for all.
        layouts: That the layer has.
        wanted: Arguments with gradients; None for all of floating-point numbers.
        e3nn: Makes e3nn's layer of the same numbers, called with the same arguments; its state dict loads here.
        order: Highest derivative that is compared with finite differences.
        family: Heading of the table in the documentation.
        lacks: Property -> why the layer has it not.
        slow: Properties whose test takes long, and whose row has a quicker relative; `make test-all` has them.
    """

    name: str
    make: Callable[[str], torch.nn.Module]
    inputs: Callable[[int, torch.Generator], dict[str, Tensor]]
    acts: Mapping[str, Turn]
    out: tuple[Turn, ...]
    rows: Mapping[str, str] = field(default_factory=dict)
    out_rows: str = "row"
    layouts: tuple[str, ...] = ("mul_ir", "ir_mul")
    wanted: tuple[str, ...] | None = None
    e3nn: Callable[[], torch.nn.Module] | None = None
    order: int = 3
    family: str = ""
    lacks: Mapping[str, str] = field(default_factory=dict)
    slow: tuple[str, ...] = ()

    def layer(
        self,
        layout: str = "mul_ir",
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
        backend: str | None = "torch",
    ) -> torch.nn.Module:
        """With the same weights for the same seed; in the mode that ``make`` leaves it in.

        Backend 'torch' compiles nothing. None is the backend that users get.
        """
        seeded(seed)
        return on_backend(self.make(layout).to(dtype), backend)

    def arguments(self, rows: int = ROWS, seed: int = 0, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Arguments of a call in 'mul_ir'."""
        operands = self.inputs(rows, torch.Generator().manual_seed(seed))
        return {name: value.to(dtype) if value.is_floating_point() else value for name, value in operands.items()}

    def in_layout(self, arguments: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
        """Arguments of 'mul_ir' in another layout."""
        return {name: relaid(value, self.acts.get(name), layout) for name, value in arguments.items()}

    def gradients(self, arguments: Mapping[str, Tensor]) -> list[str]:
        """Names of the arguments with gradients."""
        return [
            name
            for name, value in arguments.items()
            if value.is_floating_point() and (self.wanted is None or name in self.wanted)
        ]


def on_backend(layer: torch.nn.Module, backend: str | None) -> torch.nn.Module:
    """The layer, and every layer inside it, on a backend."""
    for module in layer.modules():
        if hasattr(module, "backend"):
            module.backend = backend
    return layer


def relaid(value: Tensor, turn: Turn | None, layout: str, back: bool = False) -> Tensor:
    """An operand in another layout, or back in 'mul_ir'."""
    if layout == "mul_ir" or not isinstance(turn, str):
        return value
    return (to_mul_ir if back else to_ir_mul)(value, as_irreps(turn))


def turned(value: Tensor, turn: Turn | None, matrix: Tensor) -> Tensor:
    """An operand in 'mul_ir' after a rotation, or a rotation times the inversion."""
    if turn is None:
        return value
    if not isinstance(turn, str):
        return turn(value, matrix.to(value))
    return value @ representation_matrix(as_irreps(turn), matrix).to(value).T


def results(outputs: Any) -> tuple[Tensor, ...]:
    """The results of a layer, as a tuple."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def features(**irreps: str) -> Callable[[int, torch.Generator], dict[str, Tensor]]:
    """Normal numbers for arguments that have a row of such irreps for each of the batch."""

    def make(rows: int, generator: torch.Generator) -> dict[str, Tensor]:
        return {
            name: torch.randn(rows, as_irreps(text).dim, generator=generator, dtype=torch.float64)
            for name, text in irreps.items()
        }

    return make


def row(
    make: partial[torch.nn.Module],
    out: Turn | tuple[Turn, ...],
    e3nn: Callable[..., torch.nn.Module] | None = None,
    *,
    family: str,
    special: str = "",
    prepare: Callable[[torch.nn.Module], torch.nn.Module] = lambda layer: layer,
    inputs: Callable[[int, torch.Generator], dict[str, Tensor]] | None = None,
    layouts: tuple[str, ...] = ("mul_ir", "ir_mul"),
    rows: Mapping[str, str] | None = None,
    out_rows: str = "row",
    order: int = 3,
    lacks: Mapping[str, str] | None = None,
    slow: tuple[str, ...] = (),
    **acts: Turn,
) -> Case:
    """A layer of the list from its class and the arguments of its class, which are those of e3nn's class as well.

    Args:
        make: The class with its arguments, but for the layout; a layer of one layout has no such argument.
        out: How each result turns.
        e3nn: e3nn's class, called with the same arguments.
        family: See `Case`, as `layouts`, `rows`, `out_rows`, `order`, `lacks` and `slow`.
        special: What the name says after the comma.
        prepare: What is done to the layer, and to e3nn's, behind its constructor.
        inputs: See `Case`; None for a row of each of the irreps in `acts`.
        acts: How arguments turn, by name.
    """
    name = make.func.__name__  # type: ignore[attr-defined]
    return Case(
        f"{name}, {special}" if special else name,
        lambda layout: prepare(make(layout=layout) if len(layouts) > 1 else make()),
        inputs or features(**acts),  # type: ignore[arg-type]
        acts,
        out if isinstance(out, tuple) else (out,),
        rows=rows or {},
        out_rows=out_rows,
        layouts=layouts,
        e3nn=None if e3nn is None else lambda: prepare(e3nn(*make.args, **make.keywords)),
        order=order,
        family=family,
        lacks=lacks or {},
        slow=slow,
    )


def edges(nodes: int, generator: torch.Generator) -> Tensor:
    """``[2, E]``: every node has neighbours, some more than others; none without nodes, no edge of a node alone."""
    if nodes < 2:
        return torch.zeros(2, 0, dtype=torch.int64)
    dst = torch.arange(nodes).repeat_interleave(torch.arange(nodes) % 3 + 1)
    step = torch.randint(1, nodes, dst.shape, generator=generator)
    return torch.stack([(dst + step) % nodes, dst])
