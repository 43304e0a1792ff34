"""Einsums that are planned once and run as multiplications and matrix products of two operands at a time.

On small operands this takes half the time of ``torch.einsum``, which parses its equation in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import opt_einsum
import torch
from torch import Tensor

#: Length of the axis 'n' (rows) for which the order of contractions is chosen.
ROWS = 1024
Pair = Callable[[Tensor, Tensor], Tensor]


class Contraction:
    """``torch.einsum`` of several tensors, two at a time in the order that takes the fewest operations.

    ``operations`` counts the operations for `ROWS` rows, ``equations`` lists the steps in their order, and ``sizes``
    has the length of each letter but 'n', which may have any.
    """

    def __init__(self, specs: Sequence[str], result: str, sizes: Mapping[str, int]) -> None:
        sizes, specs = {"n": ROWS, **sizes}, [*specs]
        shapes = [tuple(sizes[letter] for letter in spec) for spec in specs]
        whole = f"{','.join(specs)}->{result}"
        order, about = opt_einsum.contract_path(whole, *shapes, shapes=True, optimize="optimal")
        self.operations = float(about.opt_cost)
        self.equations: list[str] = []
        #: Indices of two operands in decreasing order, and the function that contracts them; its result is appended.
        self.steps: list[tuple[tuple[int, ...], Pair]] = []
        for step in order:
            indices = tuple(sorted(step, reverse=True))
            pair = [specs.pop(index) for index in indices]
            needed = set(result).union(*specs)
            left = "".join(c for c in sizes if c in needed and any(c in spec for spec in pair)) if specs else result
            self.equations.append(f"{','.join(pair)}->{left}")
            self.steps.append((indices, contraction(self.equations[-1], sizes)))
            specs.append(left)

    def __call__(self, *tensors: Tensor) -> Tensor:
        """The contraction of tensors."""
        operands = list(tensors)
        for indices, pair in self.steps:
            operands.append(pair(*(operands.pop(index) for index in indices)))
        return operands[0]


def contraction(spec: str, sizes: Mapping[str, int]) -> Pair:
    """A function of two tensors that is ``torch.einsum(spec, ...)``; axes are as in :class:`Contraction`."""
    operands, out = spec.split("->")
    first, second = operands.split(",")
    unshared = [c for c in out if (c in first) != (c in second)]
    behind = bool(unshared) and unshared[0] in second  # the matrix product would be transposed
    if ("n" in second and "n" not in first) or (behind and ("n" in second or "n" not in first)):
        swapped = contraction(f"{second},{first}->{out}", sizes)
        return lambda x, y: swapped(y, x)
    summed = "".join(c for c in first if c in second and c not in out)
    alone = (set(first) ^ set(second)) - set(out)
    if alone or not summed:
        return (lambda x, y: torch.einsum(spec, x, y)) if alone else _product(first, second, out)
    batch = "".join(c for c in first if c in second and c in out)
    left = "".join(c for c in first if c not in second)
    right = "".join(c for c in second if c not in first)
    if batch and "n" in left + right:  # a matrix for all rows in each of a batch of channels
        return lambda x, y: torch.einsum(spec, x, y)
    permute_x, permute_y = _permute(first, batch + left + summed), _permute(second, batch + summed + right)
    permute_z = _permute(batch + left + right, out)
    start, rows, inner = len(batch), len(left), len(summed)
    left_sizes, right_sizes = [sizes[c] for c in left], [sizes[c] for c in right]

    def run(x: Tensor, y: Tensor) -> Tensor:
        x, y = permute_x(x), permute_y(y)
        if inner > 1:
            x, y = x.flatten(-inner), y.flatten(start, start + inner - 1)
        y = y.flatten(start + 1) if len(right) > 1 else y if right else y.unsqueeze(-1)
        if start:
            x = x.flatten(start, start + rows - 1) if rows > 1 else x if rows else x.unsqueeze(start)
        if start == 1:  # `@` would fix sizes in traces of torch 2.11
            z = torch.bmm(x, y)
        elif start == 0 and rows > 1:
            z = torch.mm(x.flatten(0, -2), y).view(*x.shape[:-1], y.shape[1])
        else:
            z = x @ y
        if len(right) != 1:
            z = z.unflatten(-1, right_sizes) if right else z.squeeze(-1)
        if start and rows != 1:
            z = z.unflatten(start, left_sizes) if rows else z.squeeze(start)
        return permute_z(z)

    return run


def _permute(letters: str, target: str) -> Callable[[Tensor], Tensor]:
    """A function that permutes the axes ``letters`` of a tensor to the order ``target``."""
    order = [letters.index(c) for c in target]
    if order == list(range(len(order))):
        return lambda t: t
    return lambda t: t.permute(order)


def _product(first: str, second: str, out: str) -> Pair:
    """A function that multiplies two tensors elementwise, broadcast to the axes ``out`` of the result."""

    def spread(letters: str) -> Callable[[Tensor], Tensor]:
        permute = _permute(letters, "".join(c for c in out if c in letters))
        missing = [axis for axis, c in enumerate(out) if c not in letters]
        # broadcasting adds leading axes
        leading = next((axis for axis, c in enumerate(out) if c in letters), len(out))
        added = [axis - leading for axis in missing if axis > leading]

        def run(t: Tensor) -> Tensor:
            t = permute(t)
            for axis in added:
                t = t.unsqueeze(axis)
            return t

        return run

    spread_x, spread_y = spread(first), spread(second)
    return lambda x, y: spread_x(x) * spread_y(y)
