"""Convolutions in the frames of edges: dense products' numbers, parity, any frame about y, and their options."""

from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor

import eqlayers as eq
from eqlayers.irreps.algebra import as_irreps, representation_matrix
from eqlayers.nn import EdgeFrame, SO2Convolution, SO2Linear, TensorProduct, TensorProductConv
from eqlayers.testing import check_derivatives, random_orthogonal
from eqlayers_kernels.triton import availability
from tests.cases import default_dtype

EPS = torch.finfo(torch.float64).eps
BOTH = "2x0e + 1x0o + 2x1o + 1x1e + 1x2e + 2x2o"


def made(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=made(seed), dtype=torch.float64)


def about_y(angle: Tensor) -> Tensor:
    zero, one = torch.zeros_like(angle), torch.ones_like(angle)
    rows = [angle.cos(), zero, angle.sin(), zero, one, zero, -angle.sin(), zero, angle.cos()]
    return torch.stack(rows, -1).unflatten(-1, (3, 3))


def frames(vectors: Tensor, lmax: int, seed: int = 0) -> Tensor:
    """Blocks D^l that take each vector to y and turn about y by a random angle: by no code of the layers."""
    second = normal(*vectors.shape, seed=seed + 100)
    y = torch.nn.functional.normalize(vectors, dim=-1)
    x = torch.nn.functional.normalize(torch.linalg.cross(second, y), dim=-1)
    rotations = torch.stack([x, y, torch.linalg.cross(x, y)], -2)
    degrees = [(l, 1) for l in range(lmax + 1)]
    rows = [torch.cat([representation_matrix([(1, d)], r).flatten() for d in degrees]) for r in rotations]
    return torch.stack(rows) if rows else vectors.new_zeros(0, sum((2 * l + 1) ** 2 for l, _ in degrees))


def graph(nodes: int = 4, edges: int = 10) -> tuple[Tensor, Tensor]:
    index = torch.randint(0, nodes, (2, edges), generator=made(3))
    return index, normal(edges, 3, seed=4)


def products(irreps_in: Any, irreps_edge: Any, irreps_out: Any, mode: str = "uvw") -> list[tuple[Any, ...]]:
    first, second, out = (as_irreps(irreps) for irreps in (irreps_in, irreps_edge, irreps_out))
    return [
        (i, j, k, mode, True)
        for i, (mul, a) in enumerate(first)
        for j, (_, b) in enumerate(second)
        for k, (mul_out, c) in enumerate(out)
        if c in a * b and (mode == "uvw" or mul == mul_out)
    ]


def close(found: Tensor, wanted: Tensor, bound: float = 1e-12) -> None:
    assert found.shape == wanted.shape
    size = max(1.0, float(wanted.detach().abs().max()))
    assert float(wanted.detach().abs().max()) > 1e-2
    assert float((found - wanted).detach().abs().max()) <= bound * size


@pytest.mark.thinned(2)
@pytest.mark.parametrize("l", range(1, 7))
def test_equals_the_dense_product_of_that_degree(l: int) -> None:
    p, q = ("e", "o") if l % 2 == 0 else ("o", "e")
    irreps_in, irreps_out = f"1x0e + 2x{l}{p} + 1x{l}{q} + 1x{l - 1}{q}", f"1x{l - 1}{p} + 2x{l}{q} + 1x{l}{p}"
    sh = o3.Irreps.spherical_harmonics(2 * l)
    dense = TensorProductConv(irreps_in, sh, irreps_out, products(irreps_in, sh, irreps_out), backend="torch").double()
    conv = SO2Convolution.from_tensor_product(dense)
    assert (conv.parity, conv.weight.dtype, conv.weight_numel) == ("o3", torch.float64, dense.weight_numel)
    index, vectors = graph()
    x = normal(4, dense.irreps_in1.dim)
    harmonics = eq.functional.spherical_harmonics(range(2 * l + 1), vectors, True, "component")
    close(conv(x, frames(vectors, l), index), dense(x, harmonics, edge_index=index))
    close(conv(x, EdgeFrame(l)(vectors), index), dense(x, harmonics, edge_index=index))


