"""Benchmarked layers with their peers: harmonics and edge geometry (e3nn), symmetric contraction (MACE, einsum)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor
from torch.nn.functional import one_hot

from ... import nn
from ...core.graph import Graph
from ...irreps.algebra import wigner_3j
from ...layers.contraction.lower import Contraction, lowered, single_copies
from ...layers.harmonics.lower import edge_formula, harmonics_formula
from ..cases import Refusal
from ..roofline import operations
from .pair import Maker, Pair, atoms_and_edges, graph_of, species_of


def _degrees(lmax: int) -> list[int]:
    return list(range(lmax + 1))


def _theirs(lmax: int) -> Any:
    return o3.SphericalHarmonics(_degrees(lmax), True, "component")


def _vectors(lmax: int, rows: int) -> Tensor:
    """Random vectors of 1 to 5 Angstrom, ``[rows, 3]``."""
    vectors = torch.randn(rows, 3, dtype=torch.float64)
    return vectors * (1 + 4 * torch.rand(rows, 1, dtype=torch.float64)) / vectors.norm(dim=1, keepdim=True)


class OurGeometry(nn.EdgeGeometry):
    """EdgeGeometry that returns a tuple."""

    def forward(self, pos: Tensor, graph: Graph) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Vectors, lengths and harmonics of edges."""
        geometry = super().forward(pos, graph)
        return geometry.vectors, geometry.lengths, geometry.harmonics


class TheirGeometry(torch.nn.Module):
    """Edge geometry by plain torch and e3nn's harmonics."""

    def __init__(self, lmax: int) -> None:
        super().__init__()
        self.harmonics = _theirs(lmax)

    def forward(self, pos: Tensor, graph: Graph) -> tuple[Tensor, ...]:
        """Vectors, lengths and harmonics of edges."""
        vectors = pos.index_select(0, graph.edge_index[1]) - pos.index_select(0, graph.edge_index[0])
        return vectors, vectors.norm(dim=1), self.harmonics(vectors)


def _of_vectors(lmax: int, rows: int, layer: Any) -> dict[str, int]:
    base = harmonics_formula(tuple(_degrees(lmax)), True, "component")
    return {d: count * rows for d, count in operations(base, [True], [False], [True]).items()}


def _of_edges(lmax: int, rows: int, layer: Any) -> dict[str, int]:
    base = edge_formula(tuple(_degrees(lmax)), "component", "none", 1)
    counts = operations(base, [True, True], [False, False], [True, True, False, True])
    return {d: count * rows for d, count in counts.items()}


def _of_degrees(ours: Maker, theirs: Maker, moving: Callable[[Any, int], Tensor], **more: Any) -> Pair:
    """A pair for layers of degrees up to lmax; e3nn's harmonics are TorchScript, also timed compiled."""
    options: dict[str, Any] = {"fields": {"lmax": "counts"}, "argument": lambda options: options["lmax"]}
    options |= {"note": "TorchScript", "others": {"e3nn-compiled": theirs}, "of_edges": True}
    return Pair(ours, theirs, moving, **options, **more)


# -- symmetric contraction --------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def couplings(text: str, degree: int) -> tuple[tuple[o3.Irrep, np.ndarray], ...]:
    """Coupling tensors of ``degree`` factors from left to right, ``[2 l + 1, D, ..., D]``, in MACE's order."""
    irreps = o3.Irreps(text)
    unit = np.eye(irreps.dim)
    if degree == 1:
        return tuple((ir, unit[columns]) for columns, (_, ir) in zip(irreps.slices(), irreps, strict=True))
    coupled = [
        (ir, math.sqrt(ir.dim) * np.einsum("kab,a...,bj->k...j", wigner_3j(ir.l, left.l, right.l), tensor, unit[part]))
        for left, tensor in couplings(text, degree - 1)
        for part, (_, right) in zip(irreps.slices(), irreps, strict=True)
        for ir in left * right
    ]
    return tuple(sorted(coupled, key=lambda pair: (pair[0].l, pair[0].p)))


def _copies(options: dict[str, Any], key: str) -> o3.Irreps:
    return o3.Irreps([(options["channels"], ir) for _, ir in o3.Irreps(options[key])])


def _layer(layer_class: Callable[..., Any], options: dict[str, Any]) -> Any:
    return layer_class(_copies(options, "in"), _copies(options, "out"), options["correlation"], options["elements"])


