"""Parameters as one flat vector in which blocks of matrices of equal size lie together, with the state of SOAP."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from ..core.errors import ConfigError, DataError
from ..core.torch_internals import foreach_add_, foreach_mul_


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
    """Starts and lengths of parts of at most ``most``: equal ones of at least half of it if there are such."""
    equal = next((size for size in range(min(length, most), most // 2 - 1, -1) if length % size == 0), None)
    count = length // equal if equal else -(-length // most)
    edges = [part * length // count for part in range(count + 1)]
    return [(start, stop - start) for start, stop in pairwise(edges)]


def blocks_of(shapes: Sequence[tuple[int, ...]], most: int) -> list[Block]:
    """Blocks of at most ``most`` (4 or more) rows and columns of the matrices; matrices of one row or column have none.

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
    return blocks


def _even(blocks: Sequence[Block]) -> list[list[Block]]:
    """Successive blocks in runs of equal distance."""
    runs: list[list[Block]] = []
    for block in blocks:
        run = runs[-1] if runs else []
        even = len(run) == 1 or (run and block.start - run[-1].start == run[1].start - run[0].start)
        if even and block.stride == run[0].stride:
            run.append(block)
        else:
            runs.append([block])
    return runs


def _outside(length: int, blocks: Sequence[Block]) -> list[tuple[int, int]]:
    """Starts and ends of the numbers of a parameter that are in no block."""
    free = torch.zeros(length + 2, dtype=torch.int8)
    free[1:-1] = 1
    for block in blocks:
        free[1 + block.indices()] = 0
    edges = torch.diff(free).nonzero()[:, 0]
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


class Batch(NamedTuple):
    """Blocks of one size ``(count, rows, columns)``: their part of a flat vector, and their Gram matrices of two sides.

    ``grams`` has numbers of rows of Gram matrices, and which of these matrices are of the blocks.
    """

    part: slice
    shape: tuple[int, int, int]
    grams: tuple[tuple[int, slice], tuple[int, slice]]

    def of(self, flat: Tensor) -> Tensor:
        """The blocks ``[count, rows, columns]`` in a flat vector."""
        _, rows, columns = self.shape
        return flat.as_strided(self.shape, (rows * columns, columns, 1), self.part.start)

    def sides(self, grams: Mapping[int, Tensor]) -> tuple[Tensor, ...]:
        """The blocks' matrices of rows, and of columns, among matrices by their number of rows."""
        return tuple(grams[side][those] for side, those in self.grams)


class Segment(NamedTuple):
    """A part of a flat vector: evenly spaced blocks of one size of a parameter, or successive other numbers of it."""

    parameter: int
    start: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    part: slice
    whole: bool  # all numbers of the parameter, in their order

    def of(self, tensor: Tensor) -> Tensor:
        """The numbers in a tensor of the parameter's shape, which is contiguous unless all its numbers are meant."""
        return (
            tensor if self.whole else tensor.as_strided(self.shape, self.stride, tensor.storage_offset() + self.start)
        )


