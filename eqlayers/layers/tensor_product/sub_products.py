"""The tensor products that derive instructions from irreps, as in e3nn and in Equitorch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from e3nn.o3 import Irrep, Irreps
from torch import Tensor
from torch.nn import Module

from ...core.checks import check_choice, check_flag, check_items, got
from ...core.errors import IrrepsError
from ...e3nn_compat.state_dict import check_e3nn_layer
from ...irreps.algebra import as_irreps, read_filter, tensor_product_paths
from ...irreps.instructions import IRREP_NORMALIZATION, check_normalization
from ...irreps.instructions import paths as all_paths
from ..base.columns import check_groups, joined
from .module import TensorProduct

if TYPE_CHECKING:
    from typing_extensions import Self


class FullyConnectedTensorProduct(TensorProduct):
    r"""Product along every allowed path, fully connected: :math:`z_w = \sum_{uv} w_{uvw}\, x_u \otimes y_v`.

    Args:
        irreps_in1, irreps_in2, irreps_out: Irreps of the inputs and of the output.
        irrep_normalization, path_normalization: See :class:`TensorProduct`.
        **kwargs: Further arguments of :class:`TensorProduct`.

    Example:
        >>> FullyConnectedTensorProduct("2x0e", "1x1o", "3x1o").weight_numel
        6
    """

    def __init__(
        self,
        irreps_in1: Any,
        irreps_in2: Any,
        irreps_out: Any,
        irrep_normalization: str | None = None,
        path_normalization: str | None = None,
        **kwargs: Any,
    ) -> None:
        out = as_irreps(irreps_out, "irreps_out")
        instructions = [
            (i, j, k, "uvw", True, 1.0)
            for i, (_, ir1) in enumerate(as_irreps(irreps_in1, "irreps_in1"))
            for j, (_, ir2) in enumerate(as_irreps(irreps_in2, "irreps_in2"))
            for k, (_, ir) in enumerate(out)
            if ir in ir1 * ir2
        ]
        kwargs.update(irrep_normalization=irrep_normalization, path_normalization=path_normalization)
        super().__init__(irreps_in1, irreps_in2, out, instructions, **kwargs)


class ElementwiseTensorProduct(TensorProduct):
    r"""Product copy by copy, without weights: :math:`z_u = x_u \otimes y_u`.

    Args:
        irreps_in1, irreps_in2: Irreps of equal number; groups are joined and split so that they pair up, as the
            attributes irreps_in1 and irreps_in2 show. In 'ir_mul' none are joined, and none may need to be split.
        filter_ir_out: Irreps to keep in the output; None keeps all.
        irrep_normalization: See :class:`TensorProduct`.
        **kwargs: Further arguments of :class:`TensorProduct`.

    Raises:
        IrrepsError: The inputs differ in the number of irreps, or their groups in 'ir_mul' would have to be split.

    Example:
        >>> ElementwiseTensorProduct("5x1o + 5x1e", "10x1e", ["0e", "0o"]).irreps_out
        5x0o+5x0e
    """

    def __init__(
        self,
        irreps_in1: Any,
        irreps_in2: Any,
        filter_ir_out: Iterable[Any] | None = None,
        irrep_normalization: str | None = None,
        **kwargs: Any,
    ) -> None:
        layout = kwargs.get("layout", "mul_ir")
        both = as_irreps(irreps_in1, "irreps_in1"), as_irreps(irreps_in2, "irreps_in2")
        first, second = paired(*(joined(irreps, layout) for irreps in both))
        for name, irreps, cut in zip(("irreps_in1", "irreps_in2"), both, (first, second), strict=True):
            check_groups(name, irreps, cut, layout)
        keep = read_filter(filter_ir_out)
        out: list[tuple[int, Irrep]] = []
        instructions: list[tuple[int, int, int, str, bool]] = []
        for i, (mul, ir1) in enumerate(first):
            for _, _, ir in tensor_product_paths([(1, ir1)], [(1, second[i].ir)], keep):
                instructions.append((i, i, len(out), "uuu", False))
                out.append((mul, ir))
        super().__init__(first, second, Irreps(out), instructions, irrep_normalization=irrep_normalization, **kwargs)


def paired(first: Irreps, second: Irreps) -> tuple[Irreps, Irreps]:
    """Both irreps, split wherever either has a boundary; IrrepsError for unequal numbers of copies."""
    if first.num_irreps != second.num_irreps:
        raise IrrepsError(
            f"irreps_in1 and irreps_in2 must hold equally many irreps, got {first.num_irreps} in {first} and "
            f"{second.num_irreps} in {second}. They are paired one by one."
        )
    cuts = sorted({end for irreps in (first, second) for end in accumulate((mul for mul, _ in irreps), initial=0)})
    copies = ([ir for mul, ir in irreps for _ in range(mul)] for irreps in (first, second))
    one, other = (Irreps([(end - start, ir[start]) for start, end in pairwise(cuts)]) for ir in copies)
    return one, other


class FullTensorProduct(TensorProduct):
    r"""Product of all pairs of copies, without weights: :math:`z_{uv} = x_u \otimes y_v`; the output is sorted.

    Args:
        irreps_in1, irreps_in2: Irreps of the inputs; simplified first. In 'ir_mul' they must be so (or IrrepsError).
        filter_ir_out, irrep_normalization: See :class:`ElementwiseTensorProduct`.
        **kwargs: Further arguments of :class:`TensorProduct`.

    Example:
        >>> FullTensorProduct("2x0e + 1o", "1o").irreps_out
        1x0e+2x1o+1x1e+1x2e
    """

    def __init__(
        self,
        irreps_in1: Any,
        irreps_in2: Any,
        filter_ir_out: Iterable[Any] | None = None,
        irrep_normalization: str | None = None,
        **kwargs: Any,
    ) -> None:
        layout = kwargs.get("layout", "mul_ir")
        first, second = _simplified("irreps_in1", irreps_in1, layout), _simplified("irreps_in2", irreps_in2, layout)
        paths = tensor_product_paths(first, second, filter_ir_out)
        out = [(first[i].mul * second[j].mul, ir) for i, j, ir in paths]
        rows = [(i, j, k, "uvuv", False) for k, (i, j, _) in enumerate(paths)]
        sorted_out, instructions = _sorted(out, rows)
        super().__init__(first, second, sorted_out, instructions, irrep_normalization=irrep_normalization, **kwargs)


def _simplified(name: str, irreps: Any, layout: str) -> Irreps:
    """Irreps with neighbouring groups joined; IrrepsError if that changes the order of a row."""
    irreps = as_irreps(irreps, name)
    simple: Irreps = irreps.simplify()
    check_groups(name, irreps, simple, layout)
    return simple


class TensorSquare(TensorProduct):
    r"""Product of a feature with itself, each unordered pair of copies once.

    Args:
        irreps_in: Irreps of the input; simplified first. In 'ir_mul' they must be simplified already.
        irreps_out: Irreps of the output, fully connected with weights; None for all products without weights.
            Simplified first, too.
        filter_ir_out: Irreps to keep when ``irreps_out`` is None.
        irrep_normalization: 'component' (default), 'norm' or 'none'.
        **kwargs: Further arguments of :class:`TensorProduct`.

    Raises:
        IrrepsError: irreps_out together with filter_ir_out, or irreps that are not simplified in 'ir_mul'.

    Example:
        >>> TensorSquare("2x1o").irreps_out
        1x0e+2x0e+1x1e+1x2e+2x2e
    """

    def __init__(
        self,
        irreps_in: Any,
        irreps_out: Any = None,
        filter_ir_out: Iterable[Any] | None = None,
        irrep_normalization: str | None = None,
        **kwargs: Any,
    ) -> None:
        norm = check_normalization("irrep_normalization", irrep_normalization)
        layout = kwargs.get("layout", "mul_ir")
        irreps = _simplified("irreps_in", irreps_in, layout)
        if irreps_out is None:
            out, instructions = _square_full(irreps, filter_ir_out, norm)
        elif filter_ir_out is not None:
            raise IrrepsError(
                "filter_ir_out must be None with irreps_out, got both. Keep the irreps that you want in irreps_out."
            )
        else:
            out = _simplified("irreps_out", irreps_out, layout)
            instructions = _square_connected(irreps, out, norm)
        super().__init__(irreps, irreps, out, instructions, irrep_normalization="none", **kwargs)

    _torchscript = (("forward", "layer_product(self.spec, x, x, weight, self.weight)"),)

    @classmethod
    def from_e3nn(cls, module: Module, *, backend: str | None = None) -> Self:
        """Make the square of an ``e3nn.o3.TensorSquare``, or raise ConfigError; see :meth:`TensorProduct.from_e3nn`."""
        return super().from_e3nn(check_e3nn_layer(module, "TensorSquare", "irreps_in", "irreps_in1"), backend=backend)

    @property
    def irreps_in(self) -> Irreps:
        """Irreps of the input."""
        return self.irreps_in1

    def forward(self, x: Tensor, weight: Any = None) -> Tensor:  # type: ignore[override]
        """``[..., irreps_in.dim]`` to ``[..., irreps_out.dim]``."""
        return super().forward(x, x, weight)

    def extra_repr(self) -> str:
        """The text of :class:`TensorProduct`, with one input."""
        return f"{self.irreps_in1} -> {super().extra_repr().partition(' -> ')[2]}"


def _square_alpha(norm: str, ir: Irrep, out: Irrep, diagonal: bool) -> float:
    """Variance factor of one path; the square of one copy is not a product of independent numbers."""
    if norm == "none" or not diagonal:
        return float(IRREP_NORMALIZATION[norm](ir.dim, ir.dim, out.dim))
    if norm == "component":
        return out.dim / (ir.dim + 2) if out.l == 0 else out.dim / 2
    return float(out.dim * ir.dim) if out.l == 0 else ir.dim * (ir.dim + 2) / 2


def _square_pairs(irreps: Irreps, norm: str, keep: Any) -> list[tuple[int, int, str, Irrep, float]]:
    """(i, j, copies, ir_out, alpha) with i <= j; copies: 'pair' (two groups), 'above' (u < v) or 'same' (u = v)."""
    out = []
    for i, j, ir in tensor_product_paths(irreps, irreps, keep):
        if i > j:
            continue
        if i < j:
            alpha = float(IRREP_NORMALIZATION[norm](irreps[i].ir.dim, irreps[j].ir.dim, ir.dim))
            out.append((i, j, "pair", ir, alpha))
            continue
        if irreps[i].mul > 1:
            out.append((i, i, "above", ir, _square_alpha(norm, irreps[i].ir, ir, diagonal=False)))
        if ir.l % 2 == 0:  # an odd degree is antisymmetric: x with itself gives nothing
            out.append((i, i, "same", ir, _square_alpha(norm, irreps[i].ir, ir, diagonal=True)))
    return out


def _square_full(irreps: Irreps, keep: Any, norm: str) -> tuple[Irreps, list[tuple[Any, ...]]]:
    modes = {"pair": "uvuv", "above": "uvu<v", "same": "uuu"}
    out, rows = [], []
    for k, (i, j, copies, ir, alpha) in enumerate(_square_pairs(irreps, norm, keep)):
        mul = {"pair": irreps[i].mul * irreps[j].mul, "above": irreps[i].mul * (irreps[i].mul - 1) // 2}
        out.append((mul.get(copies, irreps[i].mul), ir))
        rows.append((i, j, k, modes[copies], False, alpha))
    return _sorted(out, rows)


def _square_connected(irreps: Irreps, out: Irreps, norm: str) -> list[tuple[Any, ...]]:
    modes = {"pair": "uvw", "above": "u<vw", "same": "uuw"}
    rows = [
        (i, j, k, modes[copies], True, alpha)
        for k, (_, ir_out) in enumerate(out)
        for i, j, copies, _, alpha in _square_pairs(irreps, norm, [ir_out])
    ]
    return sorted(rows, key=lambda row: row[:3])  # e3nn's order of weights: in1, in2, out; stable


def _sorted(out: list[Any], rows: list[tuple[Any, ...]]) -> tuple[Irreps, list[tuple[Any, ...]]]:
    """Sort the output irreps as e3nn does, and renumber the instructions."""
    irreps, position, _ = Irreps(out).sort()
    return irreps, [(i, j, position[k], *rest) for i, j, k, *rest in rows]


class SO3Linear(TensorProduct):
    r"""Features times harmonics of an edge, with a weight or a matrix for each path; linear in the features.

    .. math:: z^{(k)}_{u} = \sum_{(i, j) \to k} \frac{1}{\sqrt{P_k}} w^{(ijk)}_u\, x^{(i)}_u \otimes y^{(j)}, \qquad
              z^{(k)}_{w} = \sum_{(i, j) \to k} \frac{1}{\sqrt{P_k C}} \sum_u w^{(ijk)}_{uw}\, x^{(i)}_u \otimes y^{(j)}

    for 'uu' and 'uv': :math:`P_k` paths into a group of the output, and C channels. It is a tensor product along all
    allowed paths 'uvu' or 'uvw', equal to Equitorch's ``SO3Linear`` with ``path_norm`` (and ``channel_norm`` for
    'uv'): its C channels of an irrep are a group of C copies here.

    Args:
        irreps_in: Irreps of the features.
        irreps_edge: Irreps of the harmonics, of multiplicity 1.
        irreps_out: Irreps of the output; for 'uu' of the multiplicities of the features.
        feature_mode: 'uu' for a weight per channel, 'uv' for a matrix that mixes channels.
        paths: Triples ``(i_in, i_edge, i_out)`` of groups, to use these paths only; None for all.
        **kwargs: Further arguments of :class:`TensorProduct`.

    Attributes:
        weight: ``[weight_numel]``, path by path: ``[C]``, or ``[C, C_out]`` row-major.

    Raises:
        IrrepsError, ConfigError: Irreps without a path, multiplicities that differ with 'uu', or another mode.

    Source:
        github.com/GTML-LAB/Equitorch; Passaro and Zitnick 2023, arXiv:2302.03655, section 3.1.

    Example:
        >>> import torch
        >>> layer = SO3Linear("8x0e + 8x1o", "0e + 1o", "8x0e + 8x1o", "uu")
        >>> layer(torch.randn(5, 32), torch.randn(5, 4)).shape, layer.weight_numel
        (torch.Size([5, 32]), 32)
    """

    def __init__(
        self,
        irreps_in: Any,
        irreps_edge: Any,
        irreps_out: Any,
        feature_mode: str = "uu",
        paths: Sequence[tuple[int, int, int]] | None = None,
        **kwargs: Any,
    ) -> None:
        check_choice("feature_mode", feature_mode, ("uu", "uv"))
        first, second = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_edge, "irreps_edge")
        out = as_irreps(irreps_out, "irreps_out")
        fix = "Count groups of each from 0, in a list."
        what = "a list of triples (i_in, i_edge, i_out), or None for all"
        items = None if paths is None else check_items("paths", paths, what, fix, IrrepsError)
        for path in items or ():
            if not isinstance(path, (list, tuple)) or len(path) != 3:
                raise IrrepsError(f"paths must hold triples (i_in, i_edge, i_out), got {got(path)}. {fix}")
        if items is None:
            items = [path[:3] for path in all_paths(first, second, irreps_out=out, mode="uvw")[1]]
        if not items:
            raise IrrepsError(f"paths must hold at least one triple, got {got(paths)}. Leave them out for all paths.")
        triples = [tuple(path) for path in items]
        if feature_mode == "uu":
            for i, _, k in triples if paths is None else ():
                if first[i].mul != out[k].mul:
                    raise IrrepsError(
                        f"irreps_out must have the multiplicities of irreps_in with feature_mode='uu', got {first[i]} "
                        f"-> {out[k]}. Use 'uv', which mixes channels, or give paths."
                    )
        mode = {"uu": "uvu", "uv": "uvw"}[feature_mode]
        super().__init__(first, second, out, [(*triple, mode, True) for triple in triples], **kwargs)
        self.feature_mode = feature_mode


class TensorDot(TensorProduct):
    r"""Dot products of irrep copies, each with its counterpart or with all of a group.

    .. math:: z_u = s \sum_m x_{u m}\, y_{u m}, \qquad z_{u v} = s \sum_m x_{u m}\, y_{v m}

    Args:
        irreps_in1: Irreps of the first feature.
        irreps_in2: Irreps of the second; the first's if None. Group by group they are equal; with 'uv' their
            multiplicities may differ.
        feature_mode: 'uu' for copy by copy, 'uv' for all pairs of copies of a group.
        scaled: Whether :math:`s = (2 l + 1)^{-1/2}`, which gives features of unit variance products of unit variance;
            else s = 1.
        **kwargs: Further arguments of :class:`TensorProduct`, such as layout and backend.

    Attributes:
        irreps_out: A scalar per copy, or per pair; the scalar of copies u and v is number :math:`u\, \mathrm{mul}_2 +
            v` of its group. All are 0e.

    Raises:
        IrrepsError, ConfigError: Irreps that do not pair up, or another mode.

    Source:
        github.com/GTML-LAB/Equitorch, whose 'uv' is not implemented.

    Example:
        >>> import torch
        >>> x = torch.tensor([1.0, 0.0, 0.0, 0.0, 2.0, 0.0])
        >>> TensorDot("2x1o")(x, x).tolist(), TensorDot("2x1o", feature_mode="uv")(x, x).tolist()
        ([1.0, 4.0], [1.0, 0.0, 0.0, 4.0])
    """

    def __init__(
        self, irreps_in1: Any, irreps_in2: Any = None, feature_mode: str = "uu", scaled: bool = False, **kwargs: Any
    ) -> None:
        check_choice("feature_mode", feature_mode, ("uu", "uv"))
        first = as_irreps(irreps_in1, "irreps_in1")
        second = first if irreps_in2 is None else as_irreps(irreps_in2, "irreps_in2")
        same = [ir for _, ir in first] == [ir for _, ir in second]
        if not same or (feature_mode == "uu" and first != second):
            rule = "equal irreps" if feature_mode == "uu" else "groups of equal irreps"
            raise IrrepsError(
                f"irreps_in1 and irreps_in2 must be {rule} with feature_mode={feature_mode!r}, got {first} and "
                f"{second}. Order them alike (eqlayers.nn.Sort)."
            )
        mode = {"uu": "uuu", "uv": "uvuv"}[feature_mode]
        pairs = list(zip(first, second, strict=True))
        out = Irreps([(a.mul if feature_mode == "uu" else a.mul * b.mul, "0e") for a, b in pairs])
        scale = check_flag("scaled", scaled)
        paths = [(i, i, i, mode, False, 1.0 if scale else a.ir.dim) for i, (a, _) in enumerate(pairs)]
        super().__init__(first, second, out, paths, **kwargs)
        self.feature_mode, self.scaled = feature_mode, scale
