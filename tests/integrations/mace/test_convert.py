"""`eqlayers convert` of a model of mace-torch to a potential and back, and the file for LAMMPS of a potential."""

import shlex
from pathlib import Path

import pytest
import torch

from eqlayers.cli.main import main
from eqlayers.models import MACE, Potential, load_potential, save_potential

from .test_from_mace import EPS, SPECIES, batch_of, make


def test_there_and_back_by_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model, batch = make(), batch_of()
    torch.save(model, "my.model")
    assert main(shlex.split("convert my.model -o my.pt")) == 0
    assert load_potential("my.pt").species == SPECIES
    assert main(shlex.split("convert my.pt -o back.model")) == 0
    want = model(batch.to_dict(), training=False)
    got = torch.load("back.model", weights_only=False)(batch.to_dict(), training=False)
    for name in ("energy", "forces"):
        size = max(float(want[name].detach().abs().max()), 1.0)
        torch.testing.assert_close(got[name], want[name], rtol=0, atol=1000 * EPS * size)


def test_a_head_is_chosen_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(make(heads=["DFT", "MP2"]), "my.model")
    assert main(shlex.split("convert my.model -o none.pt")) == 2
    assert not Path("none.pt").exists()
    assert main(shlex.split("convert my.model -o my.pt --head MP2")) == 0


@pytest.mark.filterwarnings("ignore:The TorchScript type system")  # torch about e3nn 0.4
def test_lammps_takes_a_potential_of_a_mace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has the energies of the atoms of the potential itself."""
    monkeypatch.chdir(tmp_path)
    network = MACE(["H", "O"], hidden="4x0e + 4x1o", cutoff=4.0, correlation=2)
    potential = Potential(network, ["H", "O"], {"H": -13.0, "O": -430.0}).double()
    save_potential(potential, "my.pt")
    assert main(shlex.split("mace lammps my.pt my-mliap.pt")) == 0
    written = torch.load("my-mliap.pt", weights_only=False)
    assert sorted(written.element_types) == ["H", "O"]
    shifts = written.model.model.atomic_energies_fn.atomic_energies.flatten()
    torch.testing.assert_close(shifts.double().cpu(), potential.shifts_of_network())
