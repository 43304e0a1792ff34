"""Trainings that begin with a trained potential: what is kept, shifts of other energies, replay, and the command."""

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.io import write

from eqlayers.cli.main import main
from eqlayers.data import StructureArrays, StructureDataset, structure_edges
from eqlayers.errors import ConfigError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import NequIP, Potential, Structures, extend_potential, load_potential
from eqlayers.nn import ZBL
from eqlayers.train import fine_tuning
from eqlayers.train.fine_tuning import fit_shifts, trained_on
from eqlayers.train.potential import PotentialModule
from tests.train.waters import displaced_waters, label_by_springs

# springs here are a twentieth as stiff as bonds, which the check of units notices
pytestmark = pytest.mark.filterwarnings("ignore:forces are .* times the forces of usual bonds")

SMALL: dict[str, Any] = {"hidden": "4x0e + 4x1o", "lmax": 1, "layers": 2, "cutoff": 3.0, "radial_hidden": [8]}


def network(species: list[int], **options: Any) -> NequIP:
    torch.manual_seed(1)
    return NequIP(species, **{**SMALL, **options})


# -- shifts -----------------------------------------------------------------------------------------------------------

CHANGE = {1: 0.25, 8: -3.0, 16: 70.0}


def shifted(potential: Potential, molecules: list[list[int]], unlabelled: int = 0) -> SimpleNamespace:
    """Structures with the energies of a potential plus CHANGE of each atom; the first may have none."""
    made, z = np.random.default_rng(0), [number for molecule in molecules for number in molecule]
    sizes = [len(molecule) for molecule in molecules]
    bare = StructureArrays.of("a test", sizes, z, made.normal(size=(len(z), 3)) + np.arange(len(z))[:, None])
    edges = structure_edges(bare, 3.0)
    data, energy = StructureDataset(bare, edges, dtype=torch.float64), []
    for number, molecule in enumerate(molecules):
        sample = data[number]
        energies = potential(Structures(sample.z, sample.pos, sample.edge_index), ("energy",))["energy"]
        energy.append(float(energies.detach()) + sum(CHANGE[kind] for kind in molecule))
    energy[:unlabelled] = [np.nan] * unlabelled
    labelled = replace(bare, energy=np.array(energy))
    rows = np.arange(len(molecules))[::-1].copy()  # in another order than the file
    statistics = SimpleNamespace(shifts={1: -13.6, 8: -2041.0}, fitted=(1, 8, 16))
    return SimpleNamespace(
        train_set=StructureDataset(labelled, edges, rows), e0s="fit", eval_size=lambda part: 2, statistics=statistics
    )


MOLECULES = [[8, 1, 1], [16, 1, 1], [8, 8], [16, 1, 8], [1, 1], [16, 16, 8]]


@pytest.fixture
def potential() -> Potential:
    made = Potential(network([1, 8, 16, 7]).double(), [1, 8, 16, 7], {1: -1.0, 8: -2.0, 16: -3.0, 7: -4.0}, 0.5)
    return made.train()


def test_shifts_take_what_the_energies_lack(potential: Potential) -> None:
    data = shifted(potential, MOLECULES, unlabelled=1)
    fit_shifts(potential, data, known=(1, 8), refit=True)
    want = [-1.0 + CHANGE[1], -2.0 + CHANGE[8], -3.0 + CHANGE[16], -4.0]
    assert potential.shifts.tolist() == pytest.approx(want, rel=1e-5)  # positions of the set are in float32
    assert potential.scales.tolist() == [0.5] * 4
    assert potential.training


def test_shifts_of_known_species_may_stay(potential: Potential) -> None:
    data = shifted(potential, [[16, 16], [1, 1], [16, 16, 16]])
    before = potential.shifts.tolist()
    fit_shifts(potential, data, known=(1, 8), refit=False)
    assert potential.shifts.tolist() == pytest.approx([before[0], before[1], -3.0 + CHANGE[16], before[3]], rel=1e-5)
    fit_shifts(potential, shifted(potential, MOLECULES), known=(1, 8, 16, 7), refit=False)
    assert potential.shifts[:2].tolist() == before[:2]


