"""The data module of structures: parts from one file or several, batches, statistics, reports and warnings."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.io import read, write
from lightning import LightningModule, Trainer

from eqlayers.data import StructureDataModule
from eqlayers.data.embedded import embedded_trajectory
from eqlayers.errors import ConfigError, DataError, EqlayersWarning
from eqlayers.models.structures import Structures
from tests.each import refused


@pytest.fixture
def module(tmp_path):
    """Makes data modules with a cache of their own, set up."""

    def build(path="ethanol_md", **options) -> StructureDataModule:
        data = StructureDataModule(str(path), **({"cutoff": 4.0, "cache_dir": str(tmp_path / "cache")} | options))
        data.setup()
        return data

    return build


def trimers(
    folder: Path, name: str, num: int, seed: int, z: str = "OH2", bare: int = 0, stress: bool = False, **info: Any
) -> str:
    """Random molecules in a file, with energies and forces that add up to 0; the first ``bare`` have no label."""
    rng, made = np.random.default_rng(seed), []
    for row in range(num):
        atoms = Atoms(z, positions=rng.normal(scale=0.2, size=(3, 3)) + np.eye(3))
        forces = rng.normal(size=(3, 3))
        if row >= bare:
            atoms.info |= {"REF_energy": rng.normal() - 5.0, **{key: value(row) for key, value in info.items()}}
            atoms.arrays["REF_forces"] = forces - forces.mean(0)
        if stress:
            atoms.set_cell([9.0, 9, 9])
            atoms.pbc = True
            atoms.info["REF_stress"] = 1e-3 * rng.normal(size=6)
        made.append(atoms)
    write(folder / name, made, format="extxyz")
    return str(folder / name)


def lengths(data) -> list[int]:
    return [len(data.train_set), len(data.val_set), len(data.test_set)]


def test_charges_that_differ_between_files_are_said(module, tmp_path):
    """Once, and not where a file alone has all of them, or where 0 is 0.0."""
    files = {}
    for seed, (name, charge) in enumerate({"neutral": 0, "zero": 0.0, "ions": 1}.items()):
        files[name] = trimers(tmp_path, f"{name}.xyz", 12, seed, charge=lambda row, charge=charge: charge)
    files["both"] = trimers(tmp_path, "both.xyz", 12, 3, charge=lambda row: row % 2)
    said = "charge: 0, 1{}, which no network sees: alike structures have other energies; train on one"
    for other, want in (("zero", []), ("ions", [said.format(" in different files")]), ("both", [said.format("")])):
        data = module(files["neutral"], val_path=files[other], val=None, test=2)
        assert [line for line in data.report if line.startswith("charge")] == want, other
        again = module(files["neutral"], replay={"path": files[other], "number": 2}, train=8, val=2, test=2)
        assert [line for line in again.report if line.startswith("charge")] == want, other


def test_an_embedded_set(module):
    data = module(train=950, val=50)
    assert lengths(data) == [950, 50, 1000]
    assert data.labels == data.statistics.labels == data.train_set.labels == ("energy", "forces", "dipole")
    assert data.statistics.species == (1, 6, 8)
    assert data.statistics.num_train == 950
    assert data.statistics.residual_std == pytest.approx(0.129, abs=0.01)
    assert any("not energies of free atoms" in line for line in data.report)
    batch = next(iter(data.train_dataloader()))
    Structures.of(batch).checked(torch.float32)
    assert batch.energy.shape == (8,)
    assert "stress" not in batch, "no structure has one"


def test_parts_do_not_depend_on_the_seed_of_training(module):
    one, other, drawn = module(seed=1), module(seed=2), module(split_seed=3)
    assert one.test_set.rows == other.test_set.rows != drawn.test_set.rows
    first, second = (next(iter(data.train_dataloader())).idx.tolist() for data in (one, other))
    assert first != second
    assert first == next(iter(module(seed=1).train_dataloader())).idx.tolist()


def test_fewer_training_structures_are_nested_and_spread_over_the_training_part(module):
    whole, few, more = (module("ethanol_md", split="time", limit_train=num) for num in (None, 50, 200))
    rows = [{int(sample.idx) for sample in data.train_set} for data in (few, more, whole)]
    assert rows[0] < rows[1] < rows[2] == set(range(1200))
    assert [len(part) for part in rows] == [50, 200, 1200]
    assert min(rows[0]) < 120
    assert max(rows[0]) > 1080
    for part in ("val_set", "test_set"):
        same = [[int(sample.idx) for sample in getattr(data, part)] for data in (few, whole)]
        assert same[0] == same[1]
    assert few.statistics.num_train == 50
    with pytest.raises(ConfigError, match=r"limit_train must be at most the 1200 of the training part, got 1201"):
        module("ethanol_md", split="time", limit_train=1201)


def test_files_of_their_own(module, tmp_path):
    paths = {name: trimers(tmp_path, f"{name}.xyz", num, num) for name, num in (("a", 20), ("b", 6), ("c", 4))}
    data = module(paths["a"], val_path=paths["b"], test_path=paths["c"])
    assert lengths(data) == [20, 6, 4]
    assert [int(sample.idx) for sample in data.val_set] == list(range(6))  # rows in the file
    assert [int(sample.idx) for sample in data.test_set] == list(range(4))
    assert sum(line.startswith(str(tmp_path)) for line in data.report) == 3
    assert lengths(module(paths["a"], val_path=paths["b"])) == [20, 6, 0]
    assert lengths(module(paths["a"], val_path=paths["b"], test=0.1)) == [18, 6, 2]
    assert lengths(module(paths["a"], test_path=paths["c"], val=3)) == [17, 3, 4]
    with pytest.raises(ConfigError, match=r"val must .*got 3"):
        module(paths["a"], val_path=paths["b"], val=3)


def test_several_files_to_test_on(module, tmp_path):
    files = [trimers(tmp_path, f"{name}.xyz", num, num) for name, num in (("a", 20), ("hot", 6), ("cold", 4))]
    data = module(files[0], test_path=files[1:], val=2)
    assert lengths(data) == [18, 2, 10]
    assert data.test_set.groups == ("cold", "hot")
    assert [data.test_set.groups[int(sample.group)] for sample in data.test_set] == ["hot"] * 6 + ["cold"] * 4
    assert [int(sample.idx) for sample in data.test_set] == [*range(6), *range(4)]
    assert next(iter(data.test_dataloader())).group.tolist() == [1] * 6 + [0] * 4
    assert module(files[0], test_path=files[1]).test_set.groups == ("",)  # one file needs no name
    typed = trimers(tmp_path, "typed.xyz", 4, 7, config_type=lambda row: "xy"[row % 2])
    both = module(files[0], test_path=[files[2], typed])
    assert both.test_set.groups == ("cold", "typed x", "typed y")
    for wrong in ([], [files[0], str(tmp_path / "other" / "a.xyz")]):
        with pytest.raises(ConfigError, match=r"test_path must be files of different names, .* got"):
            module(files[0], test_path=wrong)


def test_rows_are_those_of_the_file(module, tmp_path):
    path, rows = trimers(tmp_path, "a.xyz", 20, 0), tmp_path / "rows.csv"
    lone = [Atoms("H"), Atoms("O")]
    for energy, atom in zip((-1.3, -4.0), lone, strict=True):
        atom.info["REF_energy"] = energy
    write(path, lone + read(path, ":"))  # the first two rows are no molecules
    rows.write_text("1\n2\n5\n9\n11\n")
    data = module(path, e0s="isolated", split="rows", train=str(rows), val=0, test=2)
    assert sorted(int(sample.idx) for sample in data.train_set) == [2, 5, 9, 11]
    assert data.statistics.shifts == {1: -1.3, 8: -4.0}
    whole = len(data.train_set.structures)
    assert whole == 2 + 4 + len(data.test_set), "structures that no part has need no neighbours"


def test_mistakes_are_found_in_structures_that_are_not_drawn(module, tmp_path):
    """Neighbours in time tell the sign of the forces; a few structures drawn from them have none."""
    with np.load(embedded_trajectory("ethanol_md")) as archive:
        arrays = {name: archive[name] for name in ("z", "R", "E", "F")}
    np.savez(tmp_path / "a.npz", **arrays | {"F": -arrays["F"]})
    units = {"energy": "eV", "forces": "eV/Angstrom"}
    with pytest.raises(DataError, match=r"must have the signs of ASE, got others: .* The fix: negate the forces"):
        module(tmp_path / "a.npz", units=units, train=12, val=4, test=4)


def test_groups(module, tmp_path):
    path = trimers(tmp_path, "a.xyz", 20, 0, config_type=lambda row: "hot" if row % 4 else "cold")
    data = module(path, split="config_type", test="cold", val=0.2)
    assert lengths(data) == [12, 3, 5]
    assert {int(sample.idx) % 4 for sample in data.test_set} == {0}


def test_lone_atoms_are_references(module, tmp_path):
    path = trimers(tmp_path, "a.xyz", 20, 0)
    atoms = [Atoms("H"), Atoms("O")]
    for energy, atom in zip((-1.3, -4.0), atoms, strict=True):
        atom.info["REF_energy"] = energy
    write(path, atoms, append=True)
    data = module(path, e0s="isolated", test=0)
    assert data.statistics.shifts == {1: -1.3, 8: -4.0}
    assert lengths(data) == [18, 2, 0]
    assert [float(sample.energy) for sample in data.lone_set] == [-1.3, -4.0]
    fitted = module(path, test=0)
    assert lengths(fitted) == [18, 2, 0], "no training changes their energy"
    assert any("lone atoms: 2, in no part" in line and "e0s: isolated takes" in line for line in fitted.report)


def test_the_report_names_shifts_that_are_fitted(module, tmp_path):
    path = trimers(tmp_path, "a.xyz", 20, 0)
    data = module(path, e0s={"O": -400.0})
    (line,) = [line for line in data.report if line.startswith("shifts (given)")]
    assert "O: -400 eV" in line
    assert ", fitted" in line.split("H: ")[1].split("O: ")[0]


def test_a_part_without_a_label_is_said(module, tmp_path):
    """The training part has energies and forces; the test file has forces alone, and the file of validation both."""
    train, val, test = (trimers(tmp_path, f"{name}.xyz", 8, seed) for seed, name in enumerate(("a", "b", "c")))
    made = read(test, ":")
    for atoms in made:
        del atoms.info["REF_energy"]
    write(test, made)
    with pytest.warns(
        EqlayersWarning, match=r"the test part has no energy: no error of it is reported\. Name it"
    ) as said:
        data = module(train, val_path=val, test_path=test)
    assert [line for line in data.findings if "part has no" in line] == [
        str(one.message) for one in said if "part has no" in str(one.message)
    ]


def test_frames_that_cannot_be_read_are_left_out(module, tmp_path):
    file = trimers(tmp_path, "a.xyz", 12, 0)
    lines = Path(file).read_text().splitlines()
    lines[13] = lines[13].replace(".", "*")  # of frame 2
    Path(file).write_text("\n".join(lines) + "\n")
    with pytest.raises(DataError, match=r"frame 2, line 14: .*; or leave such frames out with --data\.skip_bad true"):
        module(file)
    data = module(file, skip_bad=True)
    assert sum(lengths(data)) == 11
    assert [line for line in data.report if line.startswith("left out")][-1] == "left out: 1 frames in all"
    with pytest.raises(ConfigError, match=r"split must count the frames of one whole file where it is 'rows', got"):
        module(file, skip_bad=True, split="rows", train="rows.txt")
    with pytest.raises(ConfigError, match=r"skip_bad must .*got 'yes'"):
        module(file, skip_bad="yes")


def test_batches_of_bounded_size(module):
    data = module("aspirin_nm", max_edges=900, batch_size=100, dtype="float64", val=100, test=100)
    loader = data.train_dataloader()
    batches = list(loader)
    assert len(batches) == len(loader)
    assert max(batch.edge_index.shape[1] for batch in batches) <= 900
    assert sorted(torch.cat([batch.idx for batch in batches]).tolist()) == sorted(data.train_set.rows)
    assert batches[0].pos.dtype == torch.float64
    assert max(batch.edge_index.shape[1] for batch in data.val_dataloader()) <= 900


def test_labels_in_other_units(module, tmp_path):
    path = trimers(tmp_path, "a.xyz", 20, 0)
    data = module(path, units={"energy": "meV", "forces": "meV/Angstrom"}, keys={"energy": "REF_energy"})
    plain = module(path)
    assert data.train_set[0].energy == pytest.approx(1e-3 * plain.train_set[0].energy)
    assert data.statistics.scale == pytest.approx(1e-3 * plain.statistics.scale)


def test_memory_of_evaluation_is_bounded(module, tmp_path):
    data = module(trimers(tmp_path, "a.xyz", 20, 0), train=10, val=10, max_edges=20)
    assert data.val_set.n_edges.max() == 6
    assert [batch.num_graphs for batch in data.val_dataloader()] == [3, 3, 3, 1]
    huge = module(trimers(tmp_path, "b.xyz", 5, 1), test_path=trimers(tmp_path, "c.xyz", 3, 2), val=0, max_edges=6)
    huge.max_edges = 5  # of a structure that is larger than any of the training part
    assert [batch.num_graphs for batch in huge.test_dataloader()] == [1, 1, 1]


def test_mistakes_are_warnings(module, tmp_path):
    one, other = trimers(tmp_path, "a.xyz", 20, 0), trimers(tmp_path, "b.xyz", 5, 1, z="NH2")
    with pytest.warns(UserWarning, match=r"species N are in the test part"):
        module(one, test_path=other, val=0)
    with pytest.warns(UserWarning, match="20 of 20 test structures are in the training part as well"):
        module(one, test_path=one, val=0)
    with pytest.warns(UserWarning, match=r"have no neighbour within 1.2 Angstrom"):
        module(one, cutoff=1.2)


def test_the_report_is_logged_once(module, caplog):
    caplog.set_level("INFO")
    data = module(split="time")
    logged = [record.message for record in caplog.records]
    assert [line for line in data.report if line not in logged] == []
    data.setup("test")
    assert len([r for r in caplog.records if r.message == data.report[0]]) == 1
    assert data.report[0].endswith("2,000 structures of 9 atoms, species H, C, O, none periodic")


def test_before_setup(tmp_path):
    data = StructureDataModule("ethanol_md", cache_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="must be set up before they are used, got no call of setup"):
        data.train_dataloader()
    data.prepare_data()
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("parts", [{"val": 16, "test": 16}, {"val": 0, "test": 0}])
def test_lightning_runs_it(module, parts):
    """Epochs have their own batches, and a set without validation and test part trains."""

    class Probe(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(()))
            self.seen, self.validated = [], 0

        def training_step(self, batch, index):
            self.seen.append((self.current_epoch, batch.idx.tolist()))
            return self.weight * batch.energy.float().sum()

        def validation_step(self, batch, index):
            self.validated += batch.num_graphs

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=1e-9)

    data, probe = module(train=48, max_edges=300, **parts), Probe()
    parts_off = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = dict.fromkeys(parts_off, False)
    trainer = Trainer(max_epochs=2, accelerator="cpu", num_sanity_val_steps=0, **quiet)
    empty = pytest.warns(UserWarning, match="of `list` across ranks is zero")  # Lightning's word on no validation
    with nullcontext() if parts["val"] else empty:
        trainer.fit(probe, datamodule=data)
    epochs = [[rows for epoch, rows in probe.seen if epoch == number] for number in (0, 1)]
    assert (
        sorted(np.concatenate(epochs[0]).tolist())
        == sorted(np.concatenate(epochs[1]).tolist())
        == sorted(int(sample.idx) for sample in data.train_set)
    )
    assert epochs[0] != epochs[1]
    assert probe.validated == 2 * parts["val"]
    if not parts["test"]:
        with pytest.raises(DataError, match="the test part must"):
            data.test_dataloader()


test_bad_options = refused(
    "options, message",
    [
        ({"path": ""}, "path must be a file of structures"),
        ({"split": "size"}, "split must be one of random, time, config_type, rows, got 'size'"),
        ({"cutoff": -1}, "cutoff must be a positive number of Angstrom, got -1. Common values are 4 to 6"),
        ({"batch_size": 0}, "batch_size must be an integer, at least 1, got 0"),
        ({"max_edges": 0}, "max_edges must be an integer, at least 1"),
        ({"dtype": "float16"}, "dtype must be one of float32, float64, got 'float16'"),
        ({"e0s": "average"}, "e0s must be one of fit, isolated, none"),
        ({"units": {"energy": "foo"}}, "units of energy must be made of"),
        ({"keys": {"foo": "x"}}, "keys must be one of energy"),
        ({"cache_dir": 3}, "cache_dir must be a folder, or None"),
        ({"seed": -1}, "seed must be an integer, at least 0"),
    ],
    lambda options: StructureDataModule(**options),
)
