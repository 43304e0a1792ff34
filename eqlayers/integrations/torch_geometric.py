"""Transforms for torch-geometric: periodic neighbour lists; vectors, harmonics and radial functions of edges.

Needs torch-geometric and vesin, which come with the extra `train` (`pip install "eqlayers[train]"`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import needs_packages

with needs_packages("eqlayers.integrations.torch_geometric", "train"):
    from torch_geometric.data import Data
    from torch_geometric.transforms import BaseTransform

    from ..atoms.periodic import neighbor_list

from ..core.checks import (
    check_flag,
    check_floating,
    check_function,
    check_integer,
    check_number,
    check_type,
    got,
    is_integer,
)
from ..core.errors import ConfigError, DataError, ShapeError
from ..nn import EdgeGeometry
from ..nn import EdgeVectors as Edges

__all__ = ["EdgeBasis", "EdgeHarmonics", "EdgeVectors", "RadiusGraph"]

_VACUUM = 1000.0  # Angstrom: lattice constant of a structure without cell, for batches with periodic ones


class RadiusGraph(BaseTransform):
    """Edges between all atoms and images that are closer than a cutoff, by vesin's cell lists.

    Reads ``pos`` `[A, 3]` in Angstrom and, for periodic structures, ``cell`` `[3, 3]` or `[1, 3, 3]` with a lattice
    vector in each row, and ``pbc`` `[3]`, `[1, 3]` or one truth value; without ``pbc``, all axes of a cell are
    periodic. Sets

    - ``edge_index`` `[2, E]` int64 (src, dst), where dst receives, both directions, sorted by dst;
    - ``shifts`` `[E, 3]`, displacement of the receiver in lattice vectors, in the dtype of ``pos``, and ``cell``
      `[1, 3, 3]` and ``pbc`` `[1, 3]`, which loaders concatenate. Structures without a cell get a large open one, as
      all structures of a batch need the same attributes.

    The vector of an edge is ``pos[dst] - pos[src] + shift @ cell``. Positions on a GPU are copied to the CPU.

    Args:
        cutoff: In Angstrom; a pair at exactly this distance is no edge.
        cells: Whether to set shifts, cells and pbc; False for data sets without periodic structures.

    Raises:
        ConfigError: The cutoff is not positive.
        ShapeError, DataError: In a call: shapes of positions, cell and pbc are wrong, atoms coincide, or a structure is
            periodic with ``cells=False``.

    Example:
        >>> chain = Data(pos=torch.zeros(1, 3), cell=2.0 * torch.eye(3), pbc=torch.tensor([True, False, False]))
        >>> RadiusGraph(3.0)(chain).shifts.tolist()
        [[-1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]
    """

    def __init__(self, cutoff: float, cells: bool = True) -> None:
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom", fix="Common values are 4 to 6.")
        self.cells = check_flag("cells", cells)

    def forward(self, data: Data) -> Data:
        """Transform one structure; batch structures afterwards."""
        data = _read(data)
        if getattr(data, "num_graphs", 1) > 1 or getattr(data, "ptr", None) is not None:
            raise ShapeError(
                "data must be one structure, got a batch. Give the transform to the data set, before its loader."
            )
        pos, cell, pbc = data.pos.detach(), getattr(data, "cell", None), getattr(data, "pbc", None)
        box = None if cell is None else _single("cell", cell, (3, 3)).double()
        periods = np.zeros(3, bool) if box is None else np.ones(3, bool)
        if pbc is not None:
            periods = np.broadcast_to(_single("pbc", pbc, (3,)).numpy().astype(bool), (3,))
        if box is None and periods.any():
            raise DataError("cell must be there where pbc is true, got none. Set data.cell, or data.pbc = False.")
        if periods.any() and not self.cells:
            raise DataError(
                "data.pbc must be false with cells=False, got a structure with periods. Use RadiusGraph(cutoff)."
            )
        pairs, shifts = neighbor_list(pos.cpu().double().numpy(), box, periods, self.cutoff, "data.pos")
        data.edge_index = torch.from_numpy(pairs).to(pos.device)
        if self.cells:
            large = _VACUUM * torch.eye(3, dtype=torch.float64, device="cpu")
            lattice = large if box is None or not (periods.any() or box.any()) else box  # ASE's molecules have zeros
            lattice = cell.reshape(3, 3) if lattice is box and isinstance(cell, Tensor) else lattice  # keeps gradients
            data.cell = lattice.to(pos).unsqueeze(0)
            data.pbc = torch.from_numpy(periods.copy()).to(pos.device).unsqueeze(0)
            data.shifts = torch.from_numpy(shifts).to(pos)
        return data

    def __repr__(self) -> str:
        return f"RadiusGraph(cutoff={self.cutoff:g}{'' if self.cells else ', cells=False'})"


class EdgeVectors(BaseTransform):
    """Set vectors ``edge_vec`` `[E, 3]` and lengths ``edge_length`` `[E]` of edges, with shifts if there are any.

    It takes structures and batches. Values of a transform have no gradients by positions: for forces, compute them in
    the network by :class:`eqlayers.nn.EdgeGeometry`.

    Raises:
        ShapeError, DTypeError, IndexRangeError: In a call: attributes are inconsistent.

    Example:
        >>> pair = Data(pos=torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]]), edge_index=torch.tensor([[0], [1]]))
        >>> EdgeVectors()(pair).edge_length
        tensor([5.])
    """

    def __init__(self) -> None:
        self._geometry = EdgeGeometry("0e")

    def forward(self, data: Data) -> Data:
        """Transform a structure or a batch."""
        edges = _edges(self._geometry, data)
        data.edge_vec, data.edge_length = edges.vectors, edges.lengths
        return data


class EdgeHarmonics(BaseTransform):
    """Set spherical harmonics ``edge_harmonics`` `[E, irreps_out.dim]` of the directions of edges.

    Args:
        lmax: Highest degree, or irreps such as "0e + 2e".
        normalization: 'component', 'norm' or 'integral'.

    Attributes:
        irreps_out: Irreps of the harmonics.

    Raises:
        IrrepsError, ConfigError: Degrees or options are invalid.

    Example:
        >>> pair = Data(pos=torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]]), edge_index=torch.tensor([[0], [1]]))
        >>> EdgeHarmonics(1, "norm")(pair).edge_harmonics
        tensor([[1.0000, 0.0000, 0.6000, 0.8000]])
    """

    def __init__(self, lmax: Any, normalization: str = "component") -> None:
        degrees = list(range(check_integer("lmax", lmax, 0) + 1)) if is_integer(lmax) else lmax
        self._geometry = EdgeGeometry(degrees, normalization)
        self.irreps_out = self._geometry.irreps_out

    def forward(self, data: Data) -> Data:
        """Transform a structure or a batch."""
        data.edge_harmonics = _edges(self._geometry, data).harmonics
        return data

    def __repr__(self) -> str:
        return f"EdgeHarmonics({self.irreps_out}, {self._geometry.normalization})"


class EdgeBasis(BaseTransform):
    """Set radial functions of the lengths of edges, ``edge_basis`` `[E, K]`.

    Args:
        basis: Function from lengths ``[E]`` in Angstrom to ``[E, K]``, such as :class:`eqlayers.nn.BesselBasis`.

    Raises:
        ConfigError: ``basis`` is no function.

    Example:
        >>> from eqlayers.nn import BesselBasis
        >>> pair = Data(pos=torch.tensor([[0.0, 0.0, 0.0], [0.0, 3.0, 4.0]]), edge_index=torch.tensor([[0], [1]]))
        >>> EdgeBasis(BesselBasis(8, 6.0))(pair).edge_basis.shape
        torch.Size([1, 8])
    """

    def __init__(self, basis: Any) -> None:
        self.basis = check_function("basis", basis, "a function of lengths, such as eqlayers.nn.BesselBasis(8, 5.0)")
        self._geometry = EdgeGeometry("0e")

    def forward(self, data: Data) -> Data:
        """Transform a structure or a batch."""
        with torch.no_grad():  # data sets store no autograd graphs
            data.edge_basis = self.basis(_edges(self._geometry, data).lengths)
        return data

    def __repr__(self) -> str:
        return f"EdgeBasis({self.basis!r})"


def _read(data: Any) -> Any:
    """Check that data is a ``Data`` with positions."""
    check_type("data", data, Data, "a torch_geometric.data.Data", "Pass one structure, or a batch of a loader.")
    if not isinstance(getattr(data, "pos", None), Tensor):
        raise ConfigError(f"data must have positions pos [A, 3], got {got(data)}. Set data.pos.")
    check_floating("data.pos", data.pos, "[A, 3]")
    return data


def _edges(geometry: EdgeGeometry, data: Any) -> Edges:
    """Vectors, lengths and harmonics of the edges of data."""
    data = _read(data)
    if data.edge_index is None:
        raise ConfigError(f"data must have edges edge_index [2, E], got {got(data)}. Apply RadiusGraph before.")
    shifts, cell = getattr(data, "shifts", None), getattr(data, "cell", None)
    periodic = () if shifts is None or cell is None else (shifts, cell, getattr(data, "batch", None))
    return geometry(data.pos, data.edge_index, *periodic)


def _single(name: str, value: Any, shape: tuple[int, ...]) -> Tensor:
    """An attribute of one structure as a CPU tensor of a shape, without the batch axis."""
    values = value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value, device="cpu")
    if values.ndim > 1 and values.shape == (1, *shape):
        values = values[0]
    if values.shape != shape and not (name == "pbc" and values.ndim == 0):
        raise ShapeError(f"data.{name} must be {list(shape)} of one structure, got {list(values.shape)}. Reshape it.")
    return values
