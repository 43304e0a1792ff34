"""`eqlayers convert` of a potential to a checkpoint of nequip, and back."""

import shlex
from pathlib import Path

import pytest
import torch

from eqlayers.cli.main import main
from eqlayers.errors import ConfigError
from eqlayers.models import NequIP, Potential, load_potential, save_potential

from .test_from_nequip import crystal


def test_there_and_back_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(3)
    network = NequIP([8, 1, 6], hidden="4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0)
    network.set_mean_neighbors(4.3)  # which is in no weight of nequip
    potential = Potential(network, [8, 1, 6], {1: -3.0, 6: -4.0, 8: -5.0}, {1: 0.5, 6: 1.5, 8: 2.5}).double().eval()
    save_potential(potential, "my.pt")
    assert main(shlex.split("convert my.pt -o my.ckpt")) == 0
    assert main(shlex.split("convert my.ckpt -o back.pt --from nequip")) == 0
    assert torch.get_default_dtype() == torch.float32
    atoms, eps = crystal(), torch.finfo(torch.float64).eps
    want, got = (one(atoms, ("energies", "forces")) for one in (potential, load_potential("back.pt")))
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=0, atol=400 * eps * max(float(value.abs().max()), 1.0))
    network.steps[1].get_buffer("mean_neighbors").fill_(5.0)
    save_potential(potential, "uneven.pt")
    assert main(shlex.split("convert uneven.pt -o uneven.ckpt")) == 2
    assert not Path("uneven.ckpt").exists()


def test_other_files_are_no_models_of_nequip(tmp_path: Path) -> None:
    from eqlayers.integrations.from_nequip import load_nequip

    torch.save({"state_dict": {}}, tmp_path / "other.ckpt")
    with pytest.raises(ConfigError, match="a checkpoint or a package of nequip"):
        load_nequip(str(tmp_path / "other.ckpt"))
