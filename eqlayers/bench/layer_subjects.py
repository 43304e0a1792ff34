"""The layers of `eqlayers bench layers`: this package's, the peers', and the float64 definition of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from e3nn import o3
from torch import Tensor
from torch.nn.functional import one_hot

from .. import nn
from ..algebra import wigner_3j
from ..functional.product import chosen
from ..graph import Graph
from ..lowering.spherical import edge_formula, harmonics_formula
from ..lowering.symmetric import Contraction, lowered, single_copies
from .implementation import OURS, Refusal, default_dtype
from .layer_cases import LayerCase
from .peers import NO_DOUBLE
from .roofline import operations

Outputs = tuple[Tensor, ...]
#: Rows of a contraction whose float64 definition is computed at a time: dense intermediates have a megabyte an atom.
PART = 64
SPACING, SHAKE = 2.0, 0.4  # of atoms on a cubic lattice, Angstrom
DEGREE = 15  # edges of a node


@dataclass(frozen=True)
class Candidate:
    """A layer made ready: this package's, a peer's, or the definition.

    Attributes:
        name: Of a peer, or 'eqlayers'.
        fn: From the moving operand to all results.
        moving: What the first gradient is by: vectors, positions or features.
        weights: Weights, in the order that all candidates of a case have.
        note: What runs inside.
        cannot: Direction to the reason why it has none.
        first, last: The rows of the moving operand and of the results that it computes; None for all from the first.
    """

    name: str
    fn: Callable[[Tensor], Outputs]
    moving: Tensor
    weights: tuple[Tensor, ...] = ()
    note: str = ""
    cannot: tuple[tuple[str, str], ...] = ()
    first: int = 0
    last: int | None = None

    @property
    def rows(self) -> slice:
        """First to last."""
        return slice(self.first, self.last)


Makers = dict[str, Callable[[], Candidate]]


@dataclass(frozen=True)
class Subject:
    """One case with everybody who can compute it.

    Attributes:
        makers: By name, this package's first; each may raise :class:`Refusal`.
        exact: The float64 definition, in parts of the rows.
        constants: Operands without gradient: indices, species.
        operations: Sums and products that this package's formulas have, by direction.
    """

    makers: Makers
    exact: Callable[[], Iterator[Candidate]]
    constants: tuple[Tensor, ...]
    operations: dict[str, int]


def leaf(value: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy that requires a gradient."""
    return value.detach().to(dtype or value.dtype, copy=True).requires_grad_()


def build(case: LayerCase, device: torch.device, backend: str | None = None) -> Subject:
    """Draw the operands of a case, and prepare everybody; random numbers depend on the case alone."""
    torch.manual_seed(0)
    kinds = {"SphericalHarmonics": _harmonics, "EdgeGeometry": _edges, "SymmetricContraction": _contraction}
    return kinds[case.layer](case, getattr(torch, case.dtype), device, backend)


def _compiled(candidate: Candidate) -> Candidate:
    """Compile by torch.compile."""
    torch.compiler.reset()  # a graph of an earlier case must not count towards the limit of recompilations
    fn: Callable[[Tensor], Outputs] = torch.compile(candidate.fn, dynamic=False)
    return Candidate("e3nn-compiled", fn, candidate.moving, note="inductor", cannot=(("fwd+double", NO_DOUBLE),))


# -- spherical harmonics, edges ---------------------------------------------------------------------------------------


