"""Features taken apart, put together and in another order, beside e3nn's or the plainest torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from e3nn import nn as theirs
from e3nn import o3
from torch import Tensor

from ... import nn
from ...algebra import as_irreps, representation_matrix
from .pair import Pair, features, plain, second_features


def _last(irreps: str) -> tuple[Any, ...]:
    """Arguments of a layer that takes out the last group."""
    whole = as_irreps(irreps)
    return whole, [whole[-1:]], [(len(whole) - 1,)]


def _ends(irreps: str) -> tuple[Any, ...]:
    """The irreps, and the irreps of the last group."""
    return as_irreps(irreps), as_irreps(irreps)[-1].ir


def _parts(irreps: str) -> list[str]:
    """Each group alone."""
    return [str(group) for group in as_irreps(irreps)]


def _split(irreps: str) -> Callable[[Tensor], tuple[Tensor, ...]]:
    widths = [group.dim for group in as_irreps(irreps)]
    return lambda x: x.split(widths, 1)


def _turned(irreps: str) -> o3.Irreps:
    """The groups in the opposite order."""
    return o3.Irreps(list(reversed(as_irreps(irreps))))


def _plain_sort(irreps: str) -> Callable[[Tensor], Tensor]:
    widths = [group.dim for group in _turned(irreps)]
    return lambda x: torch.cat(x.split(widths, 1)[::-1], 1)


class PlainBasis(torch.nn.Module):
    """The matrix of each irrep on the components of its copies, in the plainest torch."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        self.irreps = as_irreps(irreps)
        axes = torch.tensor([[0.0, 1, 0], [0, 0, 1], [1, 0, 0]], dtype=torch.float64)
        for number, (_, ir) in enumerate(self.irreps):
            self.register_buffer(f"matrix{number}", representation_matrix(o3.Irreps([(1, ir)]), axes).T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]`` to the same."""
        groups = x.split([group.dim for group in self.irreps], 1)
        found = [
            group if ir.l == 0 else (group.reshape(-1, ir.dim) @ self.get_buffer(f"matrix{n}")).view(len(x), -1)
            for n, (group, (_, ir)) in enumerate(zip(groups, self.irreps, strict=True))
        ]
        return torch.cat(found, 1)


class Halves(torch.nn.Module):
    """Maps of the first group and of the others, by e3nn."""

    def __init__(self, irreps: str) -> None:
        super().__init__()
        first, rest = as_irreps(irreps)[:1], as_irreps(irreps)[1:]
        self.width = first.dim
        self.parts = torch.nn.ModuleList([o3.Linear(first, first), o3.Linear(rest, rest)])

    def forward(self, x: Tensor) -> Tensor:
        """``[N, dim]`` to the same."""
        return torch.cat([self.parts[0](x[:, : self.width]), self.parts[1](x[:, self.width :])], 1)


def _separable(irreps: str) -> nn.Separable:
    first, rest = as_irreps(irreps)[:1], as_irreps(irreps)[1:]
    return nn.Separable(irreps, [str(first), str(rest)], [nn.Linear(first, first), nn.Linear(rest, rest)])


RESHAPING: dict[str, Pair] = {
    "Extract": Pair(lambda i: nn.Extract(*_last(i)), lambda i: theirs.Extract(*_last(i))),
    "ExtractIr": Pair(lambda i: nn.ExtractIr(*_ends(i)), lambda i: theirs.ExtractIr(*_ends(i))),
    "Identity": Pair(lambda i: nn.Identity(i, i), lambda i: theirs.Identity(i, i)),
    "Split": plain(lambda i: nn.Split(i, _parts(i)), _split),
    "Merge": plain(lambda i: nn.Merge([i, i]), lambda i: lambda x, y: torch.cat([x, y], 1), further=second_features),
    "Sort": plain(lambda i: nn.Sort(_turned(i)), _plain_sort, lambda i, rows: features(str(_turned(i)), rows)),
    "Separable": Pair(_separable, Halves),
    "ChangeOfBasis": plain(nn.ChangeOfBasis, PlainBasis),
}