class Stack:
    """Parameters of a group, of one device and with equally many steps, their state, and the update of SOAP.

    The flat vectors hold the numbers of all parameters, blocks of equal size together, then vectors. Gram
    matrices and eigenvectors of equal size are one tensor, whether they are of rows or of columns.
    """

    def __init__(
        self, parameters: Sequence[Tensor], blocks: Sequence[Sequence[Block]], states: Sequence[Mapping[str, Any]]
    ) -> None:
        self.parameters = list(parameters)
        self.steps = int(states[0]["step"]) if states[0] else 0
        device = parameters[0].device
        like: dict[str, Any] = {"dtype": state_dtype(parameters[0]), "device": device}
        #: Of Adam, as tensors: steps of blocks, which leave out the first, and of all other numbers.
        counts = (max(0, self.steps - 1), self.steps)
        self.counts = [torch.tensor(count, dtype=torch.float32, device=device) for count in counts]
        self.segments: list[Segment] = []
        self.batches: list[Batch] = []
        number_of: dict[int, int] = {}  # by number of rows: Gram matrices
        #: by parameter and block: (rows, which of the Gram matrices of rows), and of columns
        self.grams_of: list[list[tuple[tuple[int, int], ...]]] = [[()] * len(those) for those in blocks]
        every = [(block, number, i) for number, those in enumerate(blocks) for i, block in enumerate(those)]
        for rows, columns in sorted({block.size for block, _, _ in every}):
            same = [row for row in every if row[0].size == (rows, columns)]
            sides = []
            for side in (rows, columns):
                sides.append((side, slice(number_of.get(side, 0), number_of.get(side, 0) + len(same))))
                number_of[side] = sides[-1][1].stop
            for position, (_, number, i) in enumerate(same):
                self.grams_of[number][i] = tuple((side, those.start + position) for side, those in sides)
            start = self._length()
            for number in dict.fromkeys(number for _, number, _ in same):
                for run in _even([block for block, owner, _ in same if owner == number]):
                    step = run[1].start - run[0].start if len(run) > 1 else rows * columns
                    shape, stride = (len(run), rows, columns), (step, run[0].stride, 1)
                    whole = stride == (rows * columns, columns, 1)
                    self._add(number, run[0].start, *(((math.prod(shape),), (1,)) if whole else (shape, stride)))
            shape = (len(same), rows, columns)
            self.batches.append(Batch(slice(start, self._length()), shape, (sides[0], sides[1])))
        self.in_blocks = self._length()
        self.split = {segment.parameter for segment in self.segments if not segment.whole}
        for number, (parameter, those) in enumerate(zip(parameters, blocks, strict=True)):
            for first, last in _outside(parameter.numel(), those):
                self._add(number, first, (last - first,), (1,))
        self.mean, self.square, self.move = (torch.zeros(self._length(), **like) for _ in range(3))
        self.moves = [
            self.move[segment.part].view(parameters[segment.parameter].shape if segment.whole else segment.shape)
            for segment in self.segments
        ]
        self.gram, self.basis = ({n: torch.zeros(k, n, n, **like) for n, k in number_of.items()} for _ in range(2))
        self.grams = [batch.sides(self.gram) for batch in self.batches]
        bases = [batch.sides(self.basis) for batch in self.batches]
        #: Of each batch: eigenvectors in columns, for the products into their basis and back.
        self.turns = [((left.mT, right), (left, right.mT)) for left, right in bases]
        if self.steps:
            self._take(states)

    def _length(self) -> int:
        """Numbers in the segments so far."""
        return self.segments[-1].part.stop if self.segments else 0

    def _add(self, parameter: int, start: int, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        """Add a segment to the flat vector."""
        part = slice(self._length(), self._length() + math.prod(shape))
        whole = shape == (self.parameters[parameter].numel(),)
        self.segments.append(Segment(parameter, start, shape, stride, part, whole))

    def _take(self, states: Sequence[Mapping[str, Any]]) -> None:
        """Take the state of every parameter."""
        for name, flat in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
            flat.copy_(self._joined([state[name] for state in states]))
        for state, grams in zip(states, self.grams_of, strict=True):
            listed = [gram for pair in grams for gram in pair]
            for name, those in (("gram", self.gram), ("basis", self.basis)):
                parts = state[name].split([side * side for side, _ in listed]) if listed else ()
                for (side, index), part in zip(listed, parts, strict=True):
                    those[side][index] = part.view(side, side)

    def states(self) -> dict[Tensor, dict[str, Tensor]]:
        """Copy the state of every parameter."""
        states: dict[Tensor, dict[str, Tensor]] = {}
        for parameter in self.parameters:
            moments = {name: self.mean.new_empty(parameter.shape) for name in ("exp_avg", "exp_avg_sq")}
            states[parameter] = {"step": self.counts[1].clone()} | moments
        for segment in self.segments:
            state = states[self.parameters[segment.parameter]]
            for name, flat in (("exp_avg", self.mean), ("exp_avg_sq", self.square)):
                (part := segment.of(state[name])).copy_(flat[segment.part].view(part.shape))
        for parameter, grams in zip(self.parameters, self.grams_of, strict=True):
            state = states[parameter]
            listed = [gram for pair in grams for gram in pair]
            if listed:
                for name, those in (("gram", self.gram), ("basis", self.basis)):
                    state[name] = torch.cat([those[side][index].flatten() for side, index in listed])
        return states

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """One tensor for each parameter as a flat vector."""
        return torch.cat([segment.of(tensors[segment.parameter].contiguous()).flatten() for segment in self.segments])

    def gradient(self) -> Tensor:
        """The gradients of all numbers as a flat vector, and a check of parameters."""
        if not all(self.parameters[number].is_contiguous() for number in self.split):
            raise ConfigError(
                "parameters that are split into blocks must be contiguous, as they are updated in place, got a "
                "transposed one. Copy it: parameter.data = parameter.data.contiguous()"
            )
        if any(p.grad is not None and p.grad.is_sparse for p in self.parameters):
            raise DataError("gradients must be dense, got a sparse one. Build the embedding with sparse=False.")
        return self._joined([p.grad for p in self.parameters]).to(self.mean.dtype)  # type: ignore[misc]

    def update(self, gradient: Tensor, passes: float | Tensor, options: Mapping[str, Any], recording: bool) -> None:
        """Take a step if ``passes`` is 1; if it is 0, parameters and averages do not change.

        While a step is ``recording``, eigenvectors are renewed by others.
        """
        rate = options["lr"] * passes
        weight = (1 - options["gram_beta"] ** options["gram_every"]) * passes
        self.steps += 1
        if self.steps == 1:
            self._measure(gradient, weight)
            for side, gram in self.gram.items():
                self.basis[side].copy_(first_basis(gram))
        rotated = self._rotated(gradient, torch.empty_like(gradient), into=True)
        move = torch.zeros_like(self.move)
        begin = int(self.steps == 1)  # the first step of blocks only measures
        sizes = [self.in_blocks, len(move) - self.in_blocks]
        moves, gradients, means, squares = (
            [*flat.split(sizes)][begin:] for flat in (move, rotated, self.mean, self.square)
        )
        skipped = (1 - passes).to(torch.float32) if isinstance(passes, Tensor) else None
        adamw(
            *(moves, gradients, means, squares, [], self.counts[begin:]),
            fused=True,
            found_inf=skipped,
            amsgrad=False,
            beta1=options["betas"][0],
            beta2=options["betas"][1],
            lr=1.0,  # multiplied below, where it may be a tensor of any dtype
            weight_decay=0.0,
            eps=options["eps"],
            maximize=False,
        )
        if skipped is not None:
            foreach_add_(self.counts[begin:], [skipped] * len(moves))  # a skipped step is counted, as it is on the host
        self._rotated(move.mul_(rate), self.move, into=False)
        done = self.counts[1] - 1 if options["capturable"] else self.steps - 1
        measured = done % options["gram_every"] == 0
        if options["capturable"]:  # the same operators in every step
            self._measure(gradient, weight * measured * int(self.steps > 1))
        elif measured and self.steps > 1:
            self._measure(gradient, weight)
        if not recording and self.steps > 1 and (self.steps - 1) % options["precondition_every"] == 0:
            self.renew()
        if options["weight_decay"]:
            foreach_mul_(self.parameters, 1 - rate * options["weight_decay"])
        foreach_add_([segment.of(self.parameters[segment.parameter]) for segment in self.segments], self.moves)

    def _measure(self, gradient: Tensor, weight: float | Tensor) -> None:
        """Move the averages of Gram matrices towards the Gram matrices of a gradient."""
        for gram in self.gram.values():
            gram.mul_(1 - weight)
        weighted = gradient * weight
        for batch, (left, right) in zip(self.batches, self.grams, strict=True):
            blocks, other = batch.of(gradient), batch.of(weighted)
            left.baddbmm_(other, blocks.mT)
            right.baddbmm_(other.mT, blocks)

    def _rotated(self, flat: Tensor, out: Tensor, into: bool) -> Tensor:
        """Write a flat vector with its blocks rotated into the eigenbases, or back, to ``out``."""
        out[self.in_blocks :] = flat[self.in_blocks :]
        for batch, turns in zip(self.batches, self.turns, strict=True):
            left, right = turns[0 if into else 1]
            torch.bmm(torch.bmm(left, batch.of(flat)), right, out=batch.of(out))
        return out

    def renew(self) -> None:
        """One step of orthogonal iteration for all eigenvectors, the largest eigenvalues first; moments follow."""
        mean = self._rotated(self.mean, torch.empty_like(self.mean), into=False)
        orders: dict[int, Tensor] = {}
        for side, gram in self.gram.items():
            basis, orders[side] = next_basis(gram, self.basis[side])
            self.basis[side].copy_(basis)
        for batch in self.batches:
            squares, (rows, columns) = batch.of(self.square), batch.sides(orders)
            rows, columns = rows[:, :, None].expand_as(squares), columns[:, None].expand_as(squares)
            squares.copy_(squares.gather(1, rows).gather(2, columns))
        self._rotated(mean, self.mean, into=True)


#: Fraction of the mean eigenvalue below which directions are not told apart: rounding would choose among them, and the
#: same training on rotated structures would differ.
ALIKE = {torch.float32: 1e-4, torch.float64: 1e-6}


def first_basis(gram: Tensor) -> Tensor:
    """Eigenvectors of Gram matrices ``[..., n, n]`` in columns, the largest eigenvalues first.

    Eigenvectors of eigenvalue 0 are not unique: a QR decomposition makes them, so that they do not depend on rounding.
    """
    values, vectors = torch.linalg.eigh(gram)
    unique = values > ALIKE[gram.dtype] * values.mean(-1, keepdim=True)
    return _orthonormal((vectors * unique[..., None, :]).flip(-1))


def next_basis(gram: Tensor, basis: Tensor) -> tuple[Tensor, Tensor]:
    """One step of orthogonal iteration from approximate eigenvectors, and how they were sorted before it.

    A shift of all eigenvalues, which changes no eigenvector, keeps directions of eigenvalue 0 as they are.
    """
    shifted = gram.clone()
    diagonal = shifted.diagonal(dim1=-2, dim2=-1)
    diagonal += ALIKE[gram.dtype] * diagonal.mean(-1, keepdim=True)  # of all eigenvalues
    product = shifted @ basis
    order = (basis * product).sum(-2).argsort(dim=-1, descending=True, stable=True)
    return _orthonormal(product.gather(-1, order[..., None, :].expand_as(product))), order


def _orthonormal(columns: Tensor) -> Tensor:
    """The columns made orthonormal one after the other, by one batched QR decomposition whose R is not computed."""
    return torch.linalg.householder_product(*torch.geqrf(columns))


def state_dtype(parameter: Tensor) -> torch.dtype:
    """Dtype of the state: float64 for weights in float64, else float32."""
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32
