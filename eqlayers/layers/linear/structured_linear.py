"""Linear maps of other weights: a matrix within each irreps group, matrices of low rank, weights for each species."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from e3nn.o3 import Irreps
from torch import Tensor

from ...core.backends.rows import taken
from ...core.checks import check_integer, check_items, check_tensor, is_integer
from ...core.dtypes import device_error, of_one_dtype
from ...core.errors import ConfigError, ShapeError
from ...core.graph import check_index
from ...core.species import known_species, species_of
from ...core.torch_internals import being_traced, outside_of_func, unwrapped, wrapped_by_func
from ...irreps.algebra import as_irreps
from ...sparse import ProgramInfos
from ..base.module import EquivariantModule, check_dense, run_map
from .instructions import LinearInstruction, read_biases, read_linear
from .module import Linear


class IrrepwiseLinear(Linear):
    r"""A linear map within each irreps group, which does not mix copies of different groups.

    .. math:: y^{(i)}_{w m} = \mathrm{mul}_i^{-1/2} \sum_u w^{(i)}_{uw}\, x^{(i)}_{u m}

    Groups with equal irreps are not mixed, in contrast to :class:`Linear`. It is Equitorch's ``IrrepWiseLinear``
    with ``channel_norm``. Its C channels of an irrep are a group of C copies here: its irreps "2x1o" of C channels are
    "Cx1o + Cx1o".

    Args:
        irreps_in: Irreps of the input.
        channels_out: Copies of each group of the output: a number for all, one for each group, or None for as many as
            the input has.
        biases: True for a bias on all 0e groups, or one flag per group.
        **kwargs: Further arguments of :class:`Linear`.

    Attributes:
        irreps_out: The groups of the input with other multiplicities.
        weight: ``[weight_numel]``, the matrices one after the other, row-major.

    Raises:
        IrrepsError, ConfigError: Irreps that cannot be read, or numbers that do not fit them.

    Source:
        github.com/GTML-LAB/Equitorch

    Example:
        >>> IrrepwiseLinear("4x0e + 2x1o + 2x1o", 3)
        IrrepwiseLinear(4x0e+2x1o+2x1o -> 3x0e+3x1o+3x1o | 3 paths | 24 weights | mul_ir, backend ...)
    """

    def __init__(
        self,
        irreps_in: Any,
        channels_out: int | Sequence[int] | None = None,
        *,
        biases: bool | Sequence[bool] | None = False,
        **kwargs: Any,
    ) -> None:
        irreps = as_irreps(irreps_in, "irreps_in")
        muls = _multiplicities(irreps, channels_out)
        out = Irreps([(mul, ir) for mul, (_, ir) in zip(muls, irreps, strict=True)])
        pairs = [(i, i) for i in range(len(irreps))]
        if "instructions" in kwargs:
            raise ConfigError(
                "instructions must not be given, each group is mapped to itself, got some. Use eqlayers.Linear."
            )
        super().__init__(irreps, out, instructions=pairs, biases=biases, **kwargs)


def _multiplicities(irreps: Irreps, channels: Any) -> list[int]:
    """Number of copies of each group of the output, from the argument ``channels_out`` of `IrrepwiseLinear`."""
    if channels is None:
        return [mul for mul, _ in irreps]
    if is_integer(channels):
        return [check_integer("channels_out", channels, 0)] * len(irreps)
    what, fix = "a number, or one for each group", f"Give {len(irreps)} of them for {irreps}."
    items = check_items("channels_out", channels, what, fix, count=len(irreps))
    return [check_integer(f"channels_out[{i}]", mul, 0) for i, mul in enumerate(items)]


class LowRankLinear(EquivariantModule):
    r"""Equivariant linear map whose matrices are products of two small ones.

    .. math:: y^{(k)}_{w m} = \sum_{i \to k} \frac{c}{\sqrt{r}} \sum_{u, q = 1}^{r} a^{(ik)}_{uq}\, b^{(ik)}_{qw}\,
              x^{(i)}_{u m} \; (+\, \beta^{(k)}_w)

    with the coefficient c of :class:`Linear`: results have the variance of its results, both with normal weights.
    The two matrices are applied one after the other, which takes :math:`r (\mathrm{mul}_i + \mathrm{mul}_k)` weights
    and products per component in place of :math:`\mathrm{mul}_i\, \mathrm{mul}_k`.

    Args:
        irreps_in, irreps_out, instructions, biases, path_normalization, layout, backend: See :class:`Linear`, also for
            errors.
        rank: r, of every path.

    Attributes:
        down, up: The two maps, with r copies of its irrep for each path between them.

    Example:
        >>> layer = LowRankLinear("64x0e + 64x1o", "64x0e + 64x1o", rank=4)
        >>> sum(weight.numel() for weight in layer.parameters())
        1024
    """

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any,
        rank: int,
        *,
        instructions: Sequence[tuple[int, int]] | None = None,
        biases: bool | Sequence[bool] | None = False,
        path_normalization: str = "element",
        layout: str = "mul_ir",
        backend: str | None = None,
    ) -> None:
        super().__init__(layout, backend)
        self.irreps_in, self.irreps_out = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_out, "irreps_out")
        self.rank = check_integer("rank", rank, 1, what="a number of copies", fix="Use 1 to the number of channels.")
        whole = Linear(  # checks the options, and computes the coefficients
            self.irreps_in,
            self.irreps_out,
            instructions=instructions,
            path_normalization=path_normalization,
            internal_weights=False,
            layout=layout,
        )
        paths = whole.instructions
        middle = Irreps([(self.rank, self.irreps_in[path.i_in].ir) for path in paths])
        self.num_paths = len(paths)
        pairs = [(path.i_in, number) for number, path in enumerate(paths)]
        down = read_linear(self.irreps_in, middle, pairs, "path", 1)
        up = [
            LinearInstruction(n, path.i_out, (self.rank, path.path_shape[1]), first)
            for n, path in enumerate(paths)
            for first in [path.path_weight * (max(path.path_shape[0], 1) / self.rank) ** 0.5]
        ]
        flags = read_biases(self.irreps_out, biases)
        self.down = _map((self.irreps_in, middle), down, [False] * len(middle), layout, backend)
        self.up = _map((middle, self.irreps_out), up, flags, layout, backend)

    def forward(self, features: Tensor) -> Tensor:
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``; errors as of :class:`Linear`."""
        return self.up(self.down(features))

    def extra_repr(self) -> str:
        """Irreps, rank, weights and layout."""
        numel = self.down.weight_numel + self.up.weight_numel
        return (
            f"{self.irreps_in} -> {self.irreps_out} | {self.num_paths} paths of rank {self.rank} | {numel} weights | "
            f"{self._kind()}"
        )


