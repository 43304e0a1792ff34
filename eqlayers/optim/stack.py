"""Parameters as one flat vector in which blocks of matrices of equal size lie together, with the state of SOAP."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Block(NamedTuple):
    """A block of a matrix in a flat parameter; ``stride`` is the number of columns of the whole matrix."""

    start: int
    rows: int
    columns: int
    stride: int

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.rows, self.columns

    def indices(self) -> Tensor:
        """``[rows * columns]`` int64: where the numbers are in the flat parameter."""
        return (self.start + torch.arange(self.rows)[:, None] * self.stride + torch.arange(self.columns)).flatten()


def _parts(length: int, most: int) -> list[tuple[int, int]]:
    """Starts and lengths of parts of at most ``most``: equal ones of at least a quarter of it if there are such."""
    equal = next((size for size in range(min(length, most), max(1, most // 4) - 1, -1) if length % size == 0), None)
    count = length // equal if equal else -(-length // most)
    edges = [part * length // count for part in range(count + 1)]
    return [(start, stop - start) for start, stop in pairwise(edges)]


def blocks_of(shapes: Sequence[tuple[int, ...]], most: int) -> list[Block]:
    """Blocks of at most ``most`` rows and columns of the matrices of a parameter; single rows and columns are none.

    Example:
        >>> [block.size for block in blocks_of([(8, 96), (5,), (7, 1)], 64)]
        [(8, 48), (8, 48)]
    """
    blocks, start = [], 0
    for shape in shapes:
        if len(shape) == 2 and min(shape) > 1:
            parts = [(*top, *left) for top in _parts(shape[0], most) for left in _parts(shape[1], most)]
            blocks += [Block(start + r * shape[1] + c, rows, cols, shape[1]) for r, rows, c, cols in parts]
        start += math.prod(shape)
    return [block for block in blocks if min(block.size) > 1]


class Batch(NamedTuple):
    """Blocks of one size: their part of a flat vector, and of the Gram matrices of rows and of columns."""

    part: slice
    shape: tuple[int, int, int]
    left: slice
    right: slice

    def of(self, flat: Tensor) -> Tensor:
        """The blocks ``[count, rows, columns]`` in a flat vector."""
        return flat[self.part].view(self.shape)


class Stack:
    """Parameters with equally many steps, their state, and the update of SOAP.

    The flat vectors hold the numbers of all parameters, blocks of equal size together, then vectors. Gram
    matrices and eigenvectors of equal size are one tensor, whether they are of rows or of columns.

    Args:
        parameters: Of one device.
        blocks: Of every parameter.
        states: Of every parameter; empty before its first step.
    """

    def __init__(
        self, parameters: Sequence[Tensor], blocks: Sequence[Sequence[Block]], states: Sequence[Mapping[str, Any]]
    ) -> None:
        self.parameters, self.sizes = list(parameters), [p.numel() for p in parameters]
        self.shapes = [p.shape for p in parameters]
        self.steps = int(states[0]["step"]) if states[0] else 0
        device = parameters[0].device
        like: dict[str, Any] = {"dtype": state_dtype(parameters[0]), "device": device}
        self.step = torch.tensor(float(self.steps), device=device, dtype=torch.float64)
        offsets = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        free = torch.ones(sum(self.sizes), dtype=torch.bool)
        order: list[Tensor] = []
        self.batches: list[Batch] = []
        counts: dict[int, int] = {}  # by number of rows: Gram matrices
        #: by parameter and block: (rows, which of the Gram matrices of rows), and of columns
        self.grams_of: list[list[tuple[tuple[int, int], ...]]] = [[()] * len(those) for those in blocks]
        start = 0
        every = [(block, number, i) for number, those in enumerate(blocks) for i, block in enumerate(those)]
        for rows, columns in sorted({block.size for block, _, _ in every}):
            same = [row for row in every if row[0].size == (rows, columns)]
            sides = []
            for side in (rows, columns):
                sides.append(slice(counts.get(side, 0), counts.get(side, 0) + len(same)))
                counts[side] = sides[-1].stop
            stop = start + len(same) * rows * columns
            self.batches.append(Batch(slice(start, stop), (len(same), rows, columns), *sides))
            start = stop
            for position, (block, number, i) in enumerate(same):
                order.append(offsets[number] + block.indices())
                free[order[-1]] = False
                self.grams_of[number][i] = (rows, sides[0].start + position), (columns, sides[1].start + position)
        self.in_blocks = start
        self.order = torch.cat([*order, free.nonzero()[:, 0]]).to(device)
        self.back = torch.empty_like(self.order)
        self.back[self.order] = torch.arange(len(free), device=device)
        self.mean, self.square = (torch.zeros(len(free), **like) for _ in range(2))
        self.gram, self.basis = ({n: torch.zeros(k, n, n, **like) for n, k in counts.items()} for _ in range(2))
        if self.steps:
            self._take(states)

    def _take(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take the state of every parameter."""
        for name, flat in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
            flat.copy_(torch.cat([state[name].reshape(-1) for state in states]).to(flat.device)[self.order])
        for state, grams in zip(states, self.grams_of, strict=True):
            listed = [gram for pair in grams for gram in pair]
            for name, those in (("gram", self.gram), ("basis", self.basis)):
                parts = state[name].split([side * side for side, _ in listed]) if listed else ()
                for (side, index), part in zip(listed, parts, strict=True):
                    those[side][index] = part.view(side, side)

    def states(self) -> dict[Tensor, dict[str, Tensor]]:
        """Copy the state of every parameter."""
        moments = {"exp_avg": self.mean, "exp_avg_sq": self.square}
        whole = {name: flat[self.back].split(self.sizes) for name, flat in moments.items()}
        states: dict[Tensor, dict[str, Tensor]] = {}
        for number, (parameter, grams) in enumerate(zip(self.parameters, self.grams_of, strict=True)):
            state = {name: parts[number].clone().view(self.shapes[number]) for name, parts in whole.items()}
            listed = [gram for pair in grams for gram in pair]
            if listed:
                for name, those in (("gram", self.gram), ("basis", self.basis)):
                    state[name] = torch.cat([those[side][index].flatten() for side, index in listed])
            states[parameter] = {"step": self.step.to(torch.float32).clone()} | state
        return states

    def gradient(self) -> Tensor:
        """The gradients of all numbers as a flat vector."""
        flat = torch.cat([p.grad.reshape(-1) for p in self.parameters])  # type: ignore[union-attr]
        return flat.to(self.mean.dtype).index_select(0, self.order)

    def update(self, gradient: Tensor, passes: float | Tensor, options: Mapping[str, Any]) -> list[Tensor]:
        """Take a step: the update of every parameter, before its learning rate.

        Args:
            gradient: Of :meth:`gradient`.
            passes: 1, or 0 if the state must stay as it is.
            options: Of the optimizer.
        """
        (first, second), number = options["betas"], self.in_blocks
        self.steps += 1
        self.step += passes
        if self.steps == 1:
            self._measure(gradient, 1 - options["gram_beta"])
            self.basis = {side: first_basis(gram) for side, gram in self.gram.items()}
            rotated = gradient.clone()
            rotated[:number] = 0
        else:
            rotated = self._rotated(gradient, into=True)
        self.mean.lerp_(rotated, (1 - first) * passes)
        self.square.lerp_(rotated.square_(), (1 - second) * passes)
        scaled = torch.empty_like(self.mean)
        for part, skipped in ((slice(0, number), 1), (slice(number, None), 0)):
            steps = (self.step - skipped).clamp(min=1) if options["capturable"] else max(1, self.steps - skipped)
            root = self.square[part].sqrt().div_((1 - second**steps) ** 0.5).add_(options["eps"])
            torch.div(self.mean[part], root, out=scaled[part]).div_(1 - first**steps)
        if self.steps == 1:
            scaled[:number] = 0
        else:
            scaled = self._rotated(scaled, into=False)
            self._measure(gradient, (1 - options["gram_beta"]) * passes)
            if (self.steps - 1) % options["precondition_every"] == 0:
                self._renew()
        if options["capturable"]:
            scaled = scaled * passes
        parts = scaled.index_select(0, self.back).split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def _measure(self, gradient: Tensor, weight: float | Tensor) -> None:
        """Move the averages of Gram matrices towards the Gram matrices of a gradient."""
        for batch in self.batches:
            blocks = batch.of(gradient)
            self.gram[batch.shape[1]][batch.left].lerp_(blocks @ blocks.mT, weight)
            self.gram[batch.shape[2]][batch.right].lerp_(blocks.mT @ blocks, weight)

    def _rotated(self, flat: Tensor, into: bool) -> Tensor:
        """A flat vector with its blocks rotated into the eigenbases, or back."""
        out = torch.empty_like(flat)
        out[self.in_blocks :] = flat[self.in_blocks :]
        for batch in self.batches:
            left, right = self.basis[batch.shape[1]][batch.left], self.basis[batch.shape[2]][batch.right]
            left, right = (left.mT, right) if into else (left, right.mT)
            torch.bmm(torch.bmm(left, batch.of(flat)), right, out=batch.of(out))
        return out

    def _renew(self) -> None:
        """One step of orthogonal iteration for all eigenvectors, the largest eigenvalues first; moments follow."""
        self.mean = self._rotated(self.mean, into=False)
        sorted_by: dict[int, Tensor] = {}
        for side, gram in self.gram.items():
            self.basis[side], sorted_by[side] = next_basis(gram, self.basis[side])
        for batch in self.batches:
            squares = batch.of(self.square)
            rows = sorted_by[batch.shape[1]][batch.left][:, :, None].expand_as(squares)
            columns = sorted_by[batch.shape[2]][batch.right][:, None].expand_as(squares)
            squares.copy_(squares.gather(1, rows).gather(2, columns))
        self.mean = self._rotated(self.mean, into=True)