def test_of_one_composition_the_change_is_the_shortest(potential: Potential) -> None:
    data = shifted(potential, [[8, 1, 1]] * 3)
    fit_shifts(potential, data, known=(1, 8), refit=True)
    lacking = 2 * CHANGE[1] + CHANGE[8]
    want = [-1.0 + lacking * 2 / 5, -2.0 + lacking / 5, -3.0, -4.0]
    assert potential.shifts.tolist() == pytest.approx(want, rel=1e-5)


def test_structures_count_alike_whatever_their_size(potential: Potential) -> None:
    """The errors are per atom: 0.35 and 0.25 eV of two molecules of 2 and 8 atoms."""
    data = shifted(potential, [[1, 1], [1] * 8])
    data.train_set.structures.energy[0] += 0.2
    fit_shifts(potential, data, known=(1, 8), refit=True)
    assert float(potential.shifts[0]) == pytest.approx(-1.0 + 0.3, abs=1e-5)


def test_energies_of_free_atoms_that_are_given_are_the_shifts(potential: Potential) -> None:
    data = shifted(potential, MOLECULES)
    data.statistics.fitted = ()
    fit_shifts(potential, data, known=(1, 8), refit=False)
    assert potential.shifts.tolist() == [-13.6, -2041.0, -3.0, -4.0]
    fit_shifts(potential, shifted(potential, MOLECULES, unlabelled=6), known=(1, 8), refit=True)
    assert potential.shifts.tolist() == [-13.6, -2041.0, -3.0, -4.0]


def test_of_some_energies_that_are_given_the_rest_is_fitted(potential: Potential) -> None:
    """The fit is of errors with the shifts that are given."""
    data = shifted(potential, MOLECULES)
    data.statistics = SimpleNamespace(shifts={1: -1.0 + CHANGE[1], 8: -2.0 + CHANGE[8], 16: 9.0}, fitted=(16,))
    fit_shifts(potential, data, known=(1, 8), refit=False)
    want = [-1.0 + CHANGE[1], -2.0 + CHANGE[8], -3.0 + CHANGE[16], -4.0]
    assert potential.shifts.tolist() == pytest.approx(want, rel=1e-5)
    data.statistics.shifts[1] += 0.5  # which a fit would take back
    fit_shifts(potential, data, known=(1, 8), refit=True)
    assert potential.shifts.tolist()[:2] == pytest.approx([want[0] + 0.5, want[1]], rel=1e-12)


def test_rare_species_are_among_the_many_energies_that_are_looked_at(potential: Potential, monkeypatch) -> None:
    monkeypatch.setattr(fine_tuning, "MOST", 16)
    data = shifted(potential, [[1, 1]] * 40 + [[8, 8]] * 11 + [[16, 1]] + [[1, 1]] * 41)
    assert 41 not in np.linspace(0, 92, 16).astype(np.int64), "the rare one must not be among the others by chance"
    fit_shifts(potential, data, known=(1, 8), refit=True)
    want = [-1.0 + CHANGE[1], -2.0 + CHANGE[8], -3.0 + CHANGE[16]]
    assert potential.shifts[:3].tolist() == pytest.approx(want, rel=1e-5)


# -- the module -------------------------------------------------------------------------------------------------------


def test_a_module_begins_with_a_potential() -> None:
    start = Potential(network([8, 1], mean_neighbors=5.0), [8, 1], {8: -2.0}, {8: 2.0, 1: 3.0})
    made = PotentialModule(network([1, 8, 7]), species_weights={16: 4.0})
    made.begin_with(start, [16, 1])
    assert made.potential.species == made.model.species == (8, 1, 7, 16)
    assert made.species_factors.tolist() == [1.0, 1.0, 1.0, 4.0]
    assert made.potential.scales.tolist() == [2.0, 3.0, 2.5, 2.5]
    assert torch.equal(made.model.embedding.weight[:2], start.network.embedding.weight)
    assert float(made.model.steps[0].mean_neighbors) == 5.0


