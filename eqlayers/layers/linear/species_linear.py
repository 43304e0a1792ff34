"""Linear maps with weights for each species, as in the self-connections of potentials."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...core.backends.rows import taken
from ...core.checks import check_integer, check_tensor
from ...core.dtypes import device_error
from ...core.errors import ShapeError
from ...core.graph import check_index
from ...core.torch_internals import being_traced, is_plain, unwrapped
from ...irreps.algebra import as_irreps
from ...sparse import ProgramInfos
from ..base.module import EquivariantModule, check_dense
from .module import Linear

#: Weights that are gathered and multiplied in the time that a call of a further map costs, measured on CPUs.
WEIGHTS_OF_A_MAP = 40_000
#: If species cannot be read: up to this number, the map of each is applied to all atoms; else weights are gathered.
MASKED = 4
#: Largest number of gathered weights, 0.5 GiB in float32.
GATHERED = 1 << 27


class SpeciesLinear(EquivariantModule):
    r"""A :class:`Linear` with weights for each species: :math:`z_i = W_{k_i} x_i`.

    It is ``FullyConnectedTensorProduct`` with a one-hot second input, without the products by zeros: atoms are gathered
    by species, and each species is one matrix product; for a few atoms the weights are gathered. On a GPU, in a trace
    or under vmap species cannot be read, and sizes must not depend on them: there weights are gathered for all atoms,
    or each of up to four species maps all atoms and the others are masked.

    Args:
        irreps_in, irreps_out: Irreps of the features before and after.
        num_species: Number of species.
        layout, backend: See :class:`eqlayers.TensorProduct`.

    Attributes:
        weight: ``[num_species, linear.weight_numel]``, each row as the weights of :class:`Linear`.

    Raises:
        IrrepsError, ConfigError: Invalid irreps, or a number of species below 1.

    Example:
        >>> layer = SpeciesLinear("4x0e + 4x1o", "2x0e + 2x1o", 3)
        >>> layer(torch.randn(5, 16), torch.tensor([0, 2, 2, 1, 0])).shape
        torch.Size([5, 8])
    """

    def __init__(
        self, irreps_in: Any, irreps_out: Any, num_species: int, *, layout: str = "mul_ir", backend: str | None = None
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in, self.irreps_out = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        self.num_species = check_integer("num_species", num_species, 1, fix="Count the elements of the data.")
        self.linear = Linear(
            self.irreps_in, self.irreps_out, internal_weights=False, shared_weights=True, layout=layout, backend=backend
        )
        self.num_paths, self._width = self.linear.num_paths, self.irreps_in.dim  # compilers cannot trace irreps
        self.weight = torch.nn.Parameter(torch.randn(self.num_species, self.linear.weight_numel))

    def forward(self, features: Tensor, kind: Tensor) -> Tensor:
        """Map the features of every atom by the weights of its species.

        Args:
            features: ``[A, irreps_in.dim]``.
            kind: ``[A]`` int64, from 0 to num_species - 1.

        Returns:
            ``[A, irreps_out.dim]``.

        Raises:
            ShapeError, DTypeError, IndexRangeError: The inputs do not fit the layer or each other.
        """
        if check_tensor("features", features, f"[A, {self._width}]").ndim != 2:
            raise ShapeError(f"features must be [A, {self._width}], got {list(features.shape)}. Give one row per atom.")
        check_index("kind", kind, features.shape[0], self.num_species, "species")
        if self.backend is not None:
            check_dense(self.backend, features.dtype, features.device)
        if self.num_species == 1:
            return self.linear(features, self.weight[0])
        if kind.device != features.device:
            raise device_error("kind", kind, "features", features)
        atoms, numel = kind.shape[0], self.linear.weight_numel
        species, readable = kind, kind.is_cpu
        if readable and not is_plain((kind,)):
            readable = not being_traced() and (species := unwrapped(kind)).ndim == 1
        if not readable:
            return self._of_any_species(features, kind)
        if not atoms * numel:
            return self.linear(features, self.weight[0])
        sizes = torch.bincount(species, minlength=self.num_species).tolist()  # which torch.func allows
        if atoms * numel <= WEIGHTS_OF_A_MAP * sum(map(bool, sizes)):
            self.linear._in.check("features", features)
            return self.linear._by_row(features, self.weight[kind])
        order = kind.argsort(stable=True)
        sorted_rows = features.index_select(0, order).split(sizes)
        mapped = [self.linear(rows, w) for rows, w in zip(sorted_rows, self.weight, strict=True) if len(rows)]
        back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
        return torch.cat(mapped).index_select(0, back)

    @property
    def infos(self) -> ProgramInfos:
        """The map as infos of sparse products; see :attr:`Linear.infos`. The weights of a row are ``weight[kind]``."""
        return self.linear.infos

    def _of_any_species(self, features: Tensor, kind: Tensor) -> Tensor:
        """Map features without reading the species, so that operations do not depend on their values."""
        if self.num_species <= MASKED:
            parts = [self.linear(features, self.weight[n]) for n in range(self.num_species)]
            chosen = [part * (kind == n)[:, None].to(part.dtype) for n, part in enumerate(parts)]
            return torch.stack(chosen).sum(0)
        self.linear._in.check("features", features)
        if being_traced() or features.shape[0] * self.linear.weight_numel <= GATHERED:
            return self.linear._by_row(features, taken(self.weight, kind))
        rows = max(1, GATHERED // self.linear.weight_numel)
        pairs = zip(features.split(rows), kind.split(rows), strict=True)
        return torch.cat([self.linear._by_row(x, taken(self.weight, k)) for x, k in pairs])

    def extra_repr(self) -> str:
        """Irreps, species, weights."""
        numel = self.num_species * self.linear.weight_numel
        return f"{self.irreps_in} -> {self.irreps_out} | {self.num_species} species | {numel} weights | {self._kind()}"