def _map(
    irreps: tuple[Irreps, Irreps], paths: list[LinearInstruction], flags: list[bool], layout: str, backend: str | None
) -> Linear:
    """A `Linear` with given paths and coefficients."""
    layer = Linear.__new__(Linear)
    layer._assemble(irreps, (None, None), paths, flags, (True, True), layout, backend)
    layer._make_weights()
    return layer


#: If species cannot be read: up to this number, the map of each is applied to all atoms; else weights are gathered.
MASKED = 4
#: Largest number of gathered weights, 0.5 GiB in float32.
GATHERED = 1 << 27


class SpeciesLinear(EquivariantModule):
    r"""A :class:`Linear` with weights for each species: :math:`z_i = W_{k_i} x_i`.

    It is ``FullyConnectedTensorProduct`` with a one-hot second input, without the products by zeros. On a CPU the atoms
    of one species are mapped after the other: by one call of generated C, or by products of torch where `Linear` uses
    these. On a GPU, and where vmap maps the species, species cannot be read, and sizes must not depend on them: weights
    are gathered for all atoms, or each of up to four species maps all atoms and the others are masked.

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
        known = known_species(kind, features, self.num_species, None)
        if known is None:
            check_index("kind", kind, features.shape[0], self.num_species, "species")
        if self.backend is not None:
            check_dense(self.backend, features.dtype, features.device)
        if self.num_species == 1:
            return self.linear(features, self.weight[0])
        if kind.device != features.device:
            raise device_error("kind", kind, "features", features)
        if features.is_cpu and not (wrapped_by_func(features) or wrapped_by_func(kind)):
            species = (None if known is None else known.species) or species_of(kind, self.num_species)
            weight = self.weight if species.present is None else self.weight.index_select(0, species.present)
            x, w = of_one_dtype(features=features, weight=weight)
            mapped = run_map(self.linear._form, x, w, species.graph, self.linear.backend)
            if mapped is not None:
                return mapped
        if kind.is_cpu and not being_traced() and (species_read := unwrapped(kind)).ndim == 1:
            return self._of_each_species(features, species_read)
        return self._of_any_species(features, kind)

    def weight_matrices(self) -> dict[str, list[tuple[int, ...]]]:
        """Shapes of the matrices that the weights are, by species and path."""
        return {"weight": self.linear.weight_matrices()["weight"] * self.num_species}

    @property
    def infos(self) -> ProgramInfos:
        """The map as infos of sparse products; see :attr:`Linear.infos`. The weights of a row are ``weight[kind]``."""
        return self.linear.infos

    def _of_each_species(self, features: Tensor, kind: Tensor) -> Tensor:
        """Map the features of one species after the other, where no kernel does."""
        if not features.shape[0]:
            return self.linear(features, self.weight[0])
        with outside_of_func():  # in which torch 2.6 counts nothing
            sizes = torch.bincount(kind, minlength=self.num_species).tolist()
        order = kind.argsort(stable=True)
        parts = features.index_select(0, order).split(sizes)
        mapped = [self.linear(rows, w) for rows, w in zip(parts, self.weight, strict=True) if len(rows)]
        return torch.cat(mapped).index_select(0, order.argsort())

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