@pytest.mark.parametrize("normalization", ["norm", "integral"])
def test_equals_products_along_channels_with_a_linear_map_behind(normalization: str) -> None:
    """Products of e3nn's layers; harmonics of other normalisations; receivers that are not the senders."""
    sh = o3.Irreps.spherical_harmonics(3)
    middle = o3.Irreps("2x0e + 1x1o + 2x1o + 2x1e + 1x2e + 2x2e")
    with default_dtype(torch.float64):
        tp = o3.TensorProduct("2x0e + 1x1o + 2x2e", sh, middle, products("2x0e + 1x1o + 2x2e", sh, middle, "uvu"))
        linear = o3.Linear(middle, "3x0e + 2x1o + 1x1e + 1x2e")
    conv = SO2Convolution.from_tensor_product(tp, linear, normalization=normalization)
    index, vectors = graph()
    x = normal(4, tp.irreps_in1.dim)
    harmonics = eq.functional.spherical_harmonics(range(4), vectors, True, normalization)
    messages = linear(tp(x[index[0]], harmonics))
    wanted = x.new_zeros(6, linear.irreps_out.dim).index_add(0, index[1], messages)
    close(conv(x, frames(vectors, 2), index, num_nodes=6), wanted)


def test_equals_a_product_without_parity() -> None:
    irreps_in, sh, irreps_out = "2x0e + 1x1e + 2x2e", "0e + 1e + 2e + 3e", "1x0e + 2x1e + 1x2e"
    dense = TensorProduct(irreps_in, sh, irreps_out, products(irreps_in, sh, irreps_out), layout="ir_mul").double()
    conv = SO2Convolution.from_tensor_product(dense)
    assert (conv.parity, conv.layout) == ("so3", "ir_mul")
    index, vectors = graph()
    x = normal(4, dense.irreps_in1.dim)
    harmonics = eq.functional.spherical_harmonics(range(4), vectors, True, "component")
    wanted = x.new_zeros(4, dense.irreps_out.dim).index_add(0, index[1], dense(x[index[0]], harmonics))
    close(conv(x, frames(vectors, 2), index), wanted)


@pytest.mark.parametrize("parity", ["o3", "so3"])
@pytest.mark.parametrize("mmax", [None, 1])
def test_turns_with_its_operands_in_any_frame(parity: str, mmax: int | None) -> None:
    conv = SO2Convolution(BOTH, BOTH, mmax, parity=parity).double()
    index, vectors = graph()
    x = normal(4, conv.irreps_in.dim)
    plain = conv(x, frames(vectors, 2), index)
    close(conv(x, frames(vectors, 2, seed=1), index), plain)  # another angle about y for each edge
    close(conv(x, vectors, index), plain)  # and that of EdgeFrame
    for determinant in (1, -1):
        matrix = random_orthogonal(1, determinant)
        turn = representation_matrix(conv.irreps_in, matrix)
        moved, wanted = conv(x @ turn.T, frames(vectors @ matrix.T, 2), index), plain @ turn.T
        if (parity, determinant) == ("so3", -1):
            assert float((moved - wanted).detach().abs().max()) > 0.1  # it ignores parities
        else:
            close(moved, wanted)


@pytest.mark.parametrize("parity", ["o3", "so3"])
def test_the_linear_map_commutes_with_what_leaves_y_in_place(parity: str) -> None:
    layer = SO2Linear(BOTH, "1x0e + 1x0o + 1x1o + 2x1e + 2x2e + 1x3e", parity=parity).double()
    x = normal(5, layer.irreps_in.dim)
    turn = about_y(torch.tensor(0.7, dtype=torch.float64))
    mirror = torch.diag(torch.tensor([-1.0, 1.0, 1.0], dtype=torch.float64)) @ turn
    for matrix, commutes in ((turn, True), (mirror, parity == "o3")):
        before = layer(x @ representation_matrix(layer.irreps_in, matrix).T)
        after = layer(x) @ representation_matrix(layer.irreps_out, matrix).T
        assert (float((before - after).detach().abs().max()) < 1e-13) == commutes
    assert float(layer(x)[:, -7:][:, [0, 6]].detach().abs().max()) == 0.0  # m = 3 is in no input


def test_the_linear_map_is_the_sum_of_its_definition() -> None:
    """Copy by copy: w times the pair, or times J of it, by the signs p (-1)^l."""
    layer = SO2Linear("2x1o + 1x1e", "1x1o + 2x2o").double()
    (m0, natural), (m0_other, unnatural), (m1, weights) = layer.weight_views()
    assert (m0, m0_other, m1) == (0, 0, 1)
    assert [list(view.shape) for view in (natural, unnatural, weights)] == [[1, 2, 1], [1, 1, 2], [1, 3, 3]]
    x = normal(1, 9)
    copies = x.view(3, 3)  # 1o, 1o, 1e; components -1, 0, 1
    z = layer(x)[0].detach()
    w = weights[0].detach()
    even, odd = copies[:2], copies[2]
    own = (w[:2, 0] @ even[:, [0, 2]]) + w[2, 0] * torch.stack([odd[2], -odd[0]])  # J: (x_1, x_-1) to (-x_-1, x_1)
    close(z[[0, 2]], own / 3**0.5, 8 * EPS)
    close(z[1:2], natural[0].detach().T @ even[:, 1] / 2**0.5, 8 * EPS)
    for copy in (0, 1):
        block = z[3 + 5 * copy : 8 + 5 * copy]
        turned = w[:2, 1 + copy] @ torch.stack([even[:, 2], -even[:, 0]], -1)
        close(block[[1, 3]], (w[2, 1 + copy] * odd[[0, 2]] - turned) / 3**0.5, 8 * EPS)
        close(block[2:3], unnatural[0, :, copy].detach() * odd[1], 8 * EPS)


