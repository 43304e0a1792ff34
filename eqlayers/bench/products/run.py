"""A case of a product: operands, implementations, check, and least work of each direction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from ...nn import TensorProduct
from ..cases import Verdict
from ..measure import Call
from ..results import OURS, Record
from ..roofline import bound_of, product_operations
from .check import check
from .implementation import Implementation, ours
from .operands import draw, into_form, prepare
from .peers import build_peer
from .suite import Case


class ProductSubject:
    """A case of a product, see :class:`eqlayers.bench.cases.Subject`."""

    def __init__(self, case: Case, device: torch.device, peers: Sequence[str], backend: str | None) -> None:
        self.case = case
        self.operands = draw(case.problem, case.operation, case.graph, getattr(torch, case.dtype), device)
        self.implementations: list[tuple[str, str, Callable[[], Implementation]]] = [
            *((OURS, layout, partial(ours, case, self.operands, layout, backend)) for layout in case.layouts),
            *((name, "", partial(build_peer, name, case, self.operands)) for name in peers),
        ]
        self._operations = product_operations(TensorProduct(**case.problem.arguments()).plan.form.program)

    def check(self, items: Sequence[Implementation], direction: str) -> list[Verdict]:
        """Compare implementations with the float64 reference, element by element."""
        return list(check(self.case.problem, self.operands, items, (direction,)).values())

    def ready(self, item: Implementation, direction: str) -> Callable[[], Call]:
        """Function that prepares the call of a direction, with operands in the implementation's layout."""
        return partial(prepare, item.fn, into_form(self.operands.values, item.form), direction)

    def work(self, direction: str) -> tuple[int, int]:
        """Bytes and operations of all edges."""
        return self.operands.moved_bytes(direction), self._operations[direction] * self.operands.edges

    def facts(self) -> Record:
        """Fields of problem and graph in the result."""
        case, operands = self.case, self.operands
        about = {"problem": case.problem.name, "operation": case.operation, "graph": case.graph.name}
        return about | {"nodes": operands.nodes, "edges": operands.edges, "layouts": list(case.layouts)}

    def bounds(self, row: Record, bandwidth: float) -> Record:
        """Bound of the time of this package's kernels on a GPU."""
        if row["implementation"] != OURS or self.operands.values["x"].device.type != "cuda":
            return {}
        about = {"problem": self.case.problem.name, "operation": self.case.operation, "dtype": self.case.dtype, **row}
        return {"bound_seconds": bound_of(about, bandwidth, self.operands.nodes, self.operands.edges)}
