"""Runs products in plain torch, on any device; torch differentiates them to any order.

Backend ``torch`` contracts each path as einsums of two operands, in the order with the fewest operations. ``sparse``
runs the infos of the layer, two sparse products for each group of paths; ``reference`` runs them by terms in float64.
"""

from __future__ import annotations

from functools import cache
from string import ascii_letters

import numpy as np
import torch
from torch import Tensor

from eqlayers_kernels.forms.program import Path, Program, Slot

from ...sparse.program import cuts_of, infos_of, joined, lettered
from ..contraction import Contraction
from ..dtypes import ACCUMULATE
from ..forms.description import describe
from ..torch_internals import outside_of_autocast, traced_by_running
from .constants import Constants
from .registry import Backend
from .rows import taken

_CHANNELS = [letter for letter in ascii_letters if letter not in "ijknt"]


class WholeForm:
    """A program as einsums, path by path."""

    def __init__(self, program: Program) -> None:
        self.program, self.cuts = program, cuts_of(program)
        self.paths = [PathSum(path, program.layout) for path in program.paths]

    def __call__(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """Z ``[N, width]`` from x and y ``[N, width]``, and w ``[N, width]`` or shared ``[width]``."""
        blocks: dict[Slot, Tensor] = {}
        x_parts, y_parts, w_parts = (cut(t).parts for cut, t in zip(self.cuts, (x, y, w), strict=True))
        for one in self.paths:
            path = one.path
            weights = w if path.weight is None else w_parts[path.weight]
            block = one(x_parts[path.x.start], y_parts[path.y.start], weights)
            blocks[path.z] = blocks[path.z] + block if path.z in blocks else block
        return joined(self.program, blocks, (x, y, w))


class PathSum:
    """One path of a program as einsums, on its blocks of x and y and its weights."""

    def __init__(self, path: Path, layout: str) -> None:
        self.path, self.layout = path, layout
        self.axes, self.letters = lettered(path, _CHANNELS)
        self.sizes = {"i": path.x.dim, "j": path.y.dim, "k": path.z.dim}
        self.sizes |= {letter: axis.length for letter, axis in self.axes.items()}
        self._constants = Constants()
        self._contractions: dict[bool, Contraction] = {}  # by whether weights are shared

    def __call__(self, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        """The block of z, ``[N, components, channels]``, from columns of x, y and w."""
        blocks = (self.block("x", x), self.block("y", y))
        operands = [block.squeeze(1) for block in blocks] + [self._table(x)]
        if self.path.weight is not None:
            operands.append(self.weights(w))
        shared = w.ndim == 1
        if shared not in self._contractions:
            self._contractions[shared] = self._contraction(shared)
        z = self._contractions[shared](*operands)
        z = z if self.path.z.dim > 1 else z.unsqueeze(1)
        return z.flatten(2) if len(self.letters["z"]) > 1 else z if self.letters["z"] else z.unsqueeze(2)

    def _contraction(self, shared: bool) -> Contraction:
        i, j, k = (letter if self.sizes[letter] > 1 else "" for letter in "ijk")  # no axis of length 1: it costs time
        specs = [f"n{i}{self.letters['x']}", f"n{j}{self.letters['y']}", f"{i}{j}{k}"]
        if self.path.weight is not None:
            specs.append(("" if shared else "n") + self.letters["w"])
        return Contraction(specs, f"n{k}{self.letters['z']}", self.sizes)

    def block(self, operand: str, flat: Tensor) -> Tensor:
        """The block of x or y as ``[N, components, *axes]`` from its columns."""
        slot: Slot = getattr(self.path, operand)
        if self.layout == "ir_mul":
            block = flat.unflatten(1, (slot.dim, slot.mul))
        else:
            block = flat.unflatten(1, (slot.mul, slot.dim)).mT
        letters = self.letters[operand]
        if not letters:
            return block.select(2, 0)
        axes = [self.axes[letter] for letter in letters]
        if any(axis.pairs for axis in axes):
            pairs = torch.triu_indices(slot.mul, slot.mul, 1, device=flat.device)
            return taken(block, pairs["xy".index(operand)], 2)
        return block if len(axes) == 1 else block.unflatten(2, [axis.extent for axis in axes])

    def weights(self, w: Tensor) -> Tensor:
        """The weights of this path as ``[N, *axes]``, or ``[*axes]`` if shared."""
        letters = self.letters["w"]
        if len(letters) > 1:
            return w.unflatten(-1, [self.axes[letter].length for letter in letters])
        return w if letters else w.squeeze(-1)

    def _table(self, like: Tensor) -> Tensor:
        """The dense coefficients ``[i, j, k]`` of the path, without axes of length 1."""

        def make() -> Tensor:
            first, second, out, values = zip(*self.path.terms, strict=True)
            table = np.zeros((self.path.x.dim, self.path.y.dim, self.path.z.dim))
            np.add.at(table, (first, second, out), values)
            return torch.from_numpy(table.squeeze()).to(like.dtype)

        return self._constants(like.dtype, like.device, make)


def _program(key: str) -> Program:
    program = describe(key).form.program
    assert program is not None
    return program


@cache
def _whole(key: str) -> WholeForm:
    return WholeForm(_program(key))


@traced_by_running
def contract(key: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Z ``[N, width]`` of the product with this key, by einsums in the dtype of the sums."""
    dtype = ACCUMULATE[x.dtype]
    with outside_of_autocast(x.device.type):
        return _whole(key)(x.to(dtype), y.to(dtype), w.to(dtype)).to(x.dtype)


def define(key: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Z ``[N, width]`` of the product with this key, term by term in float64."""
    return infos_of(_program(key))(x, y, w, "reference")


def by_infos(key: str, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """Z ``[N, width]`` of the product with this key, by sparse products in the dtype of the sums."""
    return infos_of(_program(key))(x, y, w)


TORCH = Backend("torch", whole=contract)
SPARSE = Backend("sparse", whole=by_infos)
REFERENCE = Backend("reference", automatic=False, whole=define)