def test_limited_orders_leave_out_the_others() -> None:
    full, limited = SO2Linear(BOTH, BOTH).double(), SO2Linear(BOTH, BOTH, 1).double()
    with torch.no_grad():
        full.weight[limited.weight_numel :] = 0.0
        limited.weight.copy_(full.weight[: limited.weight_numel])
    x = normal(3, full.irreps_in.dim)
    close(limited(x), full(x), 8 * EPS)
    scalars = SO2Linear(BOTH, BOTH, 0)
    assert scalars.weight_numel == 5 * 5 + 4 * 4  # 2x0e + 2x1o + 1x2e, and the others


def test_parity_halves_the_weights() -> None:
    irreps = o3.Irreps("4x0e + 4x1o + 4x2e + 4x3o + 4x4e")
    with_parity, without = SO2Linear(irreps, irreps), SO2Linear(irreps, irreps, parity="so3")
    assert with_parity.weight_numel == 16 * sum((5 - m) ** 2 for m in range(5))
    assert without.weight_numel == 16 * (25 + 2 * sum((5 - m) ** 2 for m in range(1, 5)))
    sh = o3.Irreps.spherical_harmonics(8)
    assert with_parity.weight_numel == 16 * len(products(irreps, sh, irreps))


def test_scales_and_envelope() -> None:
    """The definition has the scales and the envelope, step by step."""
    conv, layer = SO2Convolution(BOTH, BOTH).double(), SO2Linear(BOTH, BOTH).double()
    layer.load_state_dict(conv.state_dict())
    index, vectors = graph()
    x, scales, envelope = normal(4, conv.irreps_in.dim), normal(10, conv.num_scales, seed=6), normal(10, seed=7)
    found = conv(x, frames(vectors, 2), index, scales, envelope)
    rotations = frames(vectors, 1)[:, 1:].unflatten(1, (3, 3))
    wanted = torch.zeros_like(found)
    for e, (j, i) in enumerate(index.T.tolist()):
        d = representation_matrix(conv.irreps_in, rotations[e])
        wanted[i] += envelope[e] * (d.T @ layer(d @ x[j], scales[e]))
    close(found, wanted)


def test_scales_multiply_the_input_of_their_order_and_channel() -> None:
    layer = SO2Linear("2x1o + 1x2e", "2x1o + 1x2e").double()
    x, scales = normal(6, 11), normal(6, layer.num_scales, seed=1)
    slots = {0: slice(0, 6), 1: slice(6, 11)}
    assert [(m, group) for m, group, _ in layer.scale_slices()] == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)]
    scaled = torch.zeros_like(x)
    for m, group, columns in layer.scale_slices():
        block = x[:, slots[group]].unflatten(1, (2 - group, -1))
        middle = block.shape[2] // 2
        into = scaled[:, slots[group]].unflatten(1, (2 - group, -1))
        for place in {middle - m, middle + m}:
            into[..., place] = block[..., place] * scales[:, columns]
    close(layer(x, scales), layer(scaled), 16 * EPS)
    close(layer(x, scales[0]), layer(x, scales[:1].expand(6, -1)), 16 * EPS)  # leading axes broadcast
    close(layer(x.view(2, 3, 11), scales.view(2, 3, -1)).flatten(0, 1), layer(x, scales), 16 * EPS)
    close(layer(x[0], scales[0]), layer(x, scales)[0], 16 * EPS)


@pytest.mark.thinned(4)
@pytest.mark.parametrize("parity", ["o3", "so3"])
@pytest.mark.parametrize("mmax", [None, 1])
def test_results_have_unit_variance(parity: str, mmax: int | None) -> None:
    irreps = "40x0e + 30x0o + 40x1o + 30x1e + 40x2e + 30x2o"
    layer, conv = (kind(irreps, irreps, mmax, parity=parity) for kind in (SO2Linear, SO2Convolution))
    rows = 300
    x = torch.randn(rows, layer.irreps_in.dim, generator=made())
    for out, limited in ((layer(x), False), (conv(x, normal(rows, 3).float(), torch.arange(rows).repeat(2, 1)), True)):
        for columns, (mul, ir) in zip(layer.irreps_out.slices(), layer.irreps_out, strict=True):
            squares = out[:, columns].detach().square().unflatten(1, (mul, ir.dim)).mean((0, 1))
            if limited:  # in the frame of all: in the mean
                assert abs(float(squares.mean()) - 1) < 0.15, ir
            else:
                reached = torch.tensor([abs(m - ir.l) <= (mmax or 9) for m in range(ir.dim)]).float()
                assert float((squares - reached).abs().max()) < 0.25, ir


