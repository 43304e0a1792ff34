"""cuEquivariance as a peer: channels innermost, sorted outputs and weights, one row of shared weights.

A fake has the interface that the adapter uses, on e3nn, with another convention wherever there is one.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3
from torch import Tensor

from eqlayers.bench.cases import Refusal
from eqlayers.bench.products import peers as cuequivariance_peer
from eqlayers.bench.products.implementation import convolve
from eqlayers.bench.products.peers import build_peer
from eqlayers.bench.products.problems import Problem
from eqlayers.irreps.algebra import wigner_3j
from tests.bench.products.test_products import EVERY, SMALL, inner_order, made, other_sign, passes

PAIRS = Problem("pairs", "uvu", "2x0e", "3x0e", "0e")


def fake_layer(
    in1: o3.Irreps, in2: o3.Irreps, out: list[o3.Irrep] | o3.Irreps, *, shared_weights: bool, **options: Any
) -> Any:
    """Channels innermost, one row of shared weights, sorted outputs and weights, the edges inside its polynomial."""
    if isinstance(out, o3.Irreps):
        problem = Problem("theirs", "uvw", str(in1), str(in2), str(out))
        instructions, signs = problem.instructions, [other_sign(out[k].ir.l) for _, _, k, *_ in problem.instructions]
        outputs = out
    else:
        problem = Problem("theirs", "uvu", str(in1), str(in2), "+".join(f"1x{ir}" for ir in out))
        paths = [(in1[i].mul, problem.irreps_out[k].ir, (i, j)) for i, j, k, *_ in problem.instructions]
        paths.sort(key=lambda path: (path[1].l, -path[1].p * (-1) ** path[1].l))
        outputs = o3.Irreps([(mul, ir) for mul, ir, _ in paths])
        instructions = [(i, j, k, "uvu", True) for k, (_, _, (i, j)) in enumerate(paths)]
        signs = [other_sign(ir.l) for _, ir, _ in paths]
    inner = o3.TensorProduct(in1, in2, outputs, instructions, shared_weights=shared_weights, internal_weights=False)
    sizes = [int(np.prod(ins.path_shape)) for ins in inner.instructions]
    flip = torch.from_numpy(np.repeat(signs, sizes)).float()
    orders = {key: inner_order(irreps) for key, irreps in {"x": in1, "y": in2, "z": outputs}.items()}

    def layer(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        assert w.ndim == 2
        w = (w[0] if shared_weights else w) * flip
        return orders["z"].into(inner(orders["x"].back(x), orders["y"].back(y), w))

    def polynomial(
        inputs: list[Tensor], input_indices: dict, output_shapes: dict, output_indices: dict
    ) -> list[Tensor]:
        w, x, y = inputs
        index = torch.stack([input_indices[1], output_indices[0]])
        return [convolve(layer, x, y, w, index, output_shapes[0].shape[0])]

    polynomial.method = "naive"  # type: ignore[attr-defined]
    layer.f = polynomial  # type: ignore[attr-defined]
    return layer


@pytest.fixture
def fake_cuequivariance(monkeypatch: pytest.MonkeyPatch) -> None:
    cue = SimpleNamespace(
        O3=None,
        ir_mul="ir_mul",
        Irreps=lambda group, text: o3.Irreps(text),
        SO3=lambda l: l,
        clebsch_gordan=lambda *ls: [wigner_3j(*ls) * other_sign(ls[2])],
    )
    cuet = SimpleNamespace(ChannelWiseTensorProduct=fake_layer, FullyConnectedTensorProduct=fake_layer)
    monkeypatch.setattr(cuequivariance_peer, "import_module", lambda name: cuet if name.endswith("torch") else cue)
    absent = cuequivariance_peer.CUEQ_KERNELS
    monkeypatch.setattr(cuequivariance_peer, "find_spec", lambda name: None if name == absent else name)


@pytest.mark.usefixtures("fake_cuequivariance")
@pytest.mark.parametrize("operation", ["product", "conv"])
@pytest.mark.parametrize("problem", EVERY, ids=lambda problem: problem.name)
def test_cuequivariance_is_compared_rightly(problem: Problem, operation: str) -> None:
    assert passes("cuequivariance", problem, operation)


@pytest.mark.usefixtures("fake_cuequivariance")
def test_what_cuequivariance_refuses() -> None:
    with pytest.raises(Refusal, match="an output for every pair of channels"):
        build_peer("cuequivariance", *made(PAIRS, "product"))
    case, _ = made(SMALL, "product")
    elsewhere = SimpleNamespace(values={"x": SimpleNamespace(device=torch.device("cuda"))})
    with pytest.raises(Refusal, match="cuequivariance_ops_torch, its kernels, are not installed"):
        cuequivariance_peer.build_cuequivariance(case, elsewhere)
