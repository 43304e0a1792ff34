"""The data module: both data sets, reproducible order, resume, and bad options."""

import importlib
import itertools
import sys

import numpy as np
import pytest
import torch
from lightning import LightningModule, Trainer

import eqlayers.data
from eqlayers.data import EpochSampler, MoleculeDataModule
from eqlayers.data.qm9 import thermochemical_atomref
from eqlayers.errors import ConfigError, DataError
from tests.each import refused

PROPORTION = "ignore:this split was published"
FEW_TRAINING = "ignore:atomic number 9 is in"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*exists and is not empty"),
]


def flat(lists):
    return list(itertools.chain.from_iterable(lists))


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def make(cache):
    def build(*args, **options):
        data = MoleculeDataModule(*args, **({"cache_dir": cache} | options))
        data.setup()
        return data

    return build


@pytest.fixture
def make_qm9(gdb9_root, monkeypatch):
    """The fixture through the three text files, whether RDKit is installed or not."""

    def build(**options):
        data = MoleculeDataModule("qm9", root=str(gdb9_root), offline=True, **options)
        data.prepare_data()
        data.setup("fit")
        return data

    return build


def test_embedded_set(make):
    data = make("mini", "U0")
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [2228, 279, 278]
    rows = [part.rows for part in (data.train_set, data.val_set, data.test_set)]
    assert sorted(flat(rows)) == list(range(2785))
    assert data.statistics.species == (1, 6, 7, 8, 9)
    assert data.statistics.mean_neighbors == pytest.approx(12.7459, abs=1e-4)
    assert data.statistics.num_train == 2228
    assert (data.target.unit, data.target.report_unit) == ("eV", "meV")


def test_size_split(make):
    data = make("mini", "U0", split="size")
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [1652, 183, 950]
    assert min(len(data.test_set[i].z[data.test_set[i].z > 1]) for i in range(950)) == 7


@pytest.mark.filterwarnings(PROPORTION, FEW_TRAINING)
@pytest.mark.parametrize("split", ["random", "standard", "cormorant"])
@pytest.mark.parametrize("target", ["U0", "mu", "U0_atom"])
def test_qm9(make_qm9, gdb9_root, split, target):
    data = make_qm9(target=target, split=split, batch_size=4)
    parts = [data.train_set, data.val_set, data.test_set]
    assert sum(len(part) for part in parts) == 24
    assert all(len(part) > 0 for part in parts)
    batch = next(iter(data.train_dataloader()))
    assert batch.num_graphs == 4
    assert batch.y.dtype == torch.float64
    assert list((gdb9_root / "cache").glob("edges-5A-*.npz"))


@pytest.mark.filterwarnings(FEW_TRAINING)
def test_atomic_references_as_shifts(make_qm9):
    regression, atomref = make_qm9(target="U0"), make_qm9(target="U0", shifts="atomref")
    assert atomref.statistics.shifts == thermochemical_atomref(atomref.target)
    assert regression.statistics.scale < atomref.statistics.scale
    assert regression.statistics.shifts[6] == pytest.approx(atomref.statistics.shifts[6], abs=20)


# --- order -----------------------------------------------------------------------------------------------------------
def epochs(data, num=2):
    loader = data.train_dataloader()
    return [[batch.idx.tolist() for batch in loader] for _ in range(num)]


def test_order_depends_on_seed_and_epoch_alone(make):
    first = epochs(make("mini", "U0", limit_train=40, batch_size=16))
    torch.manual_seed(1234)
    state = torch.get_rng_state()
    second = epochs(make("mini", "mu", limit_train=40, batch_size=16))
    assert first == second
    assert torch.equal(state, torch.get_rng_state())
    assert first[0] != first[1]
    assert sorted(flat(first[0])) == sorted(flat(first[1]))
    assert [len(batch) for batch in first[0]] == [16, 16, 8]
    assert epochs(make("mini", "U0", limit_train=40, batch_size=16, seed=1)) != first


def test_evaluation_order_is_fixed(make):
    data = make("mini", "U0", eval_batch_size=100)
    assert [batch.idx.tolist() for batch in data.val_dataloader()] == [
        batch.idx.tolist() for batch in data.val_dataloader()
    ]
    rows = flat(batch.idx.tolist() for batch in data.test_dataloader())
    assert rows == data.test_set.rows == flat(batch.idx.tolist() for batch in data.predict_dataloader())


def test_limit_train_is_nested_and_mixed(make):
    small, large = (set(make("mini", "U0", limit_train=num).train_set.rows) for num in (50, 200))
    assert len(small) == 50
    assert small < large < set(make("mini", "U0").train_set.rows)
    heavy = make("mini", "U0", limit_train=50).train_set
    assert {int((heavy[i].z > 1).sum()) for i in range(50)} >= {6, 7}
    assert make("mini", "U0", limit_train=50).statistics.num_train == 50