class Einsum(nn.SymmetricContraction):
    """Symmetric contraction by einsum with dense coupling tensors, as MACE computes it."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        text = single_copies(self.irreps_in)
        for k, (_, ir) in enumerate(self.irreps_out):
            for degree in range(1, self.correlation + 1):
                tensors = [tensor for other, tensor in couplings(text, degree) if other == ir]
                shape = (ir.dim, *[o3.Irreps(text).dim] * degree, 1)  # zeros for one path where there is none
                dense = torch.from_numpy(np.stack(tensors, -1) if tensors else np.zeros(shape))
                self.register_buffer(f"dense_{k}_{degree}", dense, persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Features ``[N, C, D]`` and one-hot species ``[N, Z]`` to ``[N, sum of C (2 l + 1)]``."""
        known, results = dict(self.named_parameters()), []
        for k in range(len(self.irreps_out)):
            out, letters = None, "rstu"[: self.correlation - 1]
            for degree in range(self.correlation, 0, -1):
                last = "weights_max" if degree == self.correlation else f"weights.{self.correlation - 1 - degree}"
                u, w = self.get_buffer(f"dense_{k}_{degree}"), known[f"contractions.{k}.{last}"]
                if out is None:
                    out = torch.einsum(f"m{letters}ip,epc,bci,be->bcm{letters}", u, w, x, y)
                    continue
                mixed = torch.einsum(f"m{letters}p,epc,be->bcm{letters}", u, w, y) + out
                letters = letters[:-1]
                out = torch.einsum(f"bcm{letters}i,bci->bcm{letters}", mixed, x)
            assert out is not None
            results.append(out.flatten(1))
        return torch.cat(results, 1)


def _species(options: dict[str, Any], rows: int, device: torch.device) -> tuple[Any, ...]:
    """Random one-hot species."""
    return (one_hot(species_of(rows, options["elements"], device), options["elements"]).double(),)


def _mace(options: dict[str, Any]) -> Any:
    if find_spec("mace") is None:
        raise Refusal("mace-torch is not installed")
    from mace.modules.symmetric_contraction import SymmetricContraction

    def build(irreps_in: Any, irreps_out: Any, correlation: int, elements: int) -> Any:
        return SymmetricContraction(irreps_in, irreps_out, correlation, num_elements=elements)

    return _layer(build, options)


def _of_atoms(options: dict[str, Any], rows: int, layer: Any) -> dict[str, int]:
    """Operations of polynomials for each row, and of weight sums for each species, times channels."""
    mixings: Any = tuple(contraction.mixings for contraction in layer.contractions)
    irreps = str(_copies(options, "in")), str(_copies(options, "out"))
    base = lowered(Contraction(*irreps, options["correlation"], mixings, "mul_ir"))
    of_rows = operations(base.packed.by_species, [True, False], [False, True], [True])
    fold: Any = base.fold
    both = fold.operations + fold.vjp([True], [True] * len(fold.operands)).operations
    of_species = {"fwd": fold.operations, "fwd+bwd": both, "fwd+double": both}
    return {d: options["channels"] * (rows * of_rows[d] + options["elements"] * of_species[d]) for d in of_rows}


POLYNOMIALS: dict[str, Pair] = {
    "SphericalHarmonics": _of_degrees(
        lambda lmax: nn.SphericalHarmonics(_degrees(lmax), True, "component"), _theirs, _vectors, operations=_of_vectors
    ),
    "EdgeGeometry": _of_degrees(
        lambda lmax: OurGeometry(_degrees(lmax), "component"),
        TheirGeometry,
        lambda lmax, rows: atoms_and_edges(rows)[0],
        further=lambda lmax, rows, device: (graph_of(rows, device),),
        operations=_of_edges,
    ),
    "SymmetricContraction": Pair(
        lambda options: _layer(nn.SymmetricContraction, options),
        lambda options: _layer(Einsum, options),
        lambda options, rows: torch.randn(rows, options["channels"], o3.Irreps(options["in"]).dim, dtype=torch.float64),
        _species,
        peer="einsum",
        note="dense tensors",
        others={"mace-torch": _mace},
        fixed=True,
        part=64,  # dense intermediates have a megabyte an atom
        fields={"in": "text", "out": "text", **dict.fromkeys(("channels", "elements", "correlation"), "count")},
        argument=lambda options: options,
        operations=_of_atoms,
    ),
}
