"""Edges from positions: against plain torch and e3nn, with forces, stress and periodic cells."""

import copy
import itertools
import pickle
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import eqlayers as eq
from eqlayers.errors import ConfigError, DeviceError, DTypeError, IndexRangeError, IrrepsError, ShapeError
from eqlayers.nn import EdgeGeometry, EdgeVectors
from eqlayers.testing import check_derivatives
from tests.each import each, refused

EPS = torch.finfo(torch.float64).eps
EDGES = torch.tensor([[0, 1, 2, 3, 1, 2, 4, 0], [1, 0, 3, 2, 2, 1, 0, 4]])
STEPS = torch.tensor([[0, 0, 0], [0, 0, 0], [1, 0, 0], [-1, 0, 0], [0, -1, 2], [0, 1, -2], [1, 1, 1], [-1, -1, -1]])
CELL = torch.tensor([[4.0, 0.0, 0.0], [1.0, 5.0, 0.0], [-0.5, 0.3, 6.0]], dtype=torch.float64)
#: 2 l (l + 1) + 9 l + 4 roundings of the harmonics of l = 3, see test_harmonics.py, and 8 of the vector
DEPTH = 63


def positions(count: int = 5) -> Tensor:
    return torch.randn(count, 3, dtype=torch.float64) * 2


def plain(
    irreps: Any, pos: Tensor, edges: Tensor, shift: Tensor | float = 0.0, normalization: str = "component"
) -> Any:
    """The definition in torch's operations and e3nn's harmonics."""
    vectors = pos[edges[1]] - pos[edges[0]] + shift
    lengths = vectors.norm(dim=-1)
    return EdgeVectors(
        vectors, lengths, vectors / lengths[:, None], o3.spherical_harmonics(irreps, vectors, True, normalization)
    )


def energy(edges: EdgeVectors) -> Tensor:
    """A function of everything, with different weights."""
    total = torch.zeros((), dtype=edges.vectors.dtype)
    for part in edges:
        weight = torch.linspace(0.5, 1.5, part.numel(), dtype=part.dtype).reshape(part.shape)
        total = total + (weight * part).sin().sum()
    return total


def close(ours: Tensor, theirs: Tensor, depth: int = DEPTH) -> None:
    ours, theirs = ours.detach(), theirs.detach()
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() <= 8 * depth * EPS * max(1.0, float(theirs.abs().max()))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("normalization", ["component", "norm", "integral"])
@pytest.mark.parametrize("irreps", ["0e + 1o + 2e + 3o", [1], "2x1e + 2e"], ids=str)
def test_values_and_forces_without_a_cell(irreps: Any, normalization: str) -> None:
    pos = positions().requires_grad_()
    ours = EdgeGeometry(irreps, normalization)(pos, EDGES)
    theirs = plain(irreps, pos, EDGES, normalization=normalization)
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)
    forces = [torch.autograd.grad(energy(edges), pos)[0] for edges in (ours, theirs)]
    close(*forces)


def crystal(kind: str) -> tuple[Tensor, dict[str, Any], Any]:
    """Positions, what else the layer takes, and the shifts of the definition as a function of that."""
    if kind == "vector":
        return positions(), {"shifts": STEPS.double() @ CELL}, lambda more: more["shifts"]
    if kind == "cell":
        return positions(), {"shifts": STEPS, "cell": CELL}, lambda more: STEPS.double() @ more["cell"]
    if kind == "one of a batch":
        more = {"shifts": STEPS.double(), "cell": CELL[None]}
        return positions(), more, lambda more: STEPS.double() @ more["cell"][0]
    batch = torch.tensor([1, 1, 0, 0, 1])
    steps = STEPS * (batch[EDGES[0]] == batch[EDGES[1]])[:, None]
    more = {"shifts": steps, "cell": torch.stack([CELL, 2 * CELL.T]), "batch": batch}
    return positions(), more, lambda more: torch.einsum("ei,eij->ej", steps.double(), more["cell"][batch[EDGES[0]]])


CRYSTALS = ("vector", "cell", "one of a batch", "cells")