def test_workers_give_the_same_batches(make):
    data = make("mini", "U0", limit_train=40, batch_size=16, num_workers=2)
    loader = data.train_dataloader()
    assert loader.persistent_workers
    two_epochs = [[batch.idx.tolist() for batch in loader] for _ in range(2)]
    assert two_epochs == epochs(make("mini", "U0", limit_train=40, batch_size=16))
    del loader


class Recorder(LightningModule):
    """One parameter; remembers the molecules of every training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []

    def training_step(self, batch, index):
        self.seen.append(batch.idx.tolist())
        return (self.weight - batch.y.float().mean()).square()

    def validation_step(self, batch, index):
        return None

    test_step = validation_step

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer(folder, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return Trainer(default_root_dir=folder, **quiet, **options)


def test_resumed_training_sees_the_batches_of_an_uninterrupted_one(make, tmp_path):
    def data():
        return make("mini", "U0", limit_train=20, batch_size=8)

    whole, start, rest = Recorder(), Recorder(), Recorder()
    trainer(tmp_path, max_epochs=3, enable_checkpointing=False).fit(whole, data())
    first = trainer(tmp_path, max_epochs=1, enable_checkpointing=False)
    first.fit(start, data())
    first.save_checkpoint(tmp_path / "one.ckpt")
    trainer(tmp_path, max_epochs=3, enable_checkpointing=False).fit(rest, data(), ckpt_path=tmp_path / "one.ckpt")
    assert len(whole.seen) == 9
    assert start.seen + rest.seen == whole.seen
    assert whole.seen[:3] != whole.seen[3:6]


@pytest.mark.filterwarnings(PROPORTION, FEW_TRAINING)
def test_fast_dev_run_on_the_fixture(gdb9_root, tmp_path):
    data = MoleculeDataModule("qm9", root=str(gdb9_root), split="standard", offline=True)
    fast = trainer(tmp_path, fast_dev_run=True)
    fast.fit(Recorder(), data)
    fast.test(Recorder(), data, verbose=False)


def test_sampler():
    sampler = EpochSampler(100, seed=3)
    assert len(sampler) == 100
    passes = [list(sampler) for _ in range(3)]
    assert all(sorted(order) == list(range(100)) for order in passes)
    assert len({tuple(order) for order in passes}) == 3
    sampler.set_epoch(1)
    assert list(sampler) == passes[1]
    assert list(EpochSampler(100, seed=4)) != passes[0]
    for epoch, order in enumerate(passes):  # pinned: a resumed run, also of a later version, goes on with its batches
        assert order == np.random.default_rng([3, epoch]).permutation(100).tolist()
    assert passes[1] != list(EpochSampler(100, seed=4)), "seed 3, epoch 1 is not seed 4, epoch 0"


def test_sampler_of_a_seed_and_an_epoch_that_are_swapped():
    one, other = EpochSampler(50, seed=2), EpochSampler(50, seed=5)
    one.set_epoch(5)
    other.set_epoch(2)
    assert list(one) != list(other)
    assert (one.epoch, other.epoch) == (6, 3)
    assert list(EpochSampler(0, seed=1)) == []


# --- further labels --------------------------------------------------------------------------------------------------
ALL = {"charges": 1.0, "dipole": 0.5, "gap": 0.2, "zpve": 0.5}


def test_further_labels_of_the_embedded_set(make):
    data = make(limit_train=100, auxiliary=ALL)
    with np.load("examples/data/mini_qm9_xtb.npz") as file:
        raw = {name: file[name].astype(float) for name in (*ALL, "energy", "U0", "n_atoms", "split")}
    assert data.auxiliary == ALL | {"energy": 1.0}
    assert (data.sum_of, data.without_target) == (("energy", "zpve"), "energy")
    labels = {name: each.values for name, each in data.load()[0].auxiliary.items()}
    np.testing.assert_array_equal(labels["charges"], raw["charges"])
    np.testing.assert_allclose(labels["dipole"], raw["dipole"] * 0.20819434, rtol=1e-7)
    for name in ("gap", "zpve", "energy"):
        np.testing.assert_allclose(labels[name], raw[name] * 27.211386245988, rtol=1e-14)
    np.testing.assert_allclose(labels["energy"] + labels["zpve"], raw["U0"] * 27.211386245988, rtol=1e-9)
    sample, row = data.test_set[7], int(data.test_set[7].idx)
    first = int(raw["n_atoms"][:row].sum())
    atoms = slice(first, first + len(sample.z))
    assert sample.auxiliary_0.tolist() == raw["charges"][atoms].tolist()  # in the order of ALL
    assert [sample[f"auxiliary_{k}"].tolist() for k in (1, 2, 3, 4)] == [
        labels[name][row : row + 1].tolist() for name in ("dipole", "gap", "zpve", "energy")
    ]
    assert sample.auxiliary_3.dtype == torch.float64
    batch = next(iter(data.train_dataloader()))
    assert batch.auxiliary_0.shape == batch.z.shape
    assert batch.auxiliary_1.shape == (32, 3)


def test_statistics_of_further_labels(make):
    data = make(limit_train=100, auxiliary=ALL)
    part, found = data.train_set.taken, data.statistics.auxiliary
    further = {name: each.values for name, each in part.auxiliary.items()}
    means = {z: further["charges"][part.z == z].mean() for z in part.species}
    rest = further["charges"] - np.array([means[z] for z in part.z])
    assert {z: found["charges"][0][z] for z in means} == pytest.approx(means, abs=1e-12)
    assert found["charges"][1] == pytest.approx(rest.std(), rel=1e-12)
    assert set(found["gap"][0].values()) == {further["gap"].mean()}
    assert found["gap"][1] == pytest.approx(further["gap"].std(), rel=1e-12)
    assert found["dipole"][1] == pytest.approx(np.sqrt(np.square(further["dipole"]).mean()), rel=1e-12)
    assert set(found["dipole"][0].values()) == {0.0}
    counts = part.counts(part.species)
    for name in ("energy", "zpve"):  # the parts of U0 have its scale, and their shifts add up to its shifts
        fit = np.linalg.lstsq(counts, further[name])[0]
        assert [found[name][0][z] for z in part.species] == pytest.approx(fit.tolist(), abs=1e-8)
        assert found[name][1] == data.statistics.scale
    both = {z: found["energy"][0][z] + found["zpve"][0][z] for z in part.species}
    assert both == pytest.approx({z: data.statistics.shifts[z] for z in both}, abs=1e-5)
    alone = make(limit_train=100, target="gap", auxiliary={"zpve": 1.0})
    assert (alone.sum_of, alone.without_target) == ((), None)
    residual = further["zpve"] - counts @ np.linalg.lstsq(counts, further["zpve"])[0]
    assert alone.statistics.auxiliary["zpve"][1] == pytest.approx(residual.std(), rel=1e-10)


def test_further_labels_of_qm9(make_qm9):
    data = make_qm9(auxiliary={"zpve": 0.5, "mu": 0.1})
    other, structures = make_qm9(target="zpve"), data.load()[0]
    np.testing.assert_array_equal(structures.auxiliary["zpve"].values, other.load()[0].y)
    np.testing.assert_allclose(structures.auxiliary["energy"].values, structures.y - other.load()[0].y, rtol=1e-14)
    assert {name: each.pooling for name, each in data.further().items()} == {
        "zpve": "sum",
        "mu": "mean",
        "energy": "sum",
    }
    with pytest.raises(ConfigError, match="got 'charges'"):
        make_qm9(auxiliary={"charges": 1.0})


@pytest.fixture
def extra(tmp_path):
    """A file with copies of molecules of the embedded set, displaced."""

    def write(rows, smiles=None):
        with np.load("examples/data/mini_qm9_xtb.npz") as file:
            arrays = {name: file[name] for name in ("n_atoms", "z", "pos", "charges", "energy", "smiles")}
        starts = np.concatenate([[0], np.cumsum(arrays["n_atoms"].astype(int))])
        atoms = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in rows])
        chosen = {
            name: array[rows if name in ("n_atoms", "energy", "smiles") else atoms] for name, array in arrays.items()
        }
        chosen["pos"] = chosen["pos"] + np.float32(0.01) * np.arange(3, dtype=np.float32)
        chosen["smiles"] = chosen["smiles"] if smiles is None else np.array(smiles, dtype="S40")
        np.savez(tmp_path / "more.npz", **chosen)
        return str(tmp_path / "more.npz")

    return write


def test_extra_molecules_are_in_the_training_part_alone(make, extra):
    path = extra([0, 1, 2], ["N#N", "[H][H]", "FF"])
    data, before = (make(limit_train=50, auxiliary={"charges": 1.0, "zpve": 0.5}, extra=x) for x in (path, None))
    assert [len(part) for part in (data.train_set, data.val_set, data.test_set)] == [53, 279, 278]
    new = data.train_set[50]
    with np.load(path) as file:
        assert new.auxiliary_0.tolist() == file["charges"].astype(float)[: len(new.z)].tolist()
        assert new.auxiliary_2.tolist() == [file["energy"][0] * 27.211386245988]
    assert torch.isnan(new.y).all()
    assert torch.isnan(new.auxiliary_1).all()
    assert data.statistics.scale == before.statistics.scale
    counts = {name: rows.tolist() for name, rows in data.train_set.n_rows.items()}
    assert counts["y"] == counts["auxiliary_2"] == [1] * 53, "a row each: of the target, or of the energy alone"
    assert counts["auxiliary_1"] == [1] * 50 + [0] * 3


def test_extra_molecules_that_are_tested_are_refused(make, extra):
    tested = np.flatnonzero(np.load("examples/data/mini_qm9_xtb.npz")["split"] == 2)[:1]
    path = extra([0, *tested])
    smiles = np.load(path)["smiles"][1].decode()
    with pytest.raises(DataError, match=r"no molecule of the validation and test parts, got 1 in .*") as refused:
        make(auxiliary={"charges": 1.0}, extra=path)
    assert f": {smiles}. Remove them" in str(refused.value)
    with pytest.raises(DataError, match=r"extra must be an npz archive of molecules, got .none\.npz."):
        make(auxiliary={"charges": 1.0}, extra="none.npz")


# --- bad options -----------------------------------------------------------------------------------------------------
test_bad_options = refused(
    "options, message",
    [
        ({"dataset": "qm7"}, "dataset must be one of mini, qm9, got 'qm7'"),
        ({"target": "energy"}, "target must be one of mu, .*, got 'energy'"),
        ({"split": "standard"}, r"split \(dataset='mini'\) must be one of random, size, got 'standard'"),
        ({"dataset": "qm9"}, r'root must be a folder for dataset="qm9".*, got None. Set for example root="data/qm9"'),
        ({"cutoff": -1.0}, "cutoff must be a positive number"),
        ({"batch_size": 0}, "batch_size must be an integer, at least 1, got 0"),
        ({"eval_batch_size": -3}, "eval_batch_size must be an integer, at least 1, got -3"),
        ({"seed": -1}, "seed must be an integer, at least 0, got -1"),
        ({"num_workers": -1}, "num_workers must be an integer, at least 0, got -1"),
        ({"limit_train": 0}, "limit_train must be an integer, at least 1, got 0"),
        ({"shifts": "none"}, "shifts must be one of regression, atomref, got 'none'"),
        ({"auxiliary": {"charge": 1.0}}, r"auxiliary must be further labels .* \(charges, dipole, .*, got 'charge'"),
        ({"auxiliary": {"U0": 1.0}}, "auxiliary must be further labels .*, got the target itself. Name others"),
        ({"auxiliary": {"zpve": -1.0}}, "auxiliary.zpve must be a finite number of at least 0, got -1.0"),
        ({"auxiliary": {"zpve": "high"}}, "auxiliary.zpve must be a finite number .* got 'high'"),
        ({"auxiliary": ["zpve"]}, "auxiliary must be weights by name, or None, got"),
        ({"auxiliary": {"gap": 1.0}, "extra": "more.npz"}, "extra must be left out but for .* charges or energy"),
        ({"shifts": "atomref"}, "got \"atomref\" with dataset='mini', target='U0'"),
        ({"shifts": "atomref", "dataset": "qm9", "root": "x", "target": "mu"}, "only U0, U, H and G .* target='mu'"),
    ],
    lambda options: MoleculeDataModule(**options),
)


def test_bad_limit_and_no_setup(make):
    with pytest.raises(ConfigError, match=r"must be at most the 2228 of the training part, got 2229"):
        make("mini", "U0", limit_train=2229)
    with pytest.raises(ConfigError, match="the data must"):
        MoleculeDataModule().part("train")


def test_missing_folder(tmp_path):
    with pytest.raises(DataError, match="does not exist"):
        MoleculeDataModule("mini", root=str(tmp_path / "nowhere")).prepare_data()
    with pytest.raises(DataError, match=r"--data.dataset mini"):
        MoleculeDataModule("qm9", root=str(tmp_path / "nowhere"), offline=True).prepare_data()


def test_default_cache_folders(monkeypatch, tmp_path):
    monkeypatch.delenv("EQLAYERS_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    data = MoleculeDataModule("mini")
    data.setup()
    assert [path.name[:9] for path in (tmp_path / "eqlayers" / "mini").iterdir()] == ["edges-5A-"]


def test_missing_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    with pytest.raises(
        ImportError,
        match=r"eqlayers.data must find the packages of the extra `train`, got: .*pip install 'eqlayers\[train\]'",
    ):
        importlib.reload(eqlayers.data)


def test_setup_twice_changes_nothing(make):
    data = make("mini", "U0")
    before = data.train_set
    data.setup("test")
    assert data.train_set is before
    assert np.isfinite(data.statistics.scale)
