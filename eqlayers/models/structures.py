"""Batches of atoms with neighbour lists: the input of potentials."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.checks import check_floating, check_integer, check_tensor
from ..core.errors import DTypeError, ShapeError
from ..core.graph import check_edge_index, check_range


class Structures(NamedTuple):
    """One structure, or several concatenated, with the edges of a neighbour list.

    Attributes:
        z: ``[A]`` int64 atomic numbers.
        pos: ``[A, 3]`` Angstrom.
        edge_index: ``[2, E]`` int64 (src, dst); dst receives. Each pair in both directions; no edge from an atom to
            itself without a shift.
        batch: ``[A]`` int64, structure of each atom, ascending; None for one structure.
        num_graphs: Number of structures.
        cell: ``[G, 3, 3]``, a lattice vector in each row; None without periodic axes. Vectors of open axes only enter
            the volume that stress is divided by; zero if there is none.
        shifts: ``[E, 3]``, displacement of the receiver in lattice vectors; None without a cell.

    Example:
        >>> pair = torch.tensor([[0, 1], [1, 0]])
        >>> Structures(torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]]), pair).num_graphs
        1
    """

    z: Tensor
    pos: Tensor
    edge_index: Tensor
    batch: Tensor | None = None
    num_graphs: int = 1
    cell: Tensor | None = None
    shifts: Tensor | None = None

    @classmethod
    def of(cls, batch: Any) -> Structures:
        """Structures from an object with these attributes, such as a batch of a data loader.

        Missing attributes other than z, pos and edge_index are taken as None.

        Example:
            >>> from types import SimpleNamespace
            >>> z, pos = torch.tensor([1]), torch.zeros(1, 3)
            >>> Structures.of(SimpleNamespace(z=z, pos=pos, edge_index=torch.empty(2, 0, dtype=torch.int64))).z
            tensor([1])
        """
        graphs = getattr(batch, "num_graphs", None)
        return cls(
            batch.z,
            batch.pos,
            batch.edge_index,
            getattr(batch, "batch", None),
            1 if graphs is None else graphs,
            getattr(batch, "cell", None),
            getattr(batch, "shifts", None),
        )

    def checked(self, dtype: torch.dtype) -> Structures:
        """Check shapes, dtypes and indices; return the structures with ``batch`` filled in.

        Raises:
            ShapeError, DTypeError, IndexRangeError: Tensors whose shapes do not agree, or of another dtype than
                ``dtype``.
        """
        z, pos = check_tensor("z", self.z, "[A]"), check_floating("pos", self.pos, "[A, 3]")
        if isinstance(self.num_graphs, bool) or not isinstance(self.num_graphs, (int, torch.SymInt)):
            check_integer("num_graphs", self.num_graphs, 0)
        batch = torch.zeros_like(z) if self.batch is None else check_tensor("batch", self.batch, "[A], or None")
        if pos.ndim != 2 or pos.shape[1] != 3 or z.shape != pos.shape[:1] or batch.shape != z.shape:
            raise ShapeError(
                f"z, pos and batch must be [A], [A, 3] and [A], got {list(z.shape)}, {list(pos.shape)} and "
                f"{list(batch.shape)}. Give one row per atom."
            )
        if z.dtype != torch.int64 or batch.dtype != torch.int64:
            raise DTypeError(f"z and batch must be int64, got {z.dtype} and {batch.dtype}. Convert with `.long()`.")
        check_range("batch", batch, self.num_graphs, "structures")
        check_edge_index(self.edge_index)
        if (self.cell is None) != (self.shifts is None):
            raise ShapeError(
                "cell and shifts must come together, got one of them. Take both from one neighbour list, or neither."
            )
        if self.cell is not None and self.cell.shape != (self.num_graphs, 3, 3):
            raise ShapeError(
                f"cell must be [{self.num_graphs}, 3, 3], one for each structure, got {list(self.cell.shape)}. "
                "Give structures without periodic axes a zero cell."
            )
        for name, t in (("pos", pos), ("cell", self.cell)):
            if t is not None and t.dtype != dtype:
                raise DTypeError(
                    f"{name} must have the dtype of the model, {dtype}, got {t.dtype}. Convert it with `.to({dtype})`, "
                    "or the model with `.double()`."
                )
        return self._replace(batch=batch)