@pytest.mark.parametrize("direction", ["src_to_dst", "dst_to_src"])
@pytest.mark.parametrize("kind", CRYSTALS)
def test_forces_and_derivatives_by_the_cell(kind: str, direction: str) -> None:
    pos, more, shift = crystal(kind)
    pos.requires_grad_()
    moved = "cell" if "cell" in more else "shifts"
    more[moved].requires_grad_()
    backend = None if direction == "src_to_dst" else "torch"  # the other would be compiled as well
    ours = EdgeGeometry("0e + 1o + 2e", direction=direction, backend=backend)(pos, EDGES, **more)
    sign = 1 if direction == "src_to_dst" else -1
    theirs = plain("0e + 1o + 2e", sign * pos, EDGES, sign * shift(more))
    for mine, other in zip(ours, theirs, strict=True):
        close(mine, other)
    both = [torch.autograd.grad(energy(edges), [pos, more[moved]]) for edges in (ours, theirs)]
    for mine, other in zip(*both, strict=True):
        close(mine, other)


@pytest.mark.parametrize("several", [False, True])
def test_stress_is_the_gradient_by_a_strain(several: bool) -> None:
    """Interatomic potentials define stress so: positions and cell are both deformed."""
    pos, more, shift = crystal("cells" if several else "cell")
    strain = torch.zeros((2, 3, 3) if several else (3, 3), dtype=torch.float64, requires_grad=True)
    symmetric = 0.5 * (strain + strain.transpose(-1, -2))
    of_atoms = symmetric[more["batch"]] if several else symmetric.expand(5, 3, 3)
    pos = pos + torch.einsum("ni,nij->nj", pos, of_atoms)
    more["cell"] = more["cell"] + more["cell"] @ symmetric
    ours = EdgeGeometry("0e + 1o + 2e + 3o")(pos, EDGES, **more)
    theirs = plain("0e + 1o + 2e + 3o", pos, EDGES, shift(more))
    stress = [torch.autograd.grad(energy(edges), strain, retain_graph=True)[0] for edges in (ours, theirs)]
    assert stress[1].abs().max() > 1e-2
    close(*stress)


def test_a_crystal_of_one_atom() -> None:
    """The six nearest images of an atom: forces vanish, and the sum of each harmonic is that of the cubic group."""
    steps = torch.tensor([s for s in itertools.product((-1, 0, 1), repeat=3) if sum(map(abs, s)) == 1])
    pos, cell = torch.zeros(1, 3, dtype=torch.float64, requires_grad=True), 3.0 * torch.eye(3, dtype=torch.float64)
    edges = EdgeGeometry([0, 1, 2, 3, 4])(pos, torch.zeros(2, 6, dtype=torch.int64), steps, cell)
    close(edges.lengths, torch.full((6,), 3.0, dtype=torch.float64))
    close(edges.vectors, 3.0 * steps.double())
    total = edges.harmonics.sum(0)
    assert total[0] == 6
    close(total[1:16], torch.zeros(15, dtype=torch.float64))
    assert total[16:].abs().max() > 1
    (force,) = torch.autograd.grad(energy(edges), pos)
    assert force.abs().max() == 0  # both ends of every edge are this atom


