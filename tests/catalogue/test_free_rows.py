"""Numbers of rows stay free when a layer is traced: an exported graph runs on any number of atoms and edges.

A size that Python reads as an integer, by ``len(tensor)`` or ``int(size)``, becomes a constant of the graph.
"""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from .cases import Case, results
from .test_layers import CASES, FIRST_OF_FAMILY

#: No width of a layer of the list is as large, nor is the number of edges of so many nodes: equal sizes are one symbol.
ROWS = 101


def row(case: Case) -> Any:
    """A trace takes a second: `make test` has one for each family."""
    marks = () if FIRST_OF_FAMILY[case.family] == case.name else pytest.mark.slow
    return pytest.param(case, id=case.name, marks=marks)


@pytest.mark.parametrize("case", [row(case) for case in CASES])
def test_rows_of_values_and_of_gradients(case: Case) -> None:
    layer = case.layer(dtype=torch.float32, backend=None)  # its operator is what graphs hold, and compiles nothing
    arguments = case.arguments(rows=ROWS, dtype=torch.float32)
    wanted = case.gradients(arguments)

    def gradients(*operands: Tensor) -> tuple[Tensor, ...]:
        call = dict(zip(arguments, operands, strict=True))
        call |= {name: call[name].detach().requires_grad_() for name in wanted}
        total = sum(value.float().square().sum() for value in results(layer(**call)) if value.requires_grad)
        return torch.autograd.grad(total, [call[name] for name in wanted], allow_unused=True) if wanted else total

    graph = make_fx(gradients, tracing_mode="symbolic", _allow_non_fake_inputs=True)(*arguments.values()).graph
    traced = [node.meta["val"] for node in graph.nodes if node.op == "placeholder"]
    for (name, value), symbolic in zip(arguments.items(), traced, strict=True):
        rows = -1 if case.rows.get(name) == "index" else 0
        if value.ndim and case.rows.get(name) != "one":
            assert isinstance(symbolic.shape[rows], torch.SymInt), f"{name} {list(value.shape)}: {symbolic.shape}"
            assert not symbolic.shape[rows].node.expr.is_number, f"{name} {list(value.shape)}: {symbolic.shape}"
