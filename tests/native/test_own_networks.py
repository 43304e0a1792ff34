"""Networks of users: a program has the numbers of the network, or its operators are refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import scatter, softmax

from eqlayers import Graph
from eqlayers.core.errors import ConfigError, IndexRangeError
from eqlayers.models import Potential
from eqlayers.native import NativePotential, deploy
from eqlayers.nn import TensorProductConv

from .conftest import SPECIES, STRUCTURES, batch_of, edges_of
from .test_stages import crystal, exchanges, shared

pytestmark = pytest.mark.kernels
Body = Callable[["Sums", Tensor, Tensor, Any, Any], Tensor]


class Sums(torch.nn.Module):
    """A network that is a function of sums of vectors over neighbours."""

    irreps_sh, cutoff, species = "0e", 4.0, tuple(SPECIES)

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body
        self.register_buffer("t", torch.arange(20.0).view(4, 5).cos())
        self.kinds = torch.nn.Embedding(4, 3)
        self.convolve = TensorProductConv("3x0e", "0e", "3x0e", [(0, 0, 0, "uvu", True)], shared_weights=False)

    def forward(self, atom_types: Tensor, edges: Any, graph: Any) -> Tensor:
        rows = edges.vectors * torch.exp(-edges.lengths)[:, None]
        x = rows.new_zeros(atom_types.shape[0], 3).index_add(0, graph.ends[1], rows)
        return self.body(self, x, atom_types, edges, graph)


def norms(x: Tensor) -> Tensor:
    """Squares of lengths."""
    return x.square().sum(1)


def neighbours(x: Tensor, graph: Any) -> Tensor:
    """Numbers of neighbours, integers."""
    ends = graph.ends[1]
    return torch.zeros(x.shape[0], dtype=torch.int64).index_add(0, ends, torch.ones_like(ends))


def with_view(s: Sums, x: Tensor, z: Tensor, e: Any, g: Any) -> Tensor:
    """A view of a tensor that is changed in place."""
    m = torch.ones(x.shape[0], dtype=x.dtype)
    a = m.unsqueeze(1)
    m.mul_(4)
    return norms(x * a)


def in_place(s: Sums, x: Tensor, z: Tensor, e: Any, g: Any) -> Tensor:
    """A fresh tensor that is changed in place."""
    return norms(x) * torch.ones_like(norms(x)).mul_(3)


EQUAL: dict[str, Body] = {
    "a size as a number": lambda s, x, z, e, g: norms(x) / x.shape[0] + x.shape[0] ** 1 * norms(x),
    "edges as a number": lambda s, x, z, e, g: norms(x) * g.num_edges,
    "integers in arithmetic": lambda s, x, z, e, g: norms(x) * (1 / (1 + neighbours(x, g))),
    "powers of integers": lambda s, x, z, e, g: norms(x) * (1.0 * (1 + neighbours(x, g))) ** -0.5,
    "integers and fractions": lambda s, x, z, e, g: norms(x) * (z * 0.5 + z / 2 + (1.5 - z)),
    "integers beside fractions": lambda s, x, z, e, g: norms(x) * torch.where(z < 1.5, 2.0, 0.5) * (z >= 0.5),
    "halves of truth": lambda s, x, z, e, g: norms(x) * ((x > 0).sum(1) / 2),
    "sums of everything": lambda s, x, z, e, g: norms(x) / (1 + x.square().sum()),
    "sums over axes": lambda s, x, z, e, g: norms(x) * torch.tanh(x.square().sum((0, 1))) + x.mean(),
    "truth of small numbers": lambda s, x, z, e, g: (
        norms(x) * (x[:, 0] * 1e-3).bool() + ((z > 0) | (z >= 1)) * norms(x)
    ),
    "another network in place": in_place,
    "another view in place": with_view,
    "negative rows": lambda s, x, z, e, g: norms(x) * s.t[z - 2].sum(1),
    "columns backwards": lambda s, x, z, e, g: (x @ s.t[:3].to(x.dtype))[:, -10:3].sum(1).square() + x[:, -1] ** 2,
    "transposed views": lambda s, x, z, e, g: x.t().reshape(-1).view(3, -1).sum(0) ** 2,
    "products of neighbours": lambda s, x, z, e, g: (x[:, None] @ x[:, :, None])[:, 0, 0],
    "norms": lambda s, x, z, e, g: torch.linalg.vector_norm(x + 1, dim=1) * torch.relu(x[:, 0]),
    "joined rows": lambda s, x, z, e, g: norms(torch.cat([x, x * 2], 1)) + norms(torch.cat([x, x * 2])[x.shape[0] :]),
    "softmax": lambda s, x, z, e, g: norms(torch.softmax(x, 1) * x) + torch.log_softmax(x, 1)[:, 0],
    "layer norm": lambda s, x, z, e, g: norms(F.layer_norm(x, (3,), s.t[0, :3].to(x.dtype)) * x),
    "the largest and least": lambda s, x, z, e, g: (x.max(1).values + x.amin(1)) ** 2 + x.min(1, True).values[:, 0],
    "the largest of a species": lambda s, x, z, e, g: norms(x * (s.kinds(z) - s.kinds(z).amax(0))),
    "variances": lambda s, x, z, e, g: x.var(1) + x.var(1, correction=0) + torch.logsumexp(x, 1),
    "activations": lambda s, x, z, e, g: norms(F.gelu(x) + F.softplus(x) + F.elu(x) + F.mish(x) + F.leaky_relu(x)),
    "cross products": lambda s, x, z, e, g: norms(torch.linalg.cross(x, F.normalize(x * x + 1, dim=1))),
    "angles": lambda s, x, z, e, g: torch.atan2(x[:, 0], x[:, 1] + 2) + torch.hypot(x[:, 0] + 1, x[:, 1]),
    "columns by species": lambda s, x, z, e, g: x.gather(1, (z % 3)[:, None])[:, 0] ** 2 + (z - 9) % 4 * norms(x),
    "remainders": lambda s, x, z, e, g: (
        norms(x) * ((z - 2.0) % 0.1 + 0.7 % -(z + 0.5) + (0 * x - 1).remainder(math.inf).relu()[:, 0].clamp(max=2))
    ),
    "sums of another type": lambda s, x, z, e, g: (
        norms(x) * s.t.float()[z].mul(1.1).sum(1, dtype=torch.float64) + x.sum().sum(0)
    ),
    "another not a number": lambda s, x, z, e, g: norms(torch.nan_to_num((z - z) / (z - z), nan=7.0)[:, None] * x),
    "not a number": lambda s, x, z, e, g: norms(x) * torch.nan_to_num(1 / (z - z).to(x.dtype)).sign(),
}
REFUSED: dict[str, tuple[Body, str]] = {
    "quotients of sizes": (lambda s, x, z, e, g: norms(x) * (g.num_edges / x.shape[0]), "size"),
    "half of a size": (lambda s, x, z, e, g: norms(x) * (x.shape[0] // 2), "size"),
    "squares of sizes": (lambda s, x, z, e, g: norms(x) / x.shape[0] ** 2, "size"),
    "all pairs of atoms": (lambda s, x, z, e, g: torch.tanh(x @ x.t()).sum(1), "products of them"),
    "factors of sums": (lambda s, x, z, e, g: norms(torch.rsub(x, 1.0, alpha=2)), "no formula reads 3 operands"),
    "rounded quotients": (lambda s, x, z, e, g: norms(torch.div(x, 0.3, rounding_mode="floor")), "rounding_mode"),
    "the last atom": (lambda s, x, z, e, g: norms(x * x[-1]), "there may be fewer rows"),
    "two edges": (lambda s, x, z, e, g: norms(x) * e.lengths[:2].sum(), "there may be fewer rows"),
    "pairs of one species": (
        lambda s, x, z, e, g: norms(x * (s.kinds(z) * (z[:, None] == z).sum(1, True))),
        "products of them",
    ),
    "bits": (lambda s, x, z, e, g: norms(x) * x.view(torch.int64).sum(1).sign(), "bits"),
    "sorted numbers": (lambda s, x, z, e, g: norms(x.sort(1).values), "aten.sort"),
    "sums of columns before": (lambda s, x, z, e, g: norms(x.cumsum(1)), r"aten.flip.default \(rev\)"),
    "short integers": (lambda s, x, z, e, g: norms(x) * z.to(torch.int32), "no program has numbers of torch.int32"),
}


def sums(x: Tensor, end: Tensor, rows: Tensor) -> Tensor:
    """Sums of rows for the atoms at an end of edges."""
    return x.new_zeros(x.shape[0], *rows.shape[1:]).index_add(0, end, rows)


def turned(g: Any) -> Any:
    """A graph whose edges are reversed."""
    return Graph(torch.stack([g.ends[1], g.ends[0]]), g.num_src, copy=False)


def there_and_back(s: Sums, x: Tensor, z: Tensor, e: Any, g: Any) -> Tensor:
    """A sum for senders that is at once read by senders."""
    weight = torch.exp(-e.lengths)[:, None].expand(-1, 3).contiguous()
    back = s.convolve(x, torch.ones_like(e.vectors[:, :1]), weight, turned(g))
    return norms(s.convolve(back, torch.ones_like(e.vectors[:, :1]), weight, g))


def by_kind(s: Sums, x: Tensor, z: Tensor, e: Any, g: Any) -> Tensor:
    """Sums of all edges for each species, by a layer."""
    ends = torch.stack([torch.arange(e.lengths.shape[0]), z.index_select(0, g.ends[1])])
    graph = Graph(ends, e.lengths.shape[0], 4, copy=False)
    of_kinds = s.convolve(e.vectors, torch.ones_like(e.vectors[:, :1]), torch.exp(-e.vectors), graph)
    return norms(of_kinds.index_select(0, z) * x)


#: Networks, and whether parts of a structure can run them.
PARTS: dict[str, tuple[Body, bool]] = {
    "a sum for senders that senders read": (there_and_back, True),
    "edges to other atoms": (lambda s, x, z, e, g: sums(x, g.ends[1], (g.ends[0] != g.ends[1]) * e.lengths), False),
    "edges to images": (lambda s, x, z, e, g: sums(x, g.ends[1], (g.ends[0] == g.ends[1]) * e.lengths), False),
    "half of the edges": (
        lambda s, x, z, e, g: sums(x, g.ends[1], (g.ends[0] < g.ends[1]) * torch.exp(-e.lengths)),
        False,
    ),
    "edges of the first atom": (lambda s, x, z, e, g: sums(x, g.ends[1], (g.ends[0] == 0) * e.lengths), False),
    "numbers of senders": (lambda s, x, z, e, g: sums(x, g.ends[1], e.lengths * g.ends[0]), False),
    "numbers of atoms in columns": (
        lambda s, x, z, e, g: norms(x) * torch.stack([torch.arange(x.shape[0]), z], 1).sum(1),
        False,
    ),
    "truth of senders as an index": (
        lambda s, x, z, e, g: sums(x, g.ends[1], norms(x).index_select(0, g.ends[0].bool().long())),
        False,
    ),
    "elements by senders": (lambda s, x, z, e, g: sums(x, g.ends[1], x.reshape(-1).index_select(0, g.ends[0])), False),
    "edges by senders": (lambda s, x, z, e, g: sums(x, g.ends[1], e.lengths.index_select(0, g.ends[0])), False),
    "rows of elements by receivers": (
        lambda s, x, z, e, g: norms(
            x.new_zeros(3 * x.shape[0]).index_add(0, g.ends[1], torch.exp(-e.lengths)).view(-1, 3)
        ),
        False,
    ),
    "sums for species": (
        lambda s, x, z, e, g: norms(x * x.new_zeros(4, 3).index_add(0, z, x).index_select(0, z)),
        False,
    ),
    "counts of species": (
        lambda s, x, z, e, g: norms(
            x * s.kinds(z) * x.new_zeros(4, 1).index_add(0, z, torch.ones_like(s.kinds(z)[:, :1])).index_select(0, z)
        ),
        False,
    ),
    "rows in brackets": (lambda s, x, z, e, g: norms(sums(x, g.ends[1], x[g.ends[0]] * x[g.ends[1]])), True),
    "sums of edges for species": (by_kind, False),
    "means that hardly matter": (lambda s, x, z, e, g: norms(x * (s.kinds(z) + 1e-6 * s.kinds(z).mean(0))), False),
    "softmax over edges of torch_geometric": (
        lambda s, x, z, e, g: norms(
            sums(x, g.ends[1], softmax(x[g.ends[0]], g.ends[1], None, x.shape[0]) * x[g.ends[0]])
        ),
        True,
    ),
    "means and largest ones of torch_geometric": (
        lambda s, x, z, e, g: norms(
            scatter(x[g.ends[0]], g.ends[1], 0, x.shape[0], "mean")
            + scatter(x[g.ends[0]], g.ends[1], 0, x.shape[0], "max")
        ),
        True,
    ),
    "whole numbers for senders": (
        lambda s, x, z, e, g: norms(x) * torch.ones_like(z).index_add(0, g.ends[0], z.index_select(0, g.ends[1])),
        False,
    ),
}


def both_of(body: Body, folder: Path) -> tuple[Potential, NativePotential]:
    """The potential and its program."""
    torch.manual_seed(0)
    potential = Potential(Sums(body), SPECIES, subtract_isolated=False).double().eval()
    return potential, NativePotential(deploy(potential, folder / "own.so").path)


@pytest.mark.parametrize("name", EQUAL)
def test_programs_have_the_numbers_of_the_network(name: str, tmp_path: Path) -> None:
    potential, native = both_of(EQUAL[name], tmp_path)
    for atoms in STRUCTURES.values():
        batch = batch_of(potential, atoms())
        for key, value in potential(batch).items():
            torch.testing.assert_close(native(batch)[key], value.detach(), rtol=1e-10, atol=1e-10, equal_nan=True)


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_a_structure(name: str, tmp_path: Path) -> None:
    """Many tiles, and processes; or a network that reads numbers of atoms has all of the structure."""
    body, divided = PARTS[name]
    potential, native = both_of(body, tmp_path)
    assert bool(native._library.eqlayers_stages(native._handle)) is divided
    atoms = crystal((4, 4, 4))
    batch = batch_of(potential, atoms)
    for key, value in potential(batch, ("energies", "forces")).items():
        close = {"rtol": 1e-9, "atol": 1e-10 * float(value.abs().max())}
        torch.testing.assert_close(native(batch, ("energies", "forces"))[key], value.detach(), **close)
    if divided:
        structure = (*edges_of(potential, atoms), torch.linspace(-1, 2, len(atoms), dtype=potential.dtype))
        assert {(how, gradients) for how, _, gradients in exchanges(native)} >= {(0, 0), (2, 1)}
        ranks = torch.arange(len(atoms)) % 3
        for one, other in zip(shared(native, ranks, structure), native.evaluate(*structure), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", REFUSED)
def test_operators_are_refused(name: str, tmp_path: Path) -> None:
    body, words = REFUSED[name]
    with pytest.raises(ConfigError, match=words):
        both_of(body, tmp_path)
    assert not list(tmp_path.iterdir())


def test_rows_outside_of_a_table(tmp_path: Path) -> None:
    """Of an index that depends on positions."""
    _, native = both_of(lambda s, x, z, e, g: norms(x) * s.t[(norms(x) * 1e6).long()].sum(1), tmp_path)
    with pytest.raises(IndexRangeError, match="an index of a row that the network computes must be in its table"):
        native(batch_of(native, STRUCTURES["ethanol"]()))


def test_programs_are_closed(tmp_path: Path) -> None:
    """Libraries of programs that are no longer used are not kept."""
    both_of(EQUAL["norms"], tmp_path)
    for _ in range(30):
        NativePotential(tmp_path / "own.so")
    maps = Path("/proc/self/maps").read_text()
    assert maps.count("potential.so") + maps.count("eqlayers-") < 30