#: Fraction of the mean eigenvalue below which directions are not told apart: rounding would choose among them, and the
#: same training on rotated structures would differ.
ALIKE = 1e-6


def first_basis(gram: Tensor) -> Tensor:
    """Eigenvectors of Gram matrices ``[..., n, n]`` in columns, the largest eigenvalues first.

    Eigenvectors of eigenvalue 0 are not unique: a QR decomposition makes them, so that they do not depend on rounding.
    """
    values, vectors = torch.linalg.eigh(gram)
    unique = values > ALIKE * values.mean(-1, keepdim=True)
    return _orthonormal((vectors * unique[..., None, :]).flip(-1))


def next_basis(gram: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One step of orthogonal iteration from approximate eigenvectors, and how they were sorted before it.

    A shift of all eigenvalues, which changes no eigenvector, keeps directions of eigenvalue 0 as they are.
    """
    product = gram @ basis
    values = (basis * product).sum(-2)
    order = values.argsort(dim=-1, descending=True, stable=True)
    shifted = product + ALIKE * values.mean(-1)[..., None, None] * basis
    return _orthonormal(shifted.gather(-1, order[..., None, :].expand_as(shifted))), order


def _orthonormal(columns: Tensor) -> Tensor:
    """The columns made orthonormal one after the other, by one batched QR decomposition."""
    return torch.linalg.qr(columns)[0].contiguous()  # products of a restored state must be the same bit for bit


def state_dtype(parameter: Tensor) -> torch.dtype:
    """Dtype of the state: float64 for weights in float64, else float32."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