@pytest.mark.parametrize("pole", [1.0, -1.0])
def test_edges_along_the_axis(pole: float) -> None:
    """Values and derivatives are those of edges beside it."""
    conv = SO2Convolution("2x0e + 1x1o + 1x2e", "1x0e + 1x1o + 1x2e").double()
    index = torch.tensor([[0, 1], [1, 0]])
    x = normal(2, conv.irreps_in.dim)
    vectors = torch.tensor([[0.0, pole, 0.0], [0.0, 2 * pole, 0.0]], dtype=torch.float64)

    def energy(v: Tensor) -> Tensor:
        return conv(x, v, index).square().sum()

    matrix = random_orthogonal(5)
    turn = representation_matrix(conv.irreps_in, matrix)

    def energy_turned(v: Tensor) -> Tensor:
        return conv(x @ turn.T, v @ matrix.T, index).square().sum()

    at_pole, beside = (torch.autograd.functional.hessian(f, vectors) for f in (energy, energy_turned))
    close(at_pole, beside, 1e-10)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("parity", "mmax"), [("o3", None), ("so3", 1)])
def test_three_orders_of_derivative_by_positions(parity: str, mmax: int | None) -> None:
    conv = SO2Convolution("1x0e + 1x1o + 1x2e", "1x0e + 1x1e + 1x2e", mmax, parity=parity).double()
    index = torch.tensor([[0, 1, 2, 0], [1, 0, 1, 2]])
    pos = normal(3, 3).requires_grad_()
    x, scales = normal(3, 9).requires_grad_(), normal(4, conv.num_scales).requires_grad_()

    def run(pos: Tensor, x: Tensor, scales: Tensor) -> Tensor:
        vectors = pos[index[1]] - pos[index[0]]
        return conv(x, vectors, index, scales, (-vectors.square().sum(-1)).exp())

    check_derivatives(run, [pos, x, scales], max_elements=3)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_backends_agree(backend: str) -> None:
    index, vectors = graph()
    one, other = SO2Convolution(BOTH, BOTH).double(), SO2Convolution(BOTH, BOTH, backend=backend).double()
    other.load_state_dict(one.state_dict())
    x, scales = normal(4, one.irreps_in.dim), normal(10, one.num_scales)
    close(other(x, frames(vectors, 2), index, scales), one(x, frames(vectors, 2), index, scales))


@pytest.mark.kernels
@pytest.mark.skipif(availability.why_not() is not None, reason="neither a GPU nor Triton's interpreter")
def test_printed_triton_kernels_agree() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = [SO2Convolution("3x0e + 2x1o", "2x0e + 3x1o", backend=name).double() for name in ("torch", "triton")]
    layers[1].load_state_dict(layers[0].state_dict())
    index, vectors = graph()
    found = []
    for layer in layers:
        given = (normal(4, 9), frames(vectors, 1), normal(10, layer.num_scales), normal(10))
        x, d, scales, envelope = (t.to(device).requires_grad_() for t in given)
        z = layer.to(device)(x, d, index.to(device), scales, envelope)
        first = torch.autograd.grad(z.square().sum(), (x, d, scales, envelope), create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), (x, d, scales))
        found.append([z, *first, *second])
    for one, other in zip(*found, strict=True):
        close(other, one)


def test_frames_of_higher_degree_serve_too() -> None:
    index, vectors = graph()
    one, other = SO2Convolution("1x1o", "2x1o").double(), SO2Convolution("1x1o", "2x1o", lmax=3).double()
    other.load_state_dict(one.state_dict())
    x = normal(4, 3)
    close(other(x, frames(vectors, 3), eq.Graph(index, 4)), one(x, frames(vectors, 1), index))


def test_layers_without_paths() -> None:
    conv = SO2Convolution("2x0o", "3x0e").double()  # no harmonics join them
    assert conv.weight_numel == conv.num_scales == 0
    found = conv(normal(3, 2), normal(4, 3), torch.tensor([[0, 1, 2, 0], [1, 0, 1, 2]]), normal(4, 0))
    assert found.shape == (3, 3)
    assert not found.any()
    assert SO2Linear("0x0e", "1x1o")(torch.zeros(2, 0)).shape == (2, 3)
