"""From a file of structures to a configuration: what is found, chosen and written; and a fit of a file."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import yaml
from ase import Atoms, units
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from eqlayers.cli.main import main
from eqlayers.data import StructureDataModule
from eqlayers.data.embedded import embedded_trajectory

TINY = {"hidden": "2x0e + 2x1o", "lmax": 1, "layers": 1, "radial_hidden": [4]}
NETWORK = yaml.safe_dump({"class_path": "eqlayers.models.NequIP", "init_args": TINY}, default_flow_style=True)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ethanol(count: int = 60, energy: float = 1.0, forces: float = 1.0, every: int = 1) -> list[Atoms]:
    """Frames of the embedded trajectory with labels in other units."""
    with np.load(embedded_trajectory("ethanol_md")) as stored:
        z, pos, e, f = (stored[name] for name in ("z", "R", "E", "F"))
    frames = []
    for row in range(0, count * every, every):
        atoms = Atoms(z, pos[row])
        atoms.info["REF_energy"] = float(np.ravel(e)[row]) / energy
        atoms.arrays["REF_forces"] = f[row] / forces
        frames.append(atoms)
    return frames


def crystals(count: int = 12) -> list[Atoms]:
    """Copper and gold with springs on the places of a lattice, their stress, and an atom of each."""
    made, frames = np.random.default_rng(0), []
    for _ in range(count):
        atoms = bulk("Cu", cubic=True)
        atoms.numbers[made.permutation(4)[:2]] = 79
        moved = 0.05 * made.standard_normal((4, 3))
        atoms.positions += moved
        energy, stress = float(np.square(moved).sum()) - 4.0, made.standard_normal(6) * 1e-3
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=-2 * moved, stress=stress)
        frames.append(atoms)
    for symbol in ("Cu", "Au"):
        atoms = Atoms(symbol, cell=[15] * 3, pbc=True)
        atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.zeros((1, 3)))
        frames.append(atoms)
    return frames


def written(structures: list[Atoms], *options: str) -> tuple[dict[str, Any], str]:
    """The file that `eqlayers new` writes for some structures."""
    ase.io.write("my.xyz", structures)
    assert main(["new", "my.xyz", *options]) == 0
    text = Path("my.yaml").read_text()
    return yaml.safe_load(text), text


def test_cells_of_one_atom_are_crystals(place: Path) -> None:
    frames = []
    for row in range(6):
        atoms = bulk("Cu", a=3.5 + 0.05 * row)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        frames.append(atoms)
    ase.io.write("cells.xyz", frames)
    main(["new", "cells.xyz"])
    assert yaml.safe_load((place / "cells.yaml").read_text())["data"]["e0s"] == "fit"


def test_a_trajectory_of_a_molecule(capsys: pytest.CaptureFixture[str]) -> None:
    settings, text = written(ethanol())
    data, network = settings["data"], settings["model"]["model"]["init_args"]
    assert network["species"] == ["H", "C", "O"]
    assert data["keys"] == {"energy": "REF_energy", "forces": "REF_forces"}
    assert data["units"] == {"energy": "eV", "forces": "eV/Angstrom"}
    assert data["split"] == "time"
    assert (data["cutoff"], data["e0s"], data["batch_size"]) == (5.0, "fit", 8)
    assert "stress_weight" not in settings["model"]
    assert settings["trainer"]["max_epochs"] % settings["trainer"]["check_val_every_n_epoch"] == 0
    assert "not energies of free atoms" in text
    said = capsys.readouterr().out
    assert "my.xyz: 60 structures of 9 atoms of H, C, O, not periodic; energy, forces" in said
    assert said.rstrip().endswith("type: eqlayers fit my.yaml")
    keys = [line for line in text.splitlines() if line and not line.lstrip().startswith("#")]
    bare = [line for line in keys if "#" not in line and not line.endswith(":")]
    assert bare == ["  e0s: fit"]  # whose comment is long, and stands above it
    assert max(map(len, text.splitlines())) <= 120


def test_free_atoms_of_some_elements_are_used() -> None:
    settings, text = written([atoms for atoms in crystals() if set(atoms.symbols) != {"Au"} or len(atoms) > 1])
    assert settings["data"]["e0s"] == "isolated"
    assert "no free atom of Au is in the file, so a fit gives the rest" in " ".join(text.replace("#", "").split())


def test_crystals_with_stress_and_free_atoms() -> None:
    settings, text = written(crystals())
    assert settings["data"]["e0s"] == "isolated"
    assert (settings["data"]["split"], settings["data"]["val"], settings["data"]["test"]) == ("random", 1, 1)
    assert settings["model"]["stress_weight"] == 1.0
    assert settings["data"]["units"]["stress"] == "eV/Angstrom^3"
    assert settings["model"]["model"]["init_args"]["species"] == ["Cu", "Au"]
    assert "12 structures of 4 atoms, all periodic, and 2 free atoms" in text


def test_the_cutoff_follows_the_distances() -> None:
    """Twice the distance of nearest neighbours in a wide lattice; less where many atoms are near."""
    wide = crystals()[:12]
    for atoms in wide:
        atoms.set_cell(atoms.cell * 1.35, scale_atoms=True)
    assert written(wide)[0]["data"]["cutoff"] == 6.5
    for atoms in wide:
        atoms.set_cell(atoms.cell * 0.55, scale_atoms=True)
    assert written(wide, "--overwrite")[0]["data"]["cutoff"] == 4.5


@pytest.mark.parametrize(
    ("energy", "forces", "told"),
    [
        (units.Hartree, units.Hartree / units.Bohr, "data.units: {energy: Hartree, forces: Hartree/Bohr}"),
        (1.0, units.kcal / units.mol, "data.units: {forces: kcal/mol/Angstrom}"),
        (units.Hartree, 1.0, "data.units: {energy: Hartree}"),
    ],
)
def test_units_are_told_and_never_set(energy: float, forces: float, told: str, capsys) -> None:
    settings, text = written(ethanol(energy=energy, forces=forces))
    assert settings["data"]["units"] == {"energy": "eV", "forces": "eV/Angstrom"}
    assert "taken for granted" in text
    said = capsys.readouterr().out
    assert told in said
    assert told in " ".join(text.replace("#", "").split())


def test_hot_copper_of_all_electrons_stays_in_electronvolts(capsys: pytest.CaptureFixture[str]) -> None:
    """Forces of 20 eV/Angstrom beside energies of -45,000 eV an atom: a remark, and no unit."""
    frames = []
    for row in range(12):
        atoms = bulk("Cu", cubic=True) * (2, 2, 1)
        atoms.rattle(0.45, seed=row)
        atoms.calc = EMT()
        energy = atoms.get_potential_energy() - 45_000.0 * len(atoms)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=atoms.get_forces())
        frames.append(atoms)
    settings, text = written(frames)
    assert settings["data"]["units"] == {"energy": "eV", "forces": "eV/Angstrom"}
    assert "remark: force components" in capsys.readouterr().out
    assert "kcal" not in text


def test_units_that_leave_a_doubt(capsys: pytest.CaptureFixture[str]) -> None:
    """Energies in Hartree look as forces in kcal/mol/Angstrom do; in metals no bond tells."""
    doubtful = crystals(20)[:20]
    for atoms in doubtful:
        energy, forces = atoms.get_potential_energy() / units.Hartree, atoms.get_forces()
        atoms.numbers[:] = 29
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    settings, text = written(doubtful)
    assert settings["data"]["units"] == {"energy": "eV", "forces": "eV/Angstrom"}
    assert "taken for granted" in text
    assert "energies are in Hartree, or forces are in kcal/mol/Angstrom" in capsys.readouterr().out


def test_mistakes_are_noticed(capsys: pytest.CaptureFixture[str]) -> None:
    frames = ethanol(count=100, every=19)
    frames = [frames[row] for row in np.random.default_rng(0).permutation(100)]  # no trajectory
    frames[7] = frames[3].copy()
    frames[11].info["REF_energy"] += 30.0
    frames[13].arrays["REF_forces"][0] = [40.0, 0.0, 0.0]
    settings, text = written(frames)
    assert settings["data"]["split"] == "random"
    said = capsys.readouterr().out
    for words in ("copies of others", "the farthest by +3.3", "my.xyz row 11", "the largest 40: my.xyz row 13"):
        assert words in " ".join(text.replace("#", "").split())
        assert words in said


def test_nothing_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    written(ethanol(20))
    Path("my.yaml").write_text("mine")
    assert main(["new", "my.xyz"]) == 2
    assert "--output must be a new file, got my.yaml" in capsys.readouterr().err
    assert Path("my.yaml").read_text() == "mine"
    assert main(["new", "my.xyz", "-o", "other.yaml"]) == 0
    assert main(["new", "my.xyz", "--overwrite"]) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["my.xyz", "my.yaml", "other.yaml"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda: [Atoms("H2", [[0, 0, 0], [0, 0, 0.7]])] * 5, [], "must have energies, forces, dipoles"),
        (lambda: ethanol(2), [], "must have at least 3 structures of more than one atom"),
        (lambda: crystals()[-2:], [], "must have molecules or crystals, got only free"),
        (lambda: ethanol(5), ["--keys", "energy"], "--keys must be a mapping, got 'energy'"),
        (lambda: ethanol(5), ["--output", "my.txt"], r"--output must end in \.yaml"),
        (lambda: ethanol(30, forces=-1.0), [], "must have the signs of ASE, got others: .* negate the forces"),
    ],
)
def test_what_cannot_be_used(make: Callable[[], list[Atoms]], options: list[str], message: str, capsys) -> None:
    ase.io.write("my.xyz", make())
    assert main(["new", "my.xyz", *options]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not Path("my.yaml").exists()


def test_labels_under_two_names_are_all_read() -> None:
    """Free atoms have `energy`, the others `REF_energy`; the configuration leaves both names out."""
    structures = ethanol(30)
    for symbol, energy in (("H", -13.0), ("C", -60.0), ("O", -60.0)):
        structures.append(Atoms(symbol, info={"energy": energy}))
    config, text = written(structures)
    assert "energy" not in config["data"]["keys"]
    assert config["data"]["keys"]["forces"] == "REF_forces"
    assert config["data"]["units"]["energy"] == "eV"
    assert "energy and REF_energy, of 33 structures; taken for granted" in " ".join(text.replace("#", "").split())
    data = StructureDataModule(**config["data"], cache_dir="cache")
    data.setup()
    assert data.statistics.shifts == {1: -13.0, 6: -60.0, 8: -60.0}
    energies = [data.train_set[row].energy for row in range(len(data.train_set))]
    assert not np.isnan(energies).any()


def test_a_pattern_units_by_group_and_frames_that_cannot_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    Path("sets").mkdir()
    structures = ethanol(30)
    for atoms in structures[20:]:
        atoms.info.update(config_type="other", REF_energy=atoms.info["REF_energy"] * 1000)
    ase.io.write("sets/a.xyz", structures[:20])
    ase.io.write("sets/b.xyz", structures[20:])
    with open("sets/b.xyz", "a") as file:
        file.write("2\n\nH 0 0 0\n")
    assert main(["new", "sets/*.xyz"]) == 2
    assert "b.xyz must have frames that can be read, got frame 10, line 111" in capsys.readouterr().err
    options = ["--units", "{groups: {other: {energy: meV}}}", "--skip-bad"]
    assert main(["new", "sets/*.xyz", *options]) == 0
    said = capsys.readouterr().out
    assert "noticed  units of the group other: {'energy': 'meV'}" in said
    assert "noticed  left out: b.xyz, frame 10, line 111: the frame says 2 atoms and has 1 lines" in said
    data = yaml.safe_load(Path("sets.yaml").read_text())["data"]
    assert (data["path"], data["skip_bad"], data["units"]["groups"]) == (
        "sets/*.xyz", True, {"other": {"energy": "meV"}}
    )  # fmt: skip
    module = StructureDataModule(**data)
    assert module.species == (1, 6, 8)
    assert main(["fit", "sets/*.xyz", *(word.replace("--units", "--data.units") for word in options[:2])]) == 2
    assert "b.xyz must have frames that can be read" in capsys.readouterr().err


def test_a_fit_of_a_file_has_these_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    """The run is named after the file, and other commands find it by the file."""
    ase.io.write("my.xyz", ethanol(60)[::2])
    options = ["--trainer.max_epochs=1", "--trainer.accelerator=cpu", "--test_after_fit=false"]
    options += ["--model.model", NETWORK]
    assert main(["fit", "my.xyz", *options]) == 0
    said = capsys.readouterr().out
    assert "configuration: runs/my/config.yaml" in said
    names = {"cutoff", "atoms", "split", "network", "training"}
    replaced = {line.split()[0]: after for line, after in pairwise(said.splitlines()) if line.strip()}
    for name in names:
        assert replaced[name].startswith("         --"), name
    kept = yaml.safe_load(Path("runs/my/config.yaml").read_text())
    assert (kept["data"]["path"], kept["data"]["keys"]["energy"], kept["data"]["batch_size"]) == (
        "my.xyz",
        "REF_energy",
        8,
    )
    assert sorted(path.name for path in Path().iterdir()) == ["my.xyz", "runs"]
    assert main(["fit", "my.xyz", *options]) == 2
    assert "--resume" in capsys.readouterr().err
    assert main(["test", "my.xyz"]) == 0
    assert "eqlayers test my.xyz" in Path("runs/my/report.html").read_text()
    assert main(["fit", "my.xyz", "--resume", "--trainer.max_epochs", "2"]) == 0
    assert "resume: runs/my/checkpoints/last.ckpt" in capsys.readouterr().out
    tuned = ["--name", "tuned", "--start_from", "runs/my/potential.pt", "--trainer.fast_dev_run", "1"]
    assert main(["fit", "my.xyz", *tuned, "--trainer.accelerator", "cpu"]) == 0, "the potential has its own network"
    Path("other").mkdir()
    Path("my.xyz").rename("other/my.xyz")
    for command in (["test", "other/my.xyz"], ["fit", "other/my.xyz", "--resume"]):
        assert main(command) == 2
        expected = f"{command[0]} must name the structures of the run in runs/my, my.xyz, got other/my.xyz"
        assert expected in capsys.readouterr().err


def test_species_that_are_left_out_are_those_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    settings, _ = written(ethanol(12))
    settings["model"]["model"] = yaml.safe_load(NETWORK)
    Path("my.yaml").write_text(yaml.safe_dump(settings))
    assert main(["fit", "my.yaml", "--trainer.fast_dev_run", "1", "--trainer.accelerator", "cpu"]) == 0
    assert "species of the data: H, C, O" in capsys.readouterr().out


def test_a_hidden_file_with_energies_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Its run and its configuration are not hidden, and the missing forces are told."""
    frames = ethanol(12)
    for atoms in frames:
        del atoms.arrays["REF_forces"]
    ase.io.write(".my.xyz", frames)
    assert main(["new", ".my.xyz"]) == 0
    assert yaml.safe_load(Path("my.yaml").read_text())["name"] == "my"
    said = capsys.readouterr().out
    assert "noticed  forces: none in the file" in said
    assert "keys: {forces: my_forces}" in said


def test_what_stands_in_the_place_of_a_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    ase.io.write("my.xyz", ethanol(5))
    Path("a.yaml").write_text("name: a\n")
    for words, message in (
        (["fit", "none.xyz"], "fit must have a configuration or a file of structures after it, got 'none.xyz'"),
        (["test", "my.xyz"], "test must come after a fit, got no run of my.xyz in runs/my"),
        (["fit", "my.xyz", "-c", "a.yaml"], "fit must have one of structures and configuration"),
    ):
        assert main(words) == 2
        assert message in capsys.readouterr().err
