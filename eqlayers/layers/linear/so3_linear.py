"""Products without multiplicities to write down: features times harmonics of edges, and dot products of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from e3nn.o3 import Irreps

from ...core.checks import check_choice, check_flag, check_items, got
from ...core.errors import IrrepsError
from ...irreps.algebra import as_irreps
from ..tensor_product.module import TensorProduct


class SO3Linear(TensorProduct):
    r"""Features times harmonics of an edge, with a weight or a matrix for each path; linear in the features.

    .. math:: z^{(k)}_{u} = \sum_{(i, j) \to k} \frac{1}{\sqrt{P_k}} w^{(ijk)}_u\, x^{(i)}_u \otimes y^{(j)}, \qquad
              z^{(k)}_{w} = \sum_{(i, j) \to k} \frac{1}{\sqrt{P_k C}} \sum_u w^{(ijk)}_{uw}\, x^{(i)}_u \otimes y^{(j)}

    for 'uu' and 'uv': :math:`P_k` paths into a group of the output, and C channels. It is a tensor product with 'uvu'
    or 'uvw' paths, all that there are, and Equitorch's ``SO3Linear`` with ``path_norm`` (and ``channel_norm`` for
    'uv'): its C channels of an irrep are a group of C copies here.

    Args:
        irreps_in: Irreps of the features.
        irreps_edge: Irreps of the harmonics, of multiplicity 1.
        irreps_out: Irreps of the output; for 'uu' of the multiplicities of the features.
        feature_mode: 'uu' for a weight per channel, 'uv' for a matrix that mixes channels.
        paths: Triples ``(i_in, i_edge, i_out)`` of groups, to have some paths only; None for all.
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
        kind = check_choice("feature_mode", feature_mode, ("uu", "uv"))
        first, second = as_irreps(irreps_in, "irreps_in"), as_irreps(irreps_edge, "irreps_edge")
        out = as_irreps(irreps_out, "irreps_out")
        fix = "Count groups of each from 0, in a list."
        what = "a list of triples (i_in, i_edge, i_out), or None for all"
        given = None if paths is None else check_items("paths", paths, what, fix, IrrepsError)
        for path in given or ():
            if not isinstance(path, (list, tuple)) or len(path) != 3:
                raise IrrepsError(f"paths must hold triples (i_in, i_edge, i_out), got {got(path)}. {fix}")
        triples = _triples(first, second, out) if given is None else [tuple(path) for path in given]
        if not triples:
            raise IrrepsError(
                f"some irrep of irreps_out must lie in irreps_in x irreps_edge, got {first} x {second} for {out}. Add "
                f"degrees, or check parities (spherical harmonics of degree l have parity (-1)^l)."
            )
        if kind == "uu":
            for i, _, k in triples if paths is None else ():
                if first[i].mul != out[k].mul:
                    raise IrrepsError(
                        f"irreps_out must have the multiplicities of irreps_in with feature_mode='uu', got {first[i]} "
                        f"-> {out[k]}. Use 'uv', which mixes channels, or give paths."
                    )
        mode = {"uu": "uvu", "uv": "uvw"}[kind]
        super().__init__(first, second, out, [(*triple, mode, True) for triple in triples], **kwargs)
        self.feature_mode = kind


def _triples(first: Irreps, second: Irreps, out: Irreps) -> list[tuple[int, ...]]:
    """All paths, in1 outermost."""
    return [
        (i, j, k)
        for i, (_, ir1) in enumerate(first)
        for j, (_, ir2) in enumerate(second)
        for k, (_, ir) in enumerate(out)
        if ir in ir1 * ir2
    ]


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
        self,
        irreps_in1: Any,
        irreps_in2: Any = None,
        feature_mode: str = "uu",
        scaled: bool = False,
        **kwargs: Any,
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
