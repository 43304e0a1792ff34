"""Linear maps with fewer weights: a matrix within each irreps group, and matrices of low rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e3nn.o3 import Irreps
from torch import Tensor

from ...core.checks import check_integer, check_items, is_integer
from ...core.errors import ConfigError
from ...irreps.algebra import as_irreps
from ..base.module import EquivariantModule
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
        IrrepwiseLinear(4x0e+2x1o+2x1o -> 3x0e+3x1o+3x1o | 3 paths | 24 weights | mul_ir, torch.matmul)
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
    """Copies of each group of the output."""
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
        irreps_in, irreps_out: Irreps of input and output.
        rank: r, of every path.
        instructions: Pairs ``(i_in, i_out)`` of groups to connect; by default all that have equal irreps.
        biases: True for a bias on all 0e groups of the output, or one flag per group.
        path_normalization: 'element' or 'path'.
        layout: 'mul_ir' (e3nn's) or 'ir_mul'.
        backend: Accepted for symmetry with other layers; dense work always goes to ``torch.matmul``.

    Attributes:
        down, up: The two maps, with r copies of its irrep for each path between them.

    Raises:
        IrrepsError, ConfigError: Irreps, instructions or options that do not fit together.

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
        mapped: Tensor = self.up(self.down(features))
        return mapped

    def extra_repr(self) -> str:
        """Irreps, rank, weights and layout."""
        numel = self.down.weight_numel + self.up.weight_numel
        return (
            f"{self.irreps_in} -> {self.irreps_out} | {self.num_paths} paths of rank {self.rank} | {numel} weights | "
            f"{self.layout}, torch.matmul"
        )


def _map(
    irreps: tuple[Irreps, Irreps], paths: list[LinearInstruction], flags: list[bool], layout: str, backend: str | None
) -> Linear:
    """A `Linear` with given paths and coefficients."""
    layer = Linear.__new__(Linear)
    layer._assemble(irreps, (None, None), paths, flags, (True, True), layout, backend)
    layer._make_weights()
    return layer
