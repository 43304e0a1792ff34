"""Uses of an accelerated model: freeze, average, convert, distribute, load checkpoints of other versions of e3nn."""

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from e3nn import o3
from e3nn.nn.models.gate_points_2102 import Network as GatePoints2102
from torch import nn

import eqlayers
from eqlayers.integrations import accelerate, deaccelerate


def test_frozen_layers_stay_frozen(network: Any, inputs: Any) -> None:
    network.mix.requires_grad_(False)
    accelerate(network)
    assert not network.mix.weight.requires_grad
    energy, forces = inputs.energy_and_forces(network)
    (energy.sum() + forces.square().sum()).backward()
    assert network.mix.weight.grad is None
    assert network.skip.weight.grad is not None
    network.mix.requires_grad_(True)
    assert deaccelerate(network).mix.weight.requires_grad


def test_averages_of_weights(network: Any, inputs: Any) -> None:
    """A copy made before goes on to follow; a copy made after is accelerated too."""
    early = torch.optim.swa_utils.AveragedModel(network)
    assert not accelerate(network).skipped
    late = torch.optim.swa_utils.AveragedModel(network)
    for _ in range(2):
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.1)
        early.update_parameters(network)
        late.update_parameters(network)
    arguments = (inputs.pos, inputs.attrs, inputs.edges)
    torch.testing.assert_close(early(*arguments), late(*arguments))


def test_to_another_dtype_and_back(network: Any, inputs: Any, standins: Any) -> None:
    exact = network(inputs.pos, inputs.attrs, inputs.edges).detach()
    accelerate(network)
    single = standins["Inputs"](torch.float32)
    network.float()
    value = network(single.pos, single.attrs, single.edges)
    assert value.dtype == torch.float32
    assert (value.detach() - exact).abs().max() < 1e-4 * exact.abs().max()
    back = deaccelerate(network)
    torch.testing.assert_close(back(single.pos, single.attrs, single.edges), value, rtol=1e-4, atol=1e-5)


def test_signs_of_the_checkpoints_e3nn(float64: None) -> None:
    """e3nn computes with the coefficients that it loads; versions differ in the sign of some, and so must we."""
    layer = o3.FullyConnectedTensorProduct("2x0e + 2x1o", "1o + 2e", "2x1o + 2x2e + 2x1e")
    x, y = torch.randn(3, 8), torch.randn(3, 8)
    model = nn.Sequential(layer)
    state = {key: -value if key.endswith("_w3j_1_2_1") else value for key, value in model.state_dict().items()}
    plain = copy.deepcopy(model)
    plain.load_state_dict(state)
    expected = plain[0](x, y)
    assert (expected - layer(x, y)).abs().max() > 0.1

    before = copy.deepcopy(plain)  # built with other signs
    accelerate(before)
    accelerate(model)
    model.load_state_dict(state)  # loaded afterwards
    native = eqlayers.FullyConnectedTensorProduct(layer.irreps_in1, layer.irreps_in2, layer.irreps_out)
    native.load_state_dict({key.removeprefix("0."): value for key, value in state.items()})
    for result in (before[0](x, y), model[0](x, y), native(x, y)):
        torch.testing.assert_close(result, expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    deaccelerate(model)
    torch.testing.assert_close(model[0](x, y), expected, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_checkpoint_with_strange_coefficients_is_refused() -> None:
    model = nn.Sequential(o3.FullTensorProduct("1o", "1o"))
    accelerate(model)
    state = {key: value * 1.1 if "w3j" in key else value for key, value in model.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"must hold the Wigner 3j symbols of degrees \(1, 1, \d\)"):
        model.load_state_dict(state)


def test_distributed(network: Any, inputs: Any, tmp_path: Path) -> None:
    """Inside DistributedDataParallel, whose buckets hold the very Parameters."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without torch.distributed")
    store = torch.distributed.FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        plain = copy.deepcopy(network)
        model = nn.parallel.DistributedDataParallel(network)
        report = accelerate(model)
        assert report.replaced
        assert not report.skipped
        for m in (plain, model):
            m(inputs.pos, inputs.attrs, inputs.edges).square().sum().backward()
        for p, q in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad)
        # its reducer must go first: the last to hold the group waits for threads of it that may wait for Python's lock
        del model, m, report
        gc.collect()
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_gate_points_2102(float64: None, close: Any) -> None:
    """e3nn's network of February 2021; test_networks.py has the networks of January 2021 and June 2021."""
    model = GatePoints2102(
        irreps_in=None, irreps_hidden="3x0e + 3x0o + 2x1e + 2x1o", irreps_out="0e", irreps_node_attr=None,
        irreps_edge_attr="0e + 1o", layers=1, max_radius=2.5, number_of_basis=3, radial_layers=1, radial_neurons=4,
        num_neighbors=3.0, num_nodes=5,
    )  # fmt: skip
    pos = torch.randn(5, 3).requires_grad_()

    def results() -> dict[str, torch.Tensor]:
        energy = model({"pos": pos})
        (forces,) = torch.autograd.grad(-energy.sum(), pos, create_graph=True)
        named = dict(model.named_parameters())
        grads = torch.autograd.grad(forces.square().sum(), list(named.values()), materialize_grads=True)
        return {"energy": energy, "forces": forces, **dict(zip(named, grads, strict=True))}

    before = results()
    report = accelerate(model)
    assert [row.kind for row in report.skipped] == ["ExtractIr"]
    assert len(report.replaced) == 9
    close(results(), before)
    deaccelerate(model)
    assert all(torch.equal(value, before[name]) for name, value in results().items())