def test_a_converted_potential_keeps_its_energies_of_lone_atoms() -> None:
    """In the training that it begins, and in one that goes on from a checkpoint of that."""
    start = Potential(network([1, 8]), [1, 8], subtract_isolated=False)
    made, resumed = PotentialModule(network([1, 8])), PotentialModule(network([1, 8]))
    assert made.potential.subtract_isolated
    made.begin_with(start, [16])
    assert not made.potential.subtract_isolated
    checkpoint: dict[str, Any] = {"state_dict": made.state_dict()}
    made.on_save_checkpoint(checkpoint)
    resumed.on_load_checkpoint(checkpoint)
    assert not resumed.potential.subtract_isolated


def test_another_architecture_is_told() -> None:
    start = Potential(network([1, 8]), [1, 8])
    for made, message in (
        (
            PotentialModule(network([1, 8], layers=3)),
            r"model\.model\.init_args\.layers: 2 -> 3\. Leave out model\.model",
        ),
        (PotentialModule(network([1, 8], cutoff_p=8)), r"cutoff_p: 6 -> 8"),
        (PotentialModule(network([1, 8]), repulsion=ZBL()), r"model\.repulsion: None -> {'class_path'"),
    ):
        with pytest.raises(ConfigError, match=message):
            made.begin_with(start)
    with pytest.raises(ConfigError, match="start_from must"):
        PotentialModule(network([1, 8])).begin_with("potential.pt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="refit_shifts must"):
        PotentialModule(network([1, 8])).begin_with(start, refit_shifts="no")  # type: ignore[arg-type]


# -- the command ------------------------------------------------------------------------------------------------------

CONFIG = """
task: potential
name: {name}
runs: {folder}
test_after_fit: {test}
report: false
{start}
data:
  path: {folder}/{name}.xyz
  train: 12
  val: 4
  cache_dir: {folder}/cache
  {data}
model:
  learning_rate: {rate}
  warmup_steps: 1
  {model}
trainer: {{accelerator: cpu, max_epochs: 1, log_every_n_steps: 1}}
"""
NETWORK = "model: {class_path: eqlayers.models.NequIP, init_args: {species: [1, 8], hidden: 4x0e + 4x1o, lmax: 1, "
NETWORK += "layers: 2, radial_hidden: [8]}}"


def springs(symbols: str, shift: float, cell: float | None = None) -> list[Atoms]:
    """Molecules of three atoms with energies and forces of springs, and stress in cells."""
    frames = list(displaced_waters(20))
    for atoms in frames:
        atoms.symbols = symbols
        pulls = label_by_springs(atoms, shift=shift)
        atoms.arrays["REF_forces"] = pulls.sum(1)
        if cell is not None:
            atoms.set_cell([cell] * 3)
            atoms.pbc = True
            vectors = atoms.positions[None] - atoms.positions[:, None]
            atoms.info["REF_stress"] = (np.einsum("ija,ijb->ab", pulls, vectors) / 2 / cell**3).ravel()
    return frames


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("fine_tuning")
    write(made / "old.xyz", springs("OHH", -14.0), format="extxyz")
    write(made / "new.xyz", springs("SHH", -40.0, cell=9.0), format="extxyz")
    common = {"folder": made, "test": "true"}
    rows: dict[str, dict[str, Any]] = {
        "old": {"start": "", "data": "cutoff: 3.0", "rate": 0.01, "model": NETWORK},
        "new": {
            "start": f"start_from: {made}/old/potential.pt",
            "data": f"replay: {{path: {made}/old.xyz, number: 0.5}}",
            "rate": 1e-12,
            "model": "stress_weight: 1.0",
        },
    }
    for name, row in rows.items():
        (made / f"{name}.yaml").write_text(CONFIG.format(name=name, **common, **row))
    assert main(["fit", "-c", str(made / "old.yaml")]) == 0
    assert main(["fit", "-c", str(made / "new.yaml"), "--refit_shifts", "false"]) == 0
    return made


def test_a_run_keeps_what_the_potential_knew(folder: Path) -> None:
    """At a learning rate of nothing the energies of known structures are those before, with a species more."""
    old, new = (load_potential(folder / name / "potential.pt") for name in ("old", "new"))
    assert (old.species, new.species) == ((1, 8), (1, 8, 16))
    assert new.shifts[:2].tolist() == old.shifts.tolist()
    assert new.shifts[2] < -20.0  # fitted
    for atoms in springs("OHH", -14.0)[:3]:
        energies, forces = [], []
        for potential in (old, new):
            atoms.calc = Calculator(potential)
            energies.append(atoms.get_potential_energy())
            forces.append(atoms.get_forces())
        assert energies[0] == pytest.approx(energies[1], abs=1e-4)
        np.testing.assert_allclose(*forces, rtol=0, atol=1e-4)
        assert np.abs(forces[0]).max() > 0.01


def test_the_configuration_of_the_run_is_whole(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = yaml.safe_load((folder / "new" / "config.yaml").read_text())
    assert kept["model"]["model"]["init_args"]["species"] == [1, 8, 16]
    assert kept["data"]["cutoff"] == 3.0
    errors = []
    for config in (folder / "new.yaml", folder / "new" / "config.yaml"):
        assert main(["test", "-c", str(config)]) == 0
        errors.append(capsys.readouterr().out.split("test errors")[1].split("report:")[0])
    assert errors[0] == errors[1]
    assert "stress" in errors[0]  # which the old structures have not
    last = str(folder / "new" / "checkpoints" / "last.ckpt")
    more = ["--start_from", "gone.pt", "--trainer.max_epochs", "2", "--test_after_fit", "false"]
    assert main(["fit", "-c", str(folder / "new.yaml"), "--resume", *more]) == 0  # nothing is begun again
    assert torch.load(last, weights_only=True)["epoch"] == 1
    assert torch.equal(load_potential(last).shifts, load_potential(folder / "new" / "potential.pt").shifts)


def test_shifts_are_refitted_by_default(folder: Path) -> None:
    quick = ["--name", "refitted", "--data.replay", "null", "--test_after_fit", "false"]
    assert main(["fit", "-c", str(folder / "new.yaml"), *quick]) == 0
    new = load_potential(folder / "refitted/checkpoints/last.ckpt")
    old = load_potential(folder / "old/potential.pt")
    assert new.shifts[0] != old.shifts[0]
    assert new.shifts[1] == old.shifts[1]  # the data have no oxygen
    wider = extend_potential(old, [16])
    changes = (new.shifts - wider.shifts).tolist()
    assert changes[0] == pytest.approx(2 * changes[2], rel=1e-6)  # the shortest for two hydrogen and a sulfur


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--start_from", "no/such.pt"], "a potential must be a file, got nothing at no/such.pt"),
        (["--data.cutoff", "4.0"], "model.model.init_args.cutoff: 3.0 -> 4.0. Leave out model.model and data.cutoff"),
        (["--model.model.init_args.layers", "3"], "model.model.init_args.layers: 2 -> 3"),
        (["--name", "old"], "start_from must be outside of the run's folder, which is written over"),
        (["--data.replay.number", "100"], "replay.number must be for 1 to 20 structures"),
        (["--data.replay.parts", "100"], "a key of replay must be one of path, number"),
    ],
)
def test_what_does_not_fit_is_told(folder: Path, options: list[str], message: str, capsys) -> None:
    assert main(["fit", "-c", str(folder / "new.yaml"), "--name", "bad", *options]) == 2
    assert message in capsys.readouterr().err
    assert (folder / "old" / "potential.pt").exists()