def test_derivatives_to_third_order() -> None:
    geometry, batch = EdgeGeometry("0e + 1o + 2e", "norm", backend="torch"), torch.tensor([0, 0, 1])
    edges, steps = torch.tensor([[0, 1, 2], [1, 0, 2]]), torch.tensor([[0, 1, 0], [0, -1, 0], [1, 0, 1]])
    pos = torch.tensor([[0.1, 0.2, -0.1], [2.0, -1.5, 1.0], [0.3, 0.0, 1.0]], dtype=torch.float64)
    inputs = [pos.requires_grad_(), torch.stack([CELL, CELL.flip(0)]).requires_grad_()]

    def results(pos: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        return tuple(geometry(pos, edges, steps, cell, batch))

    check_derivatives(results, inputs, order=3, max_elements=4)
    assert torch.autograd.gradcheck(results, inputs)
    assert torch.autograd.gradgradcheck(results, inputs, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_edges_of_length_zero(dtype: torch.dtype) -> None:
    pos = positions(3).to(dtype)
    pos[1] = pos[0]
    pos.requires_grad_()
    edges = EdgeGeometry([0, 1], backend="torch" if dtype == torch.float64 else None)(
        pos, torch.tensor([[0, 1], [1, 2]])
    )
    assert edges.lengths[0] == 0
    assert edges.directions[0].tolist() == [0.0] * 3
    assert edges.harmonics[0].tolist() == [1.0] + [0.0] * 3
    assert edges.lengths[1] > 0
    total = edges.lengths[0] + edges.directions[0].sum() + edges.harmonics[0].sum()
    for _ in range(3):
        (slope,) = torch.autograd.grad(total, pos, create_graph=True, materialize_grads=True)
        assert torch.equal(slope, torch.zeros_like(pos))
        total = slope.sum()


def test_graphs_and_kinds_of_edges() -> None:
    geometry, pos = EdgeGeometry([0, 1]), positions()
    reference = geometry(pos, EDGES)
    for edges in (EDGES.int(), eq.Graph(EDGES, 5), eq.Graph(EDGES, 5, 5), EDGES.T.contiguous().T):
        assert all(torch.equal(a, b) for a, b in zip(geometry(pos, edges), reference, strict=True))
    wide = torch.zeros(5, 7, dtype=torch.float64)
    wide[:, 2:5] = pos
    assert torch.equal(geometry(wide[:, 2:5], EDGES).harmonics, reference.harmonics)
    twin = pickle.loads(pickle.dumps(copy.deepcopy(geometry)))
    assert torch.equal(twin(pos, EDGES).harmonics, reference.harmonics)
    half = geometry(pos.half(), EDGES)
    assert {part.dtype for part in half} == {torch.float16}
    assert torch.equal(half.lengths, geometry(pos.half().float(), EDGES).lengths.half())


@pytest.mark.kernels
def test_traced_and_compiled() -> None:
    geometry, pos = EdgeGeometry("0e + 1o", direction="dst_to_src"), positions()
    traced = torch.jit.trace(geometry, (pos, EDGES[:, :3], STEPS[:3], CELL))
    compiled = torch.compile(geometry, fullgraph=True, backend="aot_eager")
    for function in (traced, compiled):
        for mine, other in zip(function(pos, EDGES, STEPS, CELL), geometry(pos, EDGES, STEPS, CELL), strict=True):
            assert torch.equal(mine, other)


@each("atoms", [0, 1, 5])
@each("kind", ["none", *CRYSTALS])
def test_no_edges(kind: str, atoms: int) -> None:
    more = {} if kind == "none" else crystal(kind)[1]
    more = {name: t[:0] if name == "shifts" else t for name, t in more.items()}
    if "batch" in more:
        more["batch"] = torch.zeros(atoms, dtype=torch.int64)
    pos = positions(atoms).requires_grad_()
    edges = EdgeGeometry([0, 1, 2])(pos, torch.zeros(2, 0, dtype=torch.int64), **more)
    assert [tuple(part.shape) for part in edges] == [(0, 3), (0,), (0, 3), (0, 9)]
    (force,) = torch.autograd.grad(energy(edges), pos)
    assert torch.equal(force, torch.zeros(atoms, 3, dtype=torch.float64))


META = torch.zeros(2, 8, device="meta", dtype=torch.int64)
POS, ONES = torch.ones(5, 3), torch.ones(8, 3)


test_bad_input = refused(
    "arguments, error, message",
    [
        ((POS[:4], EDGES), IndexRangeError, r"must lie in \[0, 4\)"),
        ((POS, eq.Graph(EDGES, 6)), ShapeError, "the graph must have 5 senders"),
        ((POS, META), DeviceError, "edge_index must be on the device of pos"),
        ((POS, EDGES, STEPS), DTypeError, "without a cell, got torch.int64"),
        ((POS, EDGES, ONES.double()), DTypeError, "shifts must have the dtype of pos"),
        ((POS, EDGES, None, torch.eye(3)), ShapeError, "shifts must be .* where there is a cell, got None"),
        ((POS, EDGES, STEPS, torch.eye(3).double()), DTypeError, "cell must have the dtype of pos"),
        ((POS, EDGES, STEPS, torch.ones(2, 3, 3)), ShapeError, r"batch must be \[5\].*got None"),
        ((POS, EDGES, STEPS, torch.ones(2, 3, 3), torch.full((5,), 2)), IndexRangeError, r"batch must lie in \[0, 2\)"),
    ],
    lambda arguments: EdgeGeometry([0, 1])(*arguments),
)


def test_options() -> None:
    layer = EdgeGeometry([0, 1], "norm", "1e", direction="dst_to_src", backend="torch")
    assert repr(layer) == "EdgeGeometry(1x1e -> 1x0e+1x1e | dst_to_src, norm, backend torch)"
    for bad in ({"normalization": "x"}, {"direction": "up"}, {"backend": "foo"}):
        with pytest.raises(ConfigError, match=f"{next(iter(bad))} must be one of"):
            EdgeGeometry([0, 1], **bad)
    with pytest.raises(IrrepsError, match="parities"):
        EdgeGeometry("1o + 1e")
