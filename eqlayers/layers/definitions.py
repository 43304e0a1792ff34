"""The definition of every family of layers: its mathematics in plain torch in float64, for features in 'mul_ir'.

Functions are in the order of their families: attention, basis, contraction, dropout, gate, harmonics and rotation,
linear, norm, pointwise, radial (r and the cutoff c in one unit of length), reshape, so2, tensor_product, convolution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from e3nn.math import normalize2mom
from e3nn.o3 import Irrep, Irreps, wigner_3j
from torch import Tensor

from eqlayers_kernels.forms.program import Slot

from ..sparse import PathGroup, ProgramInfos, sparse_product

Function = Callable[[Tensor], Tensor]


def copies(x: Tensor, irreps: Irreps) -> list[Tensor]:
    """``[N, irreps.dim]`` as one ``[N, mul, 2 l + 1]`` for each group."""
    return [x[:, s].reshape(len(x), mul, ir.dim) for s, (mul, ir) in zip(irreps.slices(), irreps, strict=True)]


def joined(groups: Iterable[Tensor]) -> Tensor:
    """The inverse of `copies`."""
    return torch.cat([group.flatten(1) for group in groups], 1)


def edge_softmax(logits: Tensor, dst: Tensor, num_nodes: int, envelope: Tensor, sink: float | Tensor = 0.0) -> Tensor:
    """Weights ``[E, H]`` from logits s: f exp(s) over exp(sink) plus the sum of f exp(s) over edges of one receiver.

    Source:
        Vaswani et al. 2017, arXiv:1706.03762; Xiao et al. 2024, arXiv:2309.17453, for the sink.
    """
    shares = envelope[:, None] * logits.exp()
    sums = logits.new_zeros(num_nodes, logits.shape[1]).index_add(0, dst, shares)
    return shares / (torch.as_tensor(sink, dtype=logits.dtype, device=logits.device).exp() + sums)[dst]


def aggregate(messages: Tensor, weights: Tensor, irreps: Irreps, dst: Tensor, num_nodes: int) -> Tensor:
    """``[E, irreps.dim]`` to ``[N, irreps.dim]``: each receiver gets the sum of its messages, weighted by attention.

    Head h weights the h-th share of the copies of each group.
    """
    parts = [group.reshape(*weights.shape, -1) * weights[:, :, None] for group in copies(messages, irreps)]
    return messages.new_zeros(num_nodes, irreps.dim).index_add(0, dst, joined(parts))


def change_of_basis(x: Tensor, irreps: Irreps, matrices: Mapping[Irrep, Tensor]) -> Tensor:
    """``[N, irreps.dim]``, each copy times the matrix ``[2 l + 1, 2 l + 1]`` of its irrep."""
    return joined(group @ matrices[ir].T for group, (_, ir) in zip(copies(x, irreps), irreps, strict=True))


def irreps_of_rank_2(tensor: Tensor) -> Tensor:
    """``[N, 3, 3]`` to ``[N, 9]``: the trace (0e), the antisymmetric part (1e) and the symmetric traceless part (2e).

    The norm of the irreps is the norm of the tensor.

    Source:
        ``e3nn.io.CartesianTensor``.
    """
    parts = [
        (2 * l + 1) ** 0.5 * torch.einsum("kij,nij->nk", wigner_3j(l, 1, 1, dtype=tensor.dtype), tensor)
        for l in range(3)
    ]
    return torch.cat(parts, 1)


def contraction(x: Tensor, tensors: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """``[N, C, D]`` to ``[N, C, 2 l + 1]``: a polynomial in the features of each channel, of degree `len(tensors)`.

    Args:
        x: Each channel has one copy of each of several irreps, D numbers in all.
        tensors: For the power p = 1, 2, ...: ``[2 l + 1, D, ..., D, paths]`` with D for p times, a basis of all
            equivariant maps.
        weights: For each power ``[N, paths, C]``, chosen by the species of the atom.

    Source:
        Batatia et al. 2022, arXiv:2206.07697, eq. 10 and 11.
    """
    total: Tensor | float = 0.0
    for power, (basis, weight) in enumerate(zip(tensors, weights, strict=True), start=1):
        letters = "abcdefgh"[:power]
        factors = ",".join(f"nz{letter}" for letter in letters)
        total = total + torch.einsum(f"i{letters}k,{factors},nkz->nzi", basis, *[x] * power, weight)
    assert isinstance(total, Tensor)
    return total


def dropout(x: Tensor, irreps: Irreps, p: float) -> Tensor:
    """``[N, irreps.dim]``, each copy of each row times 0 or 1 / (1 - p), drawn group by group.

    Source:
        Srivastava et al. 2014, JMLR 15, 1929.
    """
    return joined(g * x.new_empty(len(x), g.shape[1], 1).bernoulli_(1 - p) / (1 - p) for g in copies(x, irreps))


def drop_path(x: Tensor, p: float, batch: Tensor, num_graphs: int) -> Tensor:
    """``[N, ...]``, the rows of each graph times 0 or 1 / (1 - p); ``batch`` ``[N]`` is the graph of each row.

    Source:
        Huang et al. 2016, arXiv:1603.09382.
    """
    draws = x.new_empty(num_graphs, 1).bernoulli_(1 - p) / (1 - p)
    return x * draws[batch]


def gate(x: Tensor, scalars: int, gated: Irreps, act: Function, act_gates: Function) -> Tensor:
    """``[N, scalars + gated.num_irreps + gated.dim]`` to ``[N, scalars + gated.dim]``.

    Columns are the scalars, then one gate for each copy, then the copies. Activations are scaled so that normal numbers
    keep a second moment of 1, as e3nn estimates it.
    """
    values, gates, features = x.split([scalars, gated.num_irreps, gated.dim], 1)
    act, act_gates = normalize2mom(act), normalize2mom(act_gates)
    factors = act_gates(gates).split([mul for mul, _ in gated], 1)
    parts = [group * factor[:, :, None] for group, factor in zip(copies(features, gated), factors, strict=True)]
    return joined([act(values), *parts])


def spherical_harmonics(degree: int, vectors: Tensor) -> Tensor:
    """``[N, 3]`` to ``[N, 2 l + 1]``, of norm sqrt(2 l + 1) for unit vectors ('component' normalisation).

    The product of degree l - 1 with the vector has one part of degree l. Its norm is the same for all unit vectors, so
    the vector along y gives the factor, which is positive at m = 0.

    Source:
        Varshalovich, Moskalev and Khersonskii 1988, section 5.6.
    """
    harmonics, at_y = torch.ones_like(vectors[:, :1]), torch.ones(1, 1, dtype=vectors.dtype)
    y = vectors.new_tensor([[0.0, 1.0, 0.0]])
    for l in range(1, degree + 1):
        coupling = wigner_3j(l - 1, 1, l, dtype=vectors.dtype)
        harmonics = torch.einsum("ijk,ni,nj->nk", coupling, harmonics, vectors)
        at_y = torch.einsum("ijk,ni,nj->nk", coupling, at_y, y)
        factor = math.sqrt(2 * l + 1) / at_y[0, l]
        harmonics, at_y = harmonics * factor, at_y * factor
    return harmonics


def matrix_of(degree: int, rotation: Tensor) -> Tensor:
    """``[3, 3]`` to ``[2 l + 1, 2 l + 1]``: the matrix D with Y(R v) = D Y(v) for all vectors v.

    Harmonics of random vectors determine D by least squares.
    """
    vectors = torch.randn(8 * degree + 8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before, after = spherical_harmonics(degree, vectors), spherical_harmonics(degree, vectors @ rotation.T)
    return torch.linalg.lstsq(before, after).solution.T


def rotate(x: Tensor, irreps: Irreps, rotation: Tensor) -> Tensor:
    """``[N, irreps.dim]``, each copy rotated by the matrix of its degree; parities do not matter."""
    return change_of_basis(x, irreps, {ir: matrix_of(ir.l, rotation) for _, ir in irreps})


def linear(x: Tensor, irreps_in: Irreps, irreps_out: Irreps, weights: Mapping[tuple[int, int], Tensor]) -> Tensor:
    """``[N, irreps_in.dim]`` to ``[N, irreps_out.dim]``: a matrix over the channels for each pair of equal irreps.

    Args:
        weights: ``[mul_in, mul_out]`` by group before and group after.

    A sum over n channels is divided by sqrt(n), n being all channels that reach a group, which preserves variances.
    """
    rows, out = copies(x, irreps_in), []
    for b, (mul, ir) in enumerate(irreps_out):
        reaching = [a for a, group in enumerate(irreps_in) if group.ir == ir and (a, b) in weights]
        channels = sum(irreps_in[a].mul for a in reaching)
        total = x.new_zeros(len(x), mul, ir.dim)
        for a in reaching:
            total += torch.einsum("nui,uw->nwi", rows[a], weights[a, b]) / math.sqrt(channels)
        out.append(total)
    return joined(out)


def norm(x: Tensor, irreps: Irreps) -> Tensor:
    """The norm of each copy, ``[N, num_irreps]``."""
    return joined(group.pow(2).sum(-1).sqrt() for group in copies(x, irreps))


def layer_norm(x: Tensor, irreps: Irreps, eps: float, centred: bool = True) -> Tensor:
    """Each group divided by the root of its mean square over copies and components; RMS norm if not `centred`.

    If `centred`, the mean of even scalars is subtracted first.

    Source:
        Liao and Smidt 2023, arXiv:2206.11990, section 4.1.
    """
    parts = []
    for group, (_, ir) in zip(copies(x, irreps), irreps, strict=True):
        rest = group - group.mean(1, keepdim=True) if centred and ir.is_scalar() else group
        parts.append(rest / (rest.pow(2).mean((1, 2), keepdim=True) + eps).sqrt())
    return joined(parts)


def row_by_row(function: Callable[..., Sequence[Tensor]], channels: int, *operands: Tensor) -> Tensor:
    """``[N, channels * components]`` for each operand, to ``[N, channels * components]`` of the result.

    The function gets the components of one channel of each operand, and returns the components of the result.
    """
    split = [operand.reshape(len(operand), channels, -1) for operand in operands]
    rows = [
        torch.cat([torch.stack(list(function(*(operand[n, u] for operand in split)))) for u in range(channels)])
        for n in range(len(operands[0]))
    ]
    return torch.stack(rows)


def bessel(r: Tensor, cutoff: float, number: int) -> Tensor:
    """``[E]`` to ``[E, number]``: sqrt(2 / c) sin(n pi r / c) / r.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 7.
    """
    n = torch.arange(1, number + 1, dtype=r.dtype)
    return math.sqrt(2 / cutoff) * (n * math.pi * r[:, None] / cutoff).sin() / r[:, None]


def polynomial_cutoff(r: Tensor, cutoff: float, p: int) -> Tensor:
    """1 at 0, and 0 with two derivatives at the cutoff.

    Source:
        Gasteiger et al. 2020, arXiv:2003.03123, eq. 8.
    """
    u = r / cutoff
    inside = 1 - (p + 1) * (p + 2) / 2 * u**p + p * (p + 2) * u ** (p + 1) - p * (p + 1) / 2 * u ** (p + 2)
    return torch.where(u < 1, inside, torch.zeros_like(u))


def cosine_cutoff(r: Tensor, cutoff: float) -> Tensor:
    """(1 + cos(pi r / c)) / 2 inside the cutoff.

    Source:
        Behler and Parrinello 2007, Phys. Rev. Lett. 98, 146401, eq. 2.
    """
    return torch.where(r < cutoff, (1 + (math.pi * r / cutoff).cos()) / 2, torch.zeros_like(r))


def cubic_spline(function: Function, r: Tensor, cutoff: float, knots: int) -> Tensor:
    """``[E]`` to ``[E, width]`` for a function of lengths ``[K]`` to ``[K, width]``: sum_j c_j B(r / h - j).

    B is the cubic B-spline, the third difference of truncated powers. The coefficients c_j are sums over values at five
    knots, (1, -10, 54, -10, 1) / 36; beyond the ends, values continue the cubics through the last four knots.

    Source:
        de Boor, A Practical Guide to Splines, 1978, chapters IX and XII.
    """
    step = cutoff / (knots - 1)
    index = torch.arange(-3, knots + 3, dtype=r.dtype)
    values = function((index[3:-3]) * step)
    cubic = values.new_tensor([[4, -6, 4, -1]])  # the fourth difference of a cubic is 0
    for _ in range(3):
        values = torch.cat([cubic @ values[:4], values, cubic.flip(1) @ values[-4:]])
    coefficients = sum(f / 36 * values[n : n + knots + 2] for n, f in enumerate((1, -10, 54, -10, 1)))
    x = (r / step)[:, None] - index[2:-2]
    powers = [(x + 2 - n).clamp(min=0) ** 3 for n in range(5)]
    return (powers[0] - 4 * powers[1] + 6 * powers[2] - 4 * powers[3] + powers[4]) / 6 @ coefficients


def rearranged(x: Tensor, irreps: Irreps, order: Sequence[int]) -> Tensor:
    """``[N, irreps.dim]`` to the groups with the indices in ``order``, concatenated.

    A group that is left out is not in the result, as in `Extract`. All groups in the order of their degrees is `Sort`.
    """
    slices = irreps.slices()
    return torch.cat([x[:, slices[number]] for number in order], 1) if order else x[:, :0]


def sign(ir: Irrep) -> int:
    """P (-1)^l: how a reflection at a plane through y changes the irrep, except for the sign of m."""
    return int(ir.p * (-1) ** ir.l)


def so2_linear(x: Tensor, irreps_in: Irreps, irreps_out: Irreps, matrices: Iterable[Tensor]) -> Tensor:
    """``[N, irreps_in.dim]`` to ``[N, irreps_out.dim]``, in the frame of an edge along y, with parity.

    Args:
        matrices: ``[channels in, channels out]``. For order m = 0 one matrix for each sign, since signs do not mix. For
            each m > 0 one matrix between all channels that have this order.

    The components (m, -m) of a channel are one vector. Irreps of negative sign are rotated by J = ((0, -1), (1, 0))
    before the map and back after it, so that it commutes with reflections. A sum over n channels is divided by sqrt(n).

    Source:
        Passaro and Zitnick 2023, arXiv:2302.03655, without parity.
    """
    rows = copies(x, irreps_in)
    out = [x.new_zeros(len(x), mul, ir.dim) for mul, ir in irreps_out]
    left = iter(matrices)
    for m in range(max(ir.l for _, ir in irreps_in) + 1):
        for signs in ((1,), (-1,)) if m == 0 else ((1, -1),):
            reads = [a for a, (_, ir) in enumerate(irreps_in) if ir.l >= m and sign(ir) in signs]
            writes = [b for b, (_, ir) in enumerate(irreps_out) if ir.l >= m and sign(ir) in signs]
            if not reads or not writes:
                continue
            pairs = []
            for a in reads:
                l = irreps_in[a].ir.l
                plus, minus = rows[a][:, :, l + m], rows[a][:, :, l - m]
                pairs.append(torch.stack((-minus, plus) if m and sign(irreps_in[a].ir) < 0 else (plus, minus)))
            packed = torch.cat(pairs, 2)
            mixed = packed @ next(left) / math.sqrt(packed.shape[2])
            for b, part in zip(writes, mixed.split([irreps_out[b].mul for b in writes], 2), strict=True):
                l, rotated = irreps_out[b].ir.l, m > 0 and sign(irreps_out[b].ir) < 0
                out[b][:, :, l + m] = part[1] if rotated else part[0]
                if m:
                    out[b][:, :, l - m] = -part[0] if rotated else part[1]
    return joined(out)


def blocks(x: Tensor, slots: Sequence[Slot], group: PathGroup, operand: str) -> Tensor:
    """``[N, width]`` to the components of some blocks, channels last: ``[N, components, *channels]``."""
    parts = torch.cat([x[:, slot.start : slot.stop].reshape(len(x), slot.mul, slot.dim) for slot in slots], 2)
    axes = [group.axes[letter] for letter in group.letters[operand]]
    if any(axis.pairs for axis in axes):  # modes with pairs u < v of the copies: u of x, v of y
        return parts.mT[:, :, torch.triu_indices(slots[0].mul, slots[0].mul, 1)["xy".index(operand)]]
    return parts.mT.reshape(len(x), -1, *(axis.extent for axis in axes))


def weights_of(w: Tensor, group: PathGroup, infos: ProgramInfos) -> Tensor:
    """``[W]`` or ``[N, W]`` to the weights of the paths of a group, ``[1 or N, paths, *channels]``."""
    shape = [group.axes[letter].length for letter in group.letters["w"]]
    paths = [infos.program.paths[number] for number in group.paths]
    rows = w.reshape(-1, w.shape[-1])
    return torch.stack([rows.narrow(1, p.weight or 0, p.weight_count).unflatten(1, shape) for p in paths], 1)


def tensor_product(infos: ProgramInfos, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """``[N, in1.dim]``, ``[N, in2.dim]`` and ``[W]`` or ``[N, W]`` to ``[N, out.dim]``: two sparse products by group.

    The infos hold the Clebsch-Gordan coefficients of all paths as terms. The first product multiplies the components of
    x and y along the terms, with the channels of both, and the second one multiplies the weights of the paths.

    Source:
        e3nn, Geiger and Smidt 2022, arXiv:2207.09453.
    """
    out = x.new_zeros(len(x), infos.program.widths[3])
    for group in infos:
        left, right = blocks(x, group.x, group, "x"), blocks(y, group.y, group, "y")
        z = sparse_product(str(group.channels), left, right, *group.terms)
        if group.weights is not None:
            z = sparse_product(str(group.weight_channels), z, weights_of(w, group, infos), *group.weights)
        else:  # without weights, channels of z alone do not exist, and other channels are summed
            z = torch.einsum(f"nt{group.channels.out}->nt{group.letters['z']}", z)
        parts = z.reshape(len(x), z.shape[1], -1).split([slot.dim for slot in group.z], 1)
        for slot, part in zip(group.z, parts, strict=True):
            out[:, slot.start : slot.stop] += part.mT.flatten(1)
    return out


def convolution(infos: ProgramInfos, x: Tensor, y: Tensor, w: Tensor, edge_index: Tensor, num_nodes: int) -> Tensor:
    """``[num_src, in1.dim]`` features, ``[E, in2.dim]`` attributes and ``[E, W]`` weights to ``[num_nodes, out.dim]``.

    Source:
        Thomas et al. 2018, arXiv:1802.08219, section 4.1.3.
    """
    src, dst = edge_index
    messages = tensor_product(infos, x[src], y, w)
    return messages.new_zeros(num_nodes, messages.shape[1]).index_add(0, dst, messages)
