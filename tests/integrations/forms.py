"""Layers with the structure of other packages' convolutions: gather, product and sum, each in its own words."""

from collections.abc import Callable
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from tests.integrations.conftest import IRREPS, PATHS

EDGES = 20


class Bent(nn.Module):
    """A function with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        return x.sin() * self.slope


class Layer(nn.Module):
    """A product with weights from a network, and what comes with every edge."""

    def __init__(self) -> None:
        super().__init__()
        self.tp = o3.TensorProduct(*IRREPS, instructions=PATHS, shared_weights=False, internal_weights=False)
        self.fc = nn.Linear(3, self.tp.weight_numel)

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        raise NotImplementedError


def message_gather(features: Tensor, index: Tensor, message: Tensor) -> Tensor:
    return features.new_zeros(len(features), message.shape[1]).scatter_reduce_(
        0, index.view(-1, 1).expand(message.size()), message, reduce="sum"
    )


class SevenNetForm(Layer):
    """A dict in and out, receivers first, the sum in a function of its own, division by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = _SevenNetInner(self.tp, self.fc)
        del self.tp, self.fc

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        result: Tensor = self.inner({"x": x, "edges": edges.flip(0), "attr": attr, "edge": edge})["x"]
        return result


class _SevenNetInner(nn.Module):
    def __init__(self, tp: nn.Module, fc: nn.Module) -> None:
        super().__init__()
        self.convolution, self.weight_nn = tp, fc

    def forward(self, data: dict[str, Tensor]) -> dict[str, Tensor]:
        weight, x = self.weight_nn(data["edge"]), data["x"]
        src, dst = data["edges"][1], data["edges"][0]
        message = self.convolution(x[src], data["attr"], weight)
        data["x"] = message_gather(x, dst, message).div(3.0)
        return data


def scatter_sum(src: Tensor, index: Tensor, dim: int, dim_size: int) -> Tensor:
    """The function of torch-scatter."""
    if index.dim() == 1:
        for _ in range(src.dim() - 1):
            index = index.unsqueeze(-1)
    size = list(src.size())
    size[dim] = dim_size
    return torch.zeros(size, dtype=src.dtype, device=src.device).scatter_add_(dim, index.expand(src.size()), src)


def scatter(src: Tensor, index: Tensor, dim: int, dim_size: int, reduce: str) -> Tensor:
    """The function of torch-scatter."""
    out = scatter_sum(src, index, dim, dim_size)
    if reduce == "mean":
        count = scatter_sum(torch.ones(index.size(), dtype=src.dtype, device=src.device), index, dim, out.size(dim))
        count[count < 1] = 1
        out.true_divide_(count.view(-1, 1).expand(out.size()))
    return out


class DiffDockForm(Layer):
    """Weights times a number for each edge, a mean of neighbours, a residual."""

    reduce = "mean"

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        src, dst = edges
        tp = self.tp(x[src], attr, self.fc(edge) * edge[:, :1])
        out = scatter(tp, dst, dim=0, dim_size=len(x), reduce=self.reduce)
        return out + nn.functional.pad(x, (0, out.shape[-1] - x.shape[-1]))


class SumForm(DiffDockForm):
    reduce = "sum"


class EquiformerForm(Layer):
    """Equiformer's first features: rows of one tensor, a linear map of the messages, a scaled sum."""

    def __init__(self) -> None:
        super().__init__()
        self.proj = o3.Linear(IRREPS[2], IRREPS[2])

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        message = self.proj(self.tp(x.index_select(0, edges[0]), attr, self.fc(edge)))
        return x.new_zeros(len(x), message.shape[1]).index_add(0, edges[1], message) / 2


class E3nnForm(Layer):
    """The form of e3nn's examples: an index that is expanded as the messages are."""

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        message = self.tp(x[edges[0]], attr, self.fc(edge))
        out = message.new_zeros(len(x), message.shape[1])
        return out.scatter_add_(0, edges[1].reshape(-1, 1).expand_as(message), message)


class WithStart(Layer):
    """A sum that begins with numbers."""

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        start = torch.cat([x, x], 1) + 1
        return start.index_add(0, edges[1], source=self.tp(x[edges[0]], attr, self.fc(edge)))


FUSED: dict[str, type[Layer]] = {
    kind.__name__: kind for kind in (SevenNetForm, DiffDockForm, SumForm, E3nnForm, WithStart)
}


def weighted(m: Tensor) -> Tensor:
    return (2 - m * 3) / 2


#: What is done with messages before they are added up: each asks for their numbers.
USES: dict[str, Callable[[Tensor], Any]] = {
    "arithmetic": weighted,
    "columns": lambda m: torch.cat([m[:, 8:], m[:, :8]], 1),
    "a method": lambda m: m.sin(),
    "a function": lambda m: torch.where(m > 0, m, -m),
    "from the left": lambda m: torch.ones(EDGES, EDGES, dtype=m.dtype) @ m,
    "parts": lambda m: torch.stack(m.unbind(1), 1),
    "a power": lambda m: m**2 + abs(-m),
    "a factor of the sum": lambda m: m,
    "receivers of each column": lambda m: m,
}


class Used(Layer):
    """Messages that are something else before they are summed, or that are summed in another way."""

    use = "arithmetic"

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Tensor:
        message = USES[self.use](self.tp(x[edges[0]], attr, self.fc(edge)))
        out = x.new_zeros(len(x), message.shape[1])
        if self.use == "receivers of each column":
            return out.scatter_add(0, (edges[1][:, None] + torch.arange(out.shape[1])) % len(out), message)
        return out.index_add(0, edges[1], message, alpha=2 if self.use == "a factor of the sum" else 1)


class RowsAside(Layer):
    """Gathered rows with other uses, messages that are returned, sums along the other axis, a largest message."""

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor, edge: Tensor) -> Any:
        rows = x[edges[0]]
        message = self.tp(rows, attr, self.fc(edge))
        turned = message.T.new_zeros(message.shape[1], len(x)).index_add(1, edges[1], message.T)
        index = edges[1].view(-1, 1).expand_as(message)
        largest = message.new_zeros(len(x), message.shape[1]).scatter_reduce(0, index, message, reduce="amax")
        first = message.new_zeros(len(x), message.shape[1]).index_add(0, edges[1], message, alpha=2)
        return [message, {"rows": rows, "turned": turned, "largest": largest, "first": first, "size": rows.size(1)}]