def _theirs(lmax: int, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    with default_dtype(dtype):
        layer: Callable[[Tensor], Tensor] = o3.SphericalHarmonics(list(range(lmax + 1)), True, "component")
    return layer


def _harmonics(case: LayerCase, dtype: torch.dtype, device: torch.device, backend: str | None) -> Subject:
    """Harmonics of vectors of 1 to 5 Angstrom."""
    lmax = case.options["lmax"]
    vectors = torch.randn(case.rows, 3, dtype=torch.float64)
    vectors *= (1 + 4 * torch.rand(case.rows, 1, dtype=torch.float64)) / vectors.norm(dim=1, keepdim=True)
    given = vectors.to(device, dtype)

    def own() -> Candidate:
        layer = nn.SphericalHarmonics(list(range(lmax + 1)), True, "component", backend=backend)
        return Candidate(OURS, lambda x: (layer(x),), leaf(given), note=chosen(device.type, dtype, backend, ""))

    def theirs(dtype: torch.dtype) -> Candidate:
        layer = _theirs(lmax, dtype)
        return Candidate("e3nn", lambda x: (layer(x),), leaf(given, dtype), note="TorchScript")

    base = harmonics_formula(tuple(range(lmax + 1)), True, "component")
    return _beside_e3nn(own, theirs, dtype, (), _times(operations(base, [True], [False], [True]), case.rows))


def _beside_e3nn(
    own: Callable[[], Candidate],
    theirs: Callable[[torch.dtype], Candidate],
    dtype: torch.dtype,
    constants: tuple[Tensor, ...],
    work: dict[str, int],
) -> Subject:
    makers: Makers = {OURS: own, "e3nn": partial(theirs, dtype), "e3nn-compiled": lambda: _compiled(theirs(dtype))}
    return Subject(makers, lambda: iter([theirs(torch.float64)]), constants, work)


def _times(counts: dict[str, int], factor: int) -> dict[str, int]:
    return {direction: count * factor for direction, count in counts.items()}


def atoms_and_edges(edges: int) -> tuple[Tensor, Tensor]:
    """Positions on a shaken lattice, float64, and random pairs of different atoms, sorted by receiver."""
    nodes = max(2, math.ceil(edges / DEGREE))
    side = math.ceil(nodes ** (1 / 3))
    lattice = torch.cartesian_prod(*[torch.arange(side, dtype=torch.float64)] * 3)[:nodes] * SPACING
    pos = lattice + SHAKE * (torch.rand(nodes, 3, dtype=torch.float64) - 0.5)
    dst = torch.randint(nodes, (edges,)).sort().values
    src = (dst + 1 + torch.randint(nodes - 1, (edges,))) % nodes
    return pos, torch.stack([src, dst])


def _edges(case: LayerCase, dtype: torch.dtype, device: torch.device, backend: str | None) -> Subject:
    lmax = case.options["lmax"]
    pos, index = atoms_and_edges(case.rows)
    given, index = pos.to(device, dtype), index.to(device)
    graph = Graph(index, len(pos), len(pos))

    def own() -> Candidate:
        layer = nn.EdgeGeometry(list(range(lmax + 1)), "component", backend=backend)

        def fn(pos: Tensor) -> Outputs:
            found = layer(pos, graph)
            return found.vectors, found.lengths, found.harmonics

        return Candidate(OURS, fn, leaf(given), note=chosen(device.type, dtype, backend, ""))

    def theirs(dtype: torch.dtype) -> Candidate:
        layer = _theirs(lmax, dtype)

        def fn(pos: Tensor) -> Outputs:
            vectors = pos.index_select(0, index[1]) - pos.index_select(0, index[0])
            return vectors, vectors.norm(dim=1), layer(vectors)

        return Candidate("e3nn", fn, leaf(given, dtype), note="TorchScript")

    base = edge_formula(tuple(range(lmax + 1)), "component", "none", 1)
    work = operations(base, [True, True], [False, False], [True, True, False, True])
    return _beside_e3nn(own, theirs, dtype, (index,), _times(work, case.rows))


# -- symmetric contraction --------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def couplings(text: str, degree: int) -> tuple[tuple[o3.Irrep, np.ndarray], ...]:
    """All couplings of single irreps from left to right, ``[2 l + 1, D, ..., D]``, in MACE's order; not symmetrised."""
    irreps = o3.Irreps(text)
    unit = np.eye(irreps.dim)
    if degree == 1:
        return tuple((ir, unit[columns]) for columns, (_, ir) in zip(irreps.slices(), irreps, strict=True))
    found = [
        (ir, math.sqrt(ir.dim) * np.einsum("kab,a...,bj->k...j", wigner_3j(ir.l, left.l, right.l), tensor, unit[part]))
        for left, tensor in couplings(text, degree - 1)
        for part, (_, right) in zip(irreps.slices(), irreps, strict=True)
        for ir in left * right
    ]
    return tuple(sorted(found, key=lambda pair: (pair[0].l, pair[0].p)))


def einsum_contraction(
    tensors: Sequence[Sequence[Tensor]], weights: Sequence[Sequence[Tensor]], x: Tensor, y: Tensor
) -> Tensor:
    """The symmetric contraction with dense tensors, from the highest degree down, as MACE computes it.

    Args:
        tensors: For every irrep of the result, ``[2 l + 1, D, ..., D, P]`` of the degrees 1, 2, ...
        weights: For every irrep of the result, ``[Z, P, C]`` of the same degrees.
        x: ``[N, C, D]``.
        y: ``[N, Z]``.

    Returns:
        ``[N, sum of C (2 l + 1)]``.
    """
    results = []
    for us, ws in zip(tensors, weights, strict=True):
        letters = "rstu"[: len(us) - 1]
        out = torch.einsum(f"m{letters}ip,epc,bci,be->bcm{letters}", us[-1], ws[-1], x, y)
        for u, w in zip(reversed(us[:-1]), reversed(ws[:-1]), strict=True):
            mixed = torch.einsum(f"m{letters}p,epc,be->bcm{letters}", u, w, y) + out
            letters = letters[:-1]
            out = torch.einsum(f"bcm{letters}i,bci->bcm{letters}", mixed, x)
        results.append(out.flatten(1))
    return torch.cat(results, 1)


def _contraction(case: LayerCase, dtype: torch.dtype, device: torch.device, backend: str | None) -> Subject:
    options = case.options
    channels, elements, correlation = options["channels"], options["elements"], options["correlation"]
    irreps_in, irreps_out = (o3.Irreps([(channels, ir) for _, ir in o3.Irreps(options[k])]) for k in ("in", "out"))
    layer = nn.SymmetricContraction(irreps_in, irreps_out, correlation, elements, backend=backend).to(device, dtype)
    names = [name for name, parameter in layer.named_parameters() if parameter.requires_grad]
    text = single_copies(irreps_in)
    x = torch.randn(case.rows, channels, layer.dim, dtype=torch.float64).to(device, dtype)
    y = one_hot(torch.randint(elements, (case.rows,)), elements).to(device, dtype)

    def own() -> Candidate:
        known = dict(layer.named_parameters())
        weights = tuple(known[name] for name in names)
        return Candidate(OURS, lambda x: (layer(x, y),), leaf(x), weights, chosen(device.type, dtype, backend, ""))

    def by_einsum(dtype: torch.dtype, first: int = 0, last: int | None = None) -> Candidate:
        known = {name: leaf(parameter, dtype) for name, parameter in layer.named_parameters()}
        weights = [
            [known[_name(k, degree, correlation)] for degree in range(1, correlation + 1)]
            for k in range(len(irreps_out))
        ]
        dense = [
            [_dense(text, ir, degree, x.device, dtype) for degree in range(1, correlation + 1)] for _, ir in irreps_out
        ]
        fn = partial(_einsum_of, dense, weights, y[first:last].to(dtype))
        moving, wanted = leaf(x[first:last], dtype), tuple(known[name] for name in names)
        return Candidate("einsum", fn, moving, wanted, "dense tensors", first=first, last=last)

    def exact() -> Iterator[Candidate]:
        for start in range(0, case.rows, PART):
            yield by_einsum(torch.float64, start, start + PART)

    mixings: Any = tuple(one.mixings for one in layer.contractions)
    base = lowered(Contraction(str(irreps_in), str(irreps_out), correlation, mixings, "mul_ir"))
    of_rows = operations(base.packed.by_species, [True, False], [False, True], [True])
    of_species = _fold_operations(base.fold)
    work = {d: channels * (case.rows * of_rows[d] + elements * of_species[d]) for d in of_rows}
    makers: Makers = {
        OURS: own,
        "mace-torch": lambda: _mace(layer, names, leaf(x), y),
        "einsum": partial(by_einsum, dtype),
    }
    return Subject(makers, exact, (y,), work)


def _einsum_of(dense: Any, weights: Any, species: Tensor, x: Tensor) -> Outputs:
    return (einsum_contraction(dense, weights, x, species),)


def _fold_operations(fold: Any) -> dict[str, int]:
    """Operations from weights to coefficients: the gradient is linear, so the second derivative needs it once, too."""
    forward = fold.operations
    both = forward + fold.gradient([True], [True] * len(fold.operands)).operations
    return {"fwd": forward, "fwd+bwd": both, "fwd+double": both}


def _name(k: int, degree: int, correlation: int) -> str:
    """MACE's name of the weights of an irrep of the result and a degree."""
    last = "weights_max" if degree == correlation else f"weights.{correlation - 1 - degree}"
    return f"contractions.{k}.{last}"


def _dense(text: str, ir: o3.Irrep, degree: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """``[2 l + 1, D, ..., D, P]``; zeros for one path where there is none."""
    found = [tensor for other, tensor in couplings(text, degree) if other == ir]
    shape = (ir.dim, *[o3.Irreps(text).dim] * degree, 1)
    return torch.from_numpy(np.stack(found, -1) if found else np.zeros(shape)).to(device, dtype)


def _mace(layer: nn.SymmetricContraction, names: Sequence[str], x: Tensor, y: Tensor) -> Candidate:
    """MACE's layer with the same weights and coupling tensors."""
    if find_spec("mace") is None:
        raise Refusal("mace-torch is not installed")
    from mace.modules.symmetric_contraction import SymmetricContraction

    with default_dtype(x.dtype):
        theirs = SymmetricContraction(
            layer.irreps_in, layer.irreps_out, layer.correlation, num_elements=layer.num_elements
        ).to(x.device)
    theirs.load_state_dict(layer.state_dict())
    known = dict(theirs.named_parameters())
    return Candidate("mace-torch", lambda x: (theirs(x, y),), x, tuple(known[name] for name in names), "opt_einsum")
