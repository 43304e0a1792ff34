"""`eqlayers bench step` compares whole training steps with e3nn's layers, and times what agrees."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import nn
from eqlayers.bench.step import Batch, networks, run_step, swap
from eqlayers.errors import ConfigError

NETWORK = """
data: {cutoff: 4.0, batch_size: 7}
model:
  learning_rate: 0.01
  model:
    class_path: eqlayers.models.MoleculeNetwork
    init_args: {hidden: 4x0e + 4x1o, layers: 2, num_basis: 4, radial_hidden: [8]}
trainer: {gradient_clip_val: 1.0}
"""


STEP = """
device: cpu
model: network.yaml
batch_size: 2
threads: 1
runs: 2
layouts: [ir_mul, mul_ir]
goals: {ratio: 10}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Settings on a small network."""
    for name, text in {"network": NETWORK, "step": STEP}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def molecules(options: Mapping[str, Any] | None = None) -> Batch:
    """Two molecules of three atoms."""
    assert options is None or options["batch_size"] == 2
    generator = torch.Generator().manual_seed(1)
    inside = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
    return Batch(
        z=torch.tensor([8, 1, 1, 6, 1, 7]),
        pos=torch.randn(6, 3, generator=generator),
        edge_index=torch.cat([inside, inside + 3], 1),
        batch=torch.tensor([0, 0, 0, 1, 1, 1]),
        num_graphs=2,
        y=torch.tensor([-2000.0, -1500.0], dtype=torch.float64),
        shifts={1: -13.0, 6: -1000.0, 7: -500.0, 8: -1900.0},
        scale=2.0,
        mean_neighbors=2.0,
    )


def test_step_compares_and_times_every_network(folder: Path) -> None:
    before = torch.get_rng_state()
    result = run_step(str(folder / "step.yaml"), load_batch=molecules)
    assert torch.equal(before, torch.get_rng_state())
    assert [(row["layout"], row["status"]) for row in result["rows"]] == [
        (l, "ok") for l in ("ir_mul", "mul_ir", "mul_ir")
    ]
    assert all(row["seconds"]["median"] > 0 for row in result["rows"])
    assert len({row["parameters"] for row in result["rows"]}) == 1
    assert [g["measured"] for g in result["goals"]] == [row["ratio"]["median"] for row in result["rows"][:2]]


def test_the_other_network_has_no_layer_of_ours_that_e3nn_has() -> None:
    options = {"hidden": "4x0e + 4x1o", "layers": 2, "num_basis": 4, "radial_hidden": [8]}
    nets = networks(options, molecules(), ["mul_ir"], None)
    kinds = {type(module) for module in nets["e3nn"].modules()}
    assert not kinds & {nn.TensorProduct, nn.TensorProductConv, nn.Linear}
    assert swap(nets["e3nn"]) == 0
    mine = dict(nets["mul_ir"].named_parameters())
    theirs = {name.replace(".product.product.", ".product."): p for name, p in nets["e3nn"].named_parameters()}
    assert {name for name, p in theirs.items() if p.numel()} == set(mine)
    assert all(torch.equal(mine[name], p) for name, p in theirs.items() if p.numel())


def test_a_wrong_layer_is_not_timed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right: Callable[..., Tensor] = nn.Linear.forward

    def forward(self: nn.Linear, *args: Tensor) -> Tensor:
        return right(self, *args) * (1.0001 if self.layout == "ir_mul" else 1.0)

    monkeypatch.setattr(nn.Linear, "forward", forward)
    result = run_step(str(folder / "step.yaml"), load_batch=molecules)
    assert [row["status"] for row in result["rows"]] == ["wrong", "ok", "ok"]
    assert result["rows"][0]["seconds"] is None
    assert [g["met"] is None for g in result["goals"]] == [True, False]


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("step", "goals: {ratio: 10}", "goals: {speed: 10}", "expected a goal among ratio"),
        ("step", "layouts: [ir_mul, mul_ir]", "layouts: [ir]", "expected a layout among"),
        ("step", "device: cpu", "device: gpu", "expected a device among cpu, cuda; got 'gpu'"),
        ("network", "learning_rate", "rate", "missed 'learning_rate'. Take configs/qm9_mini.yaml"),
        ("network", "MoleculeNetwork", "Other", "class_path must be eqlayers.models.MoleculeNetwork, got"),
    ],
)
def test_wrong_settings_of_step(file: str, old: str, new: str, message: str, folder: Path) -> None:
    text = (folder / f"{file}.yaml").read_text()
    assert old in text
    (folder / f"{file}.yaml").write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=message):
        run_step(str(folder / "step.yaml"), load_batch=molecules)
