"""`eqlayers mace` without mace-torch: what it asks for, files that it refuses, and the file that LAMMPS reads."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from e3nn import o3
from torch import Tensor, nn

from eqlayers.errors import ConfigError, DataError
from eqlayers.integrations import accelerate
from eqlayers.integrations import mace as programs
from eqlayers.integrations.from_mace import from_mace, load_model
from eqlayers.integrations.kinds.product import AcceleratedLinear


class Network(nn.Module):
    """A model with the attributes by which a MACE is known."""

    def __init__(self, *heads: str) -> None:
        super().__init__()
        self.heads, self.interactions = list(heads), nn.ModuleList([o3.Linear("2x0e", "3x0e").double()])
        self.register_buffer("r_max", torch.tensor(5.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.interactions[0](x)


class Interface(nn.Module):
    """LAMMPS's view of a model; MACE's own makes buffers of torch's default dtype as well."""

    def __init__(self, model: nn.Module, head: str) -> None:
        super().__init__()
        self.model, self.head, self.spin = model, head, torch.zeros(())


@pytest.fixture
def mace_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for the package that is not installed."""
    for name in ("mace", "mace.calculators", "mace.calculators.lammps_mliap_mace"):
        module: Any = ModuleType(name)
        module.LAMMPS_MLIAP_MACE = Interface
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(programs, "find_spec", lambda name: name)


def test_commands_say_that_mace_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"must run beside mace-torch, got no module mace\. pip install mace-torch"):
        programs.run(["train", "--name", "water"])
    with pytest.raises(ConfigError, match=r"command must .*got 'tran'"):
        programs.run(["tran"])
    with pytest.raises(ConfigError, match="must have command after it"):
        programs.run([])


@pytest.mark.usefixtures("mace_torch")
def test_files_that_hold_no_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "text.model").write_text("no model")
    torch.save({"weight": torch.ones(1)}, tmp_path / "state.model")
    torch.save(nn.Linear(1, 1), tmp_path / "linear.model")
    messages = {
        "text": r"model must be a file of a module of mace-torch, got .*text\.model ",
        "state": r"model must be a module of mace-torch, or its file, got .*State dicts hold no options",
        "linear": r"model must be a MACE of mace-torch, got a module of type Linear",
    }
    for name, message in messages.items():
        with pytest.raises(ConfigError, match=message):
            programs.run(["lammps", str(tmp_path / f"{name}.model"), str(tmp_path / "out.pt")])
    with pytest.raises(ConfigError, match=r"none\.model \(FileNotFoundError"):
        programs.run(["lammps", str(tmp_path / "none.model"), str(tmp_path / "out.pt")])
    assert not (tmp_path / "out.pt").exists()


@pytest.mark.usefixtures("mace_torch")
def test_the_file_for_lammps_has_our_layers_and_the_model_keeps_its_own(tmp_path, capsys) -> None:
    network, x = Network("pbe", "scan"), torch.randn(4, 2).double()
    target = tmp_path / "out.pt"
    with pytest.raises(ConfigError, match="head must"):
        programs.write_lammps(network, target)
    assert not target.exists()
    report = programs.write_lammps(network, target, head="scan")
    assert [row.path for row in report.replaced] == ["interactions.0"]
    assert type(network.interactions[0]) is o3.Linear
    written = torch.load(target, weights_only=False)
    assert (written.head, written.spin.dtype) == ("scan", torch.float64), "buffers have the dtype of the model"
    assert torch.get_default_dtype() == torch.float32
    assert type(written.model.interactions[0]) is AcceleratedLinear
    torch.testing.assert_close(written.model(x), network(x))
    accelerate(network)
    torch.save(network, tmp_path / "fast.model")
    options = ["--head", "pbe", "--dtype", "float32"]
    assert programs.run(["lammps", str(tmp_path / "fast.model"), str(target), *options]) == 0
    assert f"wrote {target}" in capsys.readouterr().out
    written = torch.load(target, weights_only=False)
    assert (written.head, written.spin.dtype) == ("pbe", torch.float32)
    torch.testing.assert_close(written.model(x.float()), network(x).float())


def test_a_damaged_model_is_refused_with_the_name_of_the_member(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(100, 1), path := tmp_path / "some.model")
    whole = bytearray(path.read_bytes())
    whole[whole.index(b"data/0") + 200] ^= 1
    path.write_bytes(whole)
    for load in (load_model, from_mace):
        with pytest.raises(DataError, match=r"some\.model: its member 'some/data/0' is damaged\. Copy it again"):
            load(path)
    path.write_bytes(b"no pickle")
    with pytest.raises(ConfigError, match="model must"):
        load_model(path)
