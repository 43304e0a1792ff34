"""The results of printed product kernels, in plain torch: values, gradients and derivatives of both, without autograd.

The operators stand below autograd, so torch differentiates nothing there. The form F(x, y, w, g) = sum(z g) is linear
in each operand: every result is F without one operand, with tangents in place of others (`Kind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import torch
from torch import Tensor

from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.forms.program import OPERANDS, Program
from eqlayers_kernels.triton.run.edges import TraversalTables

from ..dtypes import ACCUMULATE
from ..forms.request import Request
from .rows import gathered, summed
from .tables import ends_by_traversal
from .whole import PathSum

_COMPONENT = {"x": "i", "y": "j", "z": "k"}


def product_in_torch(
    request: Request, tensors: Mapping[str, Tensor], tables: Mapping[str, TraversalTables] | None
) -> dict[str, Tensor]:
    """The results of a request for a product, by operand.

    Tensors come by the kernels' pointers, ``[rows, width]`` each, ``[width]`` for one row of weights for all; the edges
    of a graph by traversal, None row by row.
    """
    form, kind, dtype = _Linear(request, tables), request.form.kind, ACCUMULATE[request.dtype]
    of_batch = {name: form.of_batch(name, tensor.to(dtype)) for name, tensor in tensors.items()}
    point = {name: of_batch[name] for name in kind.factors} | ({"z": of_batch["g"]} if "g" in of_batch else {})
    moves = [{name: of_batch[f"d{name}"]} for name in kind.tangents] if kind.order == 2 else [{}]
    results = {}
    for wanted in kind.results:
        parts = [form.without(wanted, {**point, **move}, {*move}) for move in moves if wanted not in move]
        results[wanted] = form.of_nodes(wanted, torch.stack(parts).sum(0), tensors).to(request.dtype)
    return results


class _Linear:
    """F without one of its operands, row by row of the batch."""

    def __init__(self, request: Request, tables: Mapping[str, TraversalTables] | None) -> None:
        form: ProductForm = request.form
        self.request, self.form = request, form
        self.width = dict(zip(OPERANDS, form.program.widths, strict=True))
        self.ends = None if tables is None else ends_by_traversal(tables)
        self.place = None
        if form.reading is not None and tables is not None:
            first = tables["by_dst"].ends
            assert first is not None
            reads = torch.arange(form.reading.reads, device=first.device)
            self.place = form.reading.orders * first[:, None] + reads

    def _rows(self, name: str) -> str:
        operand = "z" if name == "g" else name[-1]
        return {"x": "src", "z": "dst"}.get(operand, "each") if self.ends is not None else "each"

    def of_batch(self, name: str, t: Tensor) -> Tensor:
        """A row for each row of the batch; tables, and one row of weights for all, as they are."""
        shared = name[-1] == "t" or (name[-1] == "w" and self.form.shared)
        return t if shared else gathered(self._rows(name), t, self.ends)

    def of_nodes(self, name: str, t: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """The sums of rows that belong to one node, or to one row of the table."""
        if name != "t":
            return summed(self._rows(name), t, self.ends, self.request.deterministic)
        assert self.place is not None
        out = t.new_zeros(tensors["t"].shape)
        return out.index_put((self.place.flatten(),), t.flatten(0, 1), accumulate=True)

    def without(self, wanted: str, at: Mapping[str, Tensor], moved: set[str]) -> Tensor:
        """F at some operands, without one; of weights that are ``moved``, only paths that have some depend on them."""
        at = dict(at)
        if self.place is not None:
            read, c = at["t"][self.place], at["c"]
            at["w"] = (c[:, :, None] * read).sum(1)
        if wanted in ("t", "c"):
            change = self._by_paths("w", at, True)
            return c[:, :, None] * change[:, None, :] if wanted == "t" else (read * change[:, None, :]).sum(2)
        return self._by_paths(wanted, at, bool(moved & {"w", "t", "c"}))

    def _by_paths(self, wanted: str, at: Mapping[str, Tensor], weighted: bool) -> Tensor:
        """``[N, width]`` of x, y, w or z, or ``[width]`` of one row of weights for all; of weighted paths or of all."""
        rows = () if wanted == "w" and self.form.shared else (at["y"].shape[0],)
        out = at["x"].new_zeros(*rows, self.width[wanted])
        for one in _sums(self.form.program):
            if one.path.weight is None and (weighted or wanted == "w"):
                continue
            for columns, part in _columns(one, wanted, _of_path(one, wanted, at, self.form.shared)):
                out[..., columns] += part
        return out


@cache
def _sums(program: Program) -> list[PathSum]:
    return [PathSum(path, program.layout) for path in program.paths]


def _of_path(one: PathSum, wanted: str, at: Mapping[str, Tensor], shared: bool) -> Tensor:
    """``[N, components, *axes]`` of the wanted operand, or weights ``[N, *axes]`` or ``[*axes]``."""
    row = {name: "" if name == "w" and shared else "n" for name in OPERANDS}
    letters = {name: row[name] + _COMPONENT.get(name, "") + one.letters[name] for name in OPERANDS}
    specs, operands = ["ijk"], [one.table(at["x"])]
    for name in OPERANDS:
        if name != wanted and not (name == "w" and one.path.weight is None):
            specs.append(letters[name])
            operands.append(_block(one, name, at[name]))
    for letter in set(letters[wanted]).difference(*specs):  # an axis that no other operand has
        specs.append(letter)
        operands.append(at["x"].new_ones(one.sizes[letter]))
    return torch.einsum(f"{','.join(specs)}->{letters[wanted]}", *operands)


def _block(one: PathSum, name: str, t: Tensor) -> Tensor:
    """``[N, components, *axes]``, or weights ``[N, *axes]``."""
    if name == "w":
        return one.weights(t.narrow(-1, one.path.weight or 0, one.path.weight_count))
    slot = getattr(one.path, name)
    return one.block(name, t.narrow(-1, slot.start, slot.stop - slot.start))


def _columns(one: PathSum, name: str, block: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Columns of the row and what belongs there."""
    path = one.path
    if name == "w":
        assert path.weight is not None
        flat = block.flatten(-len(one.letters["w"])) if one.letters["w"] else block.unsqueeze(-1)
        yield slice(path.weight, path.weight + path.weight_count), flat
        return
    slot = getattr(path, name)
    channels = block.flatten(2) if one.letters[name] else block.unsqueeze(2)  # of one channel, the first
    step, channel = (slot.mul, 1) if one.layout == "ir_mul" else (1, slot.dim)
    for component in range(slot.dim):
        start = slot.start + component * step
        yield slice(start, start + channel * (channels.shape[2] - 1) + 1, channel), channels[:, component]
