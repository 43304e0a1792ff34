"""Parts that are left out in training: whole copies and whole graphs, as often as asked for, and as in e3nn."""

import pytest
import torch
from e3nn import nn as theirs
from e3nn import o3

from eqlayers import to_ir_mul
from eqlayers.nn import Dropout, DropPath

IRREPS = o3.Irreps("2x1o + 3x0e + 0x1e + 2x2e")


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(6,), (3, 4), (2, 3, 2)])
def test_one_seed_leaves_out_what_e3nn_leaves_out(p: float, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, IRREPS.dim, requires_grad=True)
    found = {}
    for name, layer in (("ours", Dropout(IRREPS, p)), ("theirs", theirs.Dropout(IRREPS, p))):
        torch.manual_seed(3)
        y = layer(x)
        found[name] = y, torch.autograd.grad(y.sum(), x)[0]
    assert torch.equal(found["ours"][0], found["theirs"][0])
    assert torch.equal(found["ours"][1], found["theirs"][1])
    torch.manual_seed(3)
    assert torch.equal(Dropout(IRREPS, p, layout="ir_mul")(to_ir_mul(x, IRREPS)), to_ir_mul(found["ours"][0], IRREPS))


def test_whole_copies_as_often_as_asked_for() -> None:
    torch.manual_seed(0)
    y = Dropout("2x1o", 0.25)(torch.ones(20_000, 6)).reshape(-1, 2, 3)
    assert torch.equal(y, y[..., :1].expand_as(y))
    kept = y[..., 0] != 0
    assert torch.equal(y[..., 0][kept], torch.full((int(kept.sum()),), 1 / 0.75))
    for found, wanted in ((kept.float().mean(), 0.75), (kept.all(1).float().mean(), 0.75**2)):  # copies are independent
        assert abs(float(found) - wanted) < 5 * (0.25 / 20_000) ** 0.5
    assert Dropout("2x1o", 0.25)(torch.ones(6)).shape == (6,)
    assert torch.equal(Dropout("2x1o", 0.25).eval()(y.flatten(1)), y.flatten(1))


def test_whole_graphs() -> None:
    batch = torch.arange(5000).repeat_interleave(2)
    x = torch.ones(10_000, 3, 2)
    torch.manual_seed(0)
    y = DropPath(0.4)(x, batch)
    assert torch.equal(y[::2], y[1::2])
    assert torch.equal(y, y[:, :1, :1].expand_as(y))
    assert set(y[:, 0, 0].mul(0.6).round(decimals=5).tolist()) == {0.0, 1.0}
    assert abs(float((y[::2, 0, 0] != 0).float().mean()) - 0.6) < 5 * (0.24 / 5000) ** 0.5
    torch.manual_seed(0)
    assert torch.equal(DropPath(0.4)(x, batch, num_graphs=5000), y)
    torch.manual_seed(0)
    assert torch.equal(DropPath(0.4)(x[::2]), y[::2])  # without a batch every row is a graph
    assert torch.equal(DropPath(0.4).eval()(x, batch), x)
    assert torch.equal(DropPath(1.0)(x, batch), torch.zeros_like(x))
    assert torch.equal(DropPath(0.0)(x, batch), x)
    assert DropPath(0.4)(x[:0], batch[:0]).shape == (0, 3, 2)


def test_text() -> None:
    assert repr(Dropout("2x1o", 0.1)) == "Dropout(2x1o, p=0.1 | mul_ir)"
    assert repr(DropPath(0.1)) == "DropPath(p=0.1)"