@pytest.mark.filterwarnings("ignore::eqlayers.errors.EqlayersWarning")  # of few structures
def test_structures_that_the_earlier_potential_was_trained_on(folder: Path, tmp_path, capsys, caplog) -> None:
    """Its test part is named by the fit, by a resumed fit and by a test; of a file without its run nothing is known."""
    config = ["-c", str(folder / "old.yaml"), "--runs", str(tmp_path), "--data.split_seed", "7"]
    start = ["--start_from", str(folder / "old" / "potential.pt")]
    capsys.readouterr()
    assert main(["fit", *config, *start]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\d of 4 val structures, \d+%, were trained on: errors on them say nothing", said)
    share = json.loads((tmp_path / "old" / "metrics.json").read_text())["test_trained_share"]
    assert 0 < share <= 1
    for words in (["fit", *config, *start, "--resume", "--trainer.max_epochs", "2"], ["test", *config]):
        (tmp_path / "old" / "metrics.json").unlink()
        assert main(words) == 0
        assert f"test structures, {share:.0%}, were trained on" in capsys.readouterr().out
        assert json.loads((tmp_path / "old" / "metrics.json").read_text())["test_trained_share"] == share
    mine = trained_on(tmp_path / "old" / "potential.pt")
    theirs = trained_on(folder / "old" / "checkpoints" / "best.ckpt")
    assert len(theirs) == 12
    assert set(theirs.tolist()) < set(mine.tolist())
    moved = shutil.copy(folder / "old" / "potential.pt", tmp_path)
    assert len(trained_on(moved)) == 0
    assert main(["fit", *config, "--name", "other", "--data.path", str(folder / "old.xyz"), "--start_from", moved]) == 0
    assert "which structures it was trained on is not known" in caplog.text


OWN = """
from pathlib import Path
from eqlayers.models import NequIP
Path(__file__).with_name("imported").touch()

class Network(NequIP):
    pass
"""


@pytest.mark.parametrize("classes", ["my_network.Network", "[other.Thing, my_network.Network]"])
def test_a_network_of_ones_own_must_be_named(classes: str, folder: Path, tmp_path, capsys, monkeypatch) -> None:
    """A configuration may name any class, a file that it begins with only those that are allowed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_network", raising=False)
    (tmp_path / "my_network.py").write_text(OWN)
    content = torch.load(folder / "old" / "potential.pt", weights_only=True)
    content["potential"]["network"]["class_path"] = "my_network.Network"
    torch.save(content, tmp_path / "own.pt")
    command = ["fit", "-c", str(folder / "new.yaml"), "--name", "own", "--runs", str(tmp_path)]
    command += ["--start_from", str(tmp_path / "own.pt"), "--trainer.max_epochs", "1", "--test_after_fit", "false"]
    assert main([*command, "--data.replay", "null"]) == 2
    assert "name it: --classes my_network.Network, in Python" in capsys.readouterr().err
    assert not (tmp_path / "imported").exists()
    command += ["--classes", classes]
    assert main([*command, "--data.replay", "null"]) == 0, capsys.readouterr().err
    last = tmp_path / "own" / "checkpoints" / "last.ckpt"
    module = PotentialModule.load_from_checkpoint(last, classes="my_network.Network")
    assert type(module.potential.network).__name__ == "Network"
    for load in (load_potential, PotentialModule.load_from_checkpoint):
        with pytest.raises(ConfigError, match=r"--classes my_network\.Network"):
            load(last)
    on = [*command, "--data.replay", "null", "--resume", "--trainer.max_epochs", "2"]
    assert main([word for word in on if word not in ("--classes", classes)]) == 2
    assert "name it: --classes my_network.Network, in Python" in capsys.readouterr().err
    assert main(on) == 0
    assert torch.load(last, weights_only=True)["epoch"] == 1


def test_parsers_make_no_class_of_an_argument(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = torch.load(folder / "old" / "potential.pt", weights_only=True)
    hostile = {"class_path": "torch_geometric.nn.Sequential", "init_args": {"input_args": "x", "modules": []}}
    content["potential"]["network"]["init_args"]["hidden"] = hostile
    torch.save(content, tmp_path / "bad.pt")
    command = ["fit", "-c", str(folder / "new.yaml"), "--name", "bad", "--start_from", str(tmp_path / "bad.pt")]
    assert main(command) == 2
    assert "init_args of eqlayers.models.NequIP must be plain values, got another class_path" in capsys.readouterr().err


def test_properties_of_molecules_do_not_begin_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "-c", "configs/qm9_mini.yaml", "--start_from", "x.pt"]) == 2
    assert "got 'start_from'" in capsys.readouterr().err
