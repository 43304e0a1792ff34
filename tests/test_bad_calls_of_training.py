"""Wrong arguments of what eqlayers.data, train, models and bench offer: each is told, none is taken or crashes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eqlayers.bench as bench
import eqlayers.data as data
import eqlayers.train as train
from eqlayers.core.files.read_write import atomic_write
from eqlayers.data import TARGETS, MoleculeDataModule, StructureArrays
from eqlayers.models import MoleculeNetwork, NequIP
from tests.each import each

NAN = float("nan")
U0 = TARGETS["U0"]


GOOD = StructureArrays.of("test", [2, 2], [1, 1, 6, 8], [[0, 0, 0], [1, 0, 0]] * 2, y=[1.0, 2.0])
NETWORK = MoleculeNetwork(species=(1, 6, 8), hidden="2x0e + 2x1o", layers=0)
Z, POS, INDEX = torch.tensor([8, 1, 1]), torch.rand(3, 3), torch.tensor([[0, 1], [1, 0]])


def forward(**changed: Any) -> Any:
    return NETWORK(**({"z": Z, "pos": POS, "edge_index": INDEX} | changed))


def module(**options: Any) -> train.PropertyModule:
    return train.PropertyModule(**({"model": torch.nn.Linear(2, 2)} | options))


def potential_module(**options: Any) -> train.PotentialModule:
    return train.PotentialModule(**({"model": NequIP([1], "2x0e", 0, 1)} | options))


WRONG_KINDS = (None, "x", 1.5, [1], {"a": 1}, object(), True)
CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    # ---- data
    "get_target": (data.get_target, (None, 3, ["U0"], "u0", b"U0", "")),
    "thermochemical_atomref": (data.thermochemical_atomref, (None, "U0", 3)),
    "load_mini, root": (lambda v: data.load_mini(v, U0), (3, b"x", "", ["x"], "no/such/folder")),
    "load_mini, target": (lambda v: data.load_mini(None, v), (None, "U0", TARGETS["r2"])),
    "load_qm9, root": (lambda v: data.load_qm9(v, U0, offline=True), (None, 3, "", ["x"])),
    "load_qm9, target": (lambda v: data.load_qm9("x", v, offline=True), (None, "U0")),
    "load_qm9, cache": (lambda v: data.load_qm9("x", U0, v, offline=True), (3, "", ["x"])),
    "load_qm9, offline": (lambda v: data.load_qm9("x", U0, offline=v), (None, "no", 2)),
    "make_split, name": (lambda v: data.make_split(v, "mini", np.ones(20, int)), (None, 3, [], "standard")),
    "make_split, dataset": (lambda v: data.make_split("random", v, np.ones(20, int)), (None, 3, [], "qm7")),
    "make_split, heavy": (
        lambda v: data.make_split("random", "mini", v),
        (None, 3, "x", np.ones((2, 2), int), np.ones(20), [], [1], [[1, 2], [3, 4]]),
    ),
    "radius_graph, pos": (lambda v: data.radius_graph(v, 5.0), (None, [[0.0, 0, 0]], torch.zeros(3), POS.long(), Z)),
    "radius_graph, cutoff": (lambda v: data.radius_graph(POS, v), (None, "5", 0, -1.0, NAN, float("inf"), [5], True)),
    "radius_graph, n_atoms": (
        lambda v: data.radius_graph(POS, 5.0, v),
        (
            3,
            [3],
            torch.tensor([3.0]),
            torch.tensor([2]),
            torch.tensor([4, -1]),
            torch.tensor([[3]]),
            torch.tensor([True]),
        ),
    ),
    "EpochSampler, num_samples": (lambda v: data.EpochSampler(v, 0), (None, "3", 1.5, -1, True, [3])),
    "EpochSampler, seed": (lambda v: data.EpochSampler(3, v), (None, "3", 1.5, -1)),
    "EpochSampler.set_epoch": (data.EpochSampler(3, 0).set_epoch, (None, "3", 1.5, -1)),
    "atomic_write": (lambda v: atomic_write(v).__enter__(), (None, 3, "", ["x"])),
    "MoleculeDataModule, dataset": (lambda v: MoleculeDataModule(v), (None, 3, [], "qm7")),
    "MoleculeDataModule, target": (lambda v: MoleculeDataModule(target=v), (None, 3, ["U0"], "u0")),
    "MoleculeDataModule, root": (lambda v: MoleculeDataModule(root=v), (3, "", ["x"], True)),
    "MoleculeDataModule, cutoff": (lambda v: MoleculeDataModule(cutoff=v), (None, "5", 0, -1, NAN, True)),
    "MoleculeDataModule, split": (lambda v: MoleculeDataModule(split=v), (None, 3, [], "standard")),
    "MoleculeDataModule, batch_size": (lambda v: MoleculeDataModule(batch_size=v), (None, "3", 1.5, 0, True, [1])),
    "MoleculeDataModule, eval_batch_size": (lambda v: MoleculeDataModule(eval_batch_size=v), (None, 2.5, 0)),
    "MoleculeDataModule, num_workers": (lambda v: MoleculeDataModule(num_workers=v), (None, "1", -1, 0.5)),
    "MoleculeDataModule, seed": (lambda v: MoleculeDataModule(seed=v), (None, "1", -1, 0.5)),
    "MoleculeDataModule, limit_train": (lambda v: MoleculeDataModule(limit_train=v), ("1", 0, 1.5, True)),
    "MoleculeDataModule, offline": (lambda v: MoleculeDataModule(offline=v), (None, "no", 2)),
    "MoleculeDataModule, cache_dir": (lambda v: MoleculeDataModule(cache_dir=v), (3, "", ["x"])),
    "MoleculeDataModule, shifts": (lambda v: MoleculeDataModule(shifts=v), (None, 3, [], "none", "atomref")),
    "MoleculeDataModule.setup": (lambda v: MoleculeDataModule().setup(v), (3, "train", ["fit"])),
    "loaders before setup": (
        lambda v: getattr(MoleculeDataModule(), f"{v}_dataloader")(),
        ("train", "val", "test", "predict"),
    ),
    "PropertyDataModule, path": (lambda v: data.PropertyDataModule(v, "gap"), (None, 3, "", ["x"])),
    "PropertyDataModule, target": (lambda v: data.PropertyDataModule("x", v), (None, 3, "", ["gap", "mu"])),
    "PropertyDataModule, unit": (lambda v: data.PropertyDataModule("x", "gap", unit=v), (None, 3, ["eV"])),
    "PropertyDataModule, extensive": (lambda v: data.PropertyDataModule("x", "gap", extensive=v), (None, "no", 2)),
    # ---- models
    "MoleculeNetwork, species": (
        lambda v: MoleculeNetwork(species=v, layers=0),
        (None, "HCNO", 6, (), (1, 1), (0,), (119,), (1.5,), ("h",), {1: 2}),
    ),
    "MoleculeNetwork, hidden": (lambda v: MoleculeNetwork(hidden=v, layers=0), (None, 5, "xx", "3x1o", "", [1])),
    "MoleculeNetwork, lmax": (lambda v: MoleculeNetwork(lmax=v, layers=0), (None, "1", 1.5, -1, True)),
    "MoleculeNetwork, layers": (lambda v: MoleculeNetwork(layers=v), (None, "1", 1.5, -1, True)),
    "MoleculeNetwork, num_basis": (
        lambda v: MoleculeNetwork(num_basis=v, layers=1, hidden="2x0e"),
        (None, "1", 1.5, 0, -1),
    ),
    "MoleculeNetwork, cutoff": (lambda v: MoleculeNetwork(cutoff=v, layers=0), (None, "5", 0, -1.0, NAN)),
    "MoleculeNetwork, radial_hidden": (
        lambda v: MoleculeNetwork(radial_hidden=v, layers=1, hidden="2x0e"),
        (None, "64", 64, (0,), (-1,), (1.5,)),
    ),
    "MoleculeNetwork, mean_neighbors": (
        lambda v: MoleculeNetwork(mean_neighbors=v, layers=1, hidden="2x0e"),
        (None, "1", 0, -1.0, NAN),
    ),
    "MoleculeNetwork, readout": (lambda v: MoleculeNetwork(readout=v, layers=0), (None, 3, [], "both")),
    "MoleculeNetwork, pooling": (lambda v: MoleculeNetwork(pooling=v, layers=0), (None, 3, [], "max")),
    "MoleculeNetwork, backend": (lambda v: MoleculeNetwork(backend=v, layers=0), (3, [], "cuda")),
    "set_statistics, shifts": (
        lambda v: NETWORK.set_statistics(v, 1.0, 2.0),
        (None, [1.0], "x", {7: 1.0}, {"h": 1.0}, {1: NAN}, {1: "x"}, {1: None}),
    ),
    "set_statistics, scale": (lambda v: NETWORK.set_statistics({}, v, 2.0), (None, "1", 0, -1.0, NAN, True)),
    "set_statistics, mean_neighbors": (lambda v: NETWORK.set_statistics({}, 1.0, v), (None, "1", 0, NAN)),
    "forward, z": (
        lambda v: forward(z=v),
        (None, [8, 1, 1], 3, "x", Z.double(), Z[:2], torch.tensor([7, 1, 1]), torch.tensor([-1, 1, 1])),
    ),
    "forward, pos": (
        lambda v: forward(pos=v),
        (None, POS.tolist(), "x", POS.double(), POS[:2], POS[:, :2], POS.long(), torch.rand(3)),
    ),
    "forward, edge_index": (
        lambda v: forward(edge_index=v),
        (None, [[0], [1]], "x", INDEX.double(), INDEX[0], INDEX.T.reshape(4, 1), INDEX + 2, INDEX - 1),
    ),
    "forward, batch": (
        lambda v: forward(batch=v, num_graphs=1),
        ([0, 0, 0], "x", Z.double(), Z[:2], torch.tensor([0, 0, 1]), torch.tensor([0, 0, -1])),
    ),
    "forward, num_graphs": (
        lambda v: forward(batch=torch.zeros(3, dtype=torch.int64), num_graphs=v),
        ("1", 1.5, 0, -1, True, [1]),
    ),
    # ---- train
    "PropertyModule, model": (lambda v: train.PropertyModule(v), (None, "x", torch.nn.Linear, 3)),
    "PropertyModule, learning_rate": (lambda v: module(learning_rate=v), (None, "1", 0, -1.0, NAN, True)),
    "PropertyModule, weight_decay": (lambda v: module(weight_decay=v), (None, "1", -1.0, NAN)),
    "PropertyModule, betas": (lambda v: module(betas=v), (None, 0.9, "ab", (0.9,), (0.9, 1.0), (NAN, 0.9), (0.9, "x"))),
    "PropertyModule, warmup_steps": (lambda v: module(warmup_steps=v), (None, "1", -1, 1.5)),
    "PropertyModule, checkpointing": (lambda v: module(checkpointing=v), (None, "yes", 2, 0.5)),
    "PropertyModule, final_factor": (lambda v: module(final_factor=v), (None, "1", -0.1, 1.1, NAN)),
    "PropertyModule, loss": (lambda v: module(loss=v), (None, 3, [], "l3")),
    "PotentialModule, model": (train.PotentialModule, (None, "x", torch.nn.Linear, 3, torch.nn.Linear(2, 2))),
    "PotentialModule, loss": (lambda v: potential_module(loss=v), (None, 3, [], "l3")),
    **{
        f"PotentialModule, {name}_weight": (
            lambda v, name=name: potential_module(**{f"{name}_weight": v}),
            ("1", -1.0, NAN, True, *(() if name.startswith("second") else (None,))),
        )
        for name in ("energy", "forces", "stress", "second_energy", "second_forces")
    },
    "PotentialModule, second_stage": (lambda v: potential_module(second_stage=v), ("1", -0.1, 1.1, NAN, True)),
    "PotentialModule, species_weights": (
        lambda v: potential_module(species_weights=v),
        (3, "x", [1.0], {1: -1.0}, {1: NAN}, {1: "x"}),
    ),
    "PotentialModule, config_type_weights": (
        lambda v: potential_module(config_type_weights=v),
        (3, "x", [1.0], {"bulk": -1.0}, {"bulk": NAN}, {"bulk": "x"}),
    ),
    "PotentialModule, repulsion": (lambda v: potential_module(repulsion=v), ("zbl", 3, torch.nn.Linear)),
    "metric_name, target": (train.metric_name, (None, "U0", 3)),
    "metric_name, kind": (lambda v: train.metric_name(U0, v), (None, "max", [])),
    "EMA": (train.EMA, (None, "0.9", 1.0, -0.1, NAN, True, [0.9])),
    "History, folder": (train.History, (None, 3, "", ["x"])),
    "History, verbose": (lambda v: train.History("x", v), (None, "no", 2)),
    "History, command": (lambda v: train.History("x", command=v), (3, ["eqlayers", "fit"])),
    "PredictionTable": (train.PredictionTable, (None, 3, "", ["x"])),
    "TestReport, folder": (train.TestReport, (None, 3, "", ["x"])),
    "TestReport, page": (lambda v: train.TestReport("x", page=v), (None, "no", 2)),
    "TestReport, facts": (lambda v: train.TestReport("x", v), (3, "x", [1])),
    "best_and_last, folder": (train.best_and_last, (None, 3, "", ["x"])),
    "best_and_last, monitor": (lambda v: train.best_and_last("x", v), (3, ["x"])),
    "checkpoint_path, folder": (train.checkpoint_path, (None, 3, "", ["x"])),
    "checkpoint_path, name": (lambda v: train.checkpoint_path("x", v), (None, 3, "", "../x", "a/b", "..")),
    "read_checkpoint": (train.read_checkpoint, (None, 3, "", ["x"], "no/such.ckpt", Path("."))),
    "read_history": (train.read_history, (None, 3, "", ["x"])),
    "run_callbacks, folder": (train.run_callbacks, (None, 3, "")),
    "run_callbacks, facts": (lambda v: train.run_callbacks("x", v), (3, "x")),
    "run_callbacks, progress": (lambda v: train.run_callbacks("x", progress=v), ("no", 2)),
    "run_loggers": (train.run_loggers, (None, 3, "")),
    "trainer_options, folder": (train.trainer_options, (None, 3, "")),
    "trainer_options, training": (lambda v: train.trainer_options("x", training=v), (None, "no")),
    "layer_rows, model": (train.layer_rows, (None, "x", torch.nn.Linear)),
    "layer_rows, device": (lambda v: train.layer_rows(NETWORK, v), (None, "gpu", 3.5)),
    "summary_table": (train.summary_table, (None, "x", torch.nn.Linear)),
    "warmup_cosine, warmup_steps": (lambda v: train.warmup_cosine(v, 10), (None, "1", -1, 1.5)),
    "warmup_cosine, total_steps": (lambda v: train.warmup_cosine(1, v), (None, "1", -1, NAN, float("inf"))),
    "warmup_cosine, final": (lambda v: train.warmup_cosine(1, 10, v), (None, "1", -1, 2, NAN)),
    "parity_plot": (
        lambda v: train.parity_plot(v, [1.0, 2.0], "mu", "D", "x"),
        (None, "x", [], [1.0], ["a", "b"], [NAN, 1.0], [[1.0, 2.0]]),
    ),
    "parity_plot, groups": (
        lambda v: train.parity_plot([1.0, 2.0], [1.0, 2.0], "mu", "D", "x", v),
        (3, "x", [], ["a"], [["a", "b"]]),
    ),
    "learning_curve": (
        lambda v: train.learning_curve(v, "mu", "D", {}),
        (None, 3, "x", [1], [{}], [{"step": 1}]),
    ),
    # ---- bench
    "read_suite": (bench.read_suite, (None, 3, "", ["x"], "smoky", "no/such.yaml", "..", "/", "/dev/zero")),
    "read_problems": (bench.read_problems, (None, 3, "", ["x"], "no/such.yaml", Path("."))),
    "run_suite, suite": (bench.run_suite, (None, "smoke", 3)),
    "run_suite, peers": (lambda v: bench.run_suite(bench.read_suite("smoke"), peers=v), ("e3nn", 3, ["e3n"], [3])),
    "run_suite, num_threads": (
        lambda v: bench.run_suite(bench.read_suite("smoke"), num_threads=v),
        ("1", 0, -1, 1.5, 10**6),
    ),
    "run_suite, runs": (lambda v: bench.run_suite(bench.read_suite("smoke"), runs=v), (0, -1, 2.5, "3", True)),
    "run_suite, backend": (lambda v: bench.run_suite(bench.read_suite("smoke"), backend=v), (3, "fast", [])),
    "run_suite, say": (lambda v: bench.run_suite(bench.read_suite("smoke"), say=v), (None, "x")),
    "run_suite, keep": (lambda v: bench.run_suite(bench.read_suite("smoke"), keep=v), (None, "x")),
    "LayerSummary": (lambda v: train.LayerSummary(v), (3, "yes", None)),
    "Suite.only": (lambda v: bench.read_suite("smoke").only(v), (3, "nothing", ["x"])),
    "Problem, mode": (lambda v: bench.Problem("p", v, "1x0e", "1x0e", "1x0e"), (None, "uvx", 3, [])),
    "Problem, in1": (lambda v: bench.Problem("p", "uvu", v, "1x0e", "1x0e").facts(), (None, "xx", 3)),
    "Problem, weights": (lambda v: bench.Problem("p", "uvu", "0e", "0e", "0e", v), (None, "some", 3)),
}
EVERY = [(name, value) for name, (_, values) in CALLS.items() for value in values]


@each("name, value", EVERY)
def test_a_wrong_argument_is_told(name: str, value: Any, told: Callable[..., None]) -> None:
    told(CALLS[name][0], value)


def test_every_public_callable_is_in_the_table() -> None:
    simple = {
        "Edges",
        "Statistics",
        "Target",
        "SPLITS",
        "TARGETS",
    }  # plain records and tables, checked where they are used
    simple |= {"AtomicCheckpointIO", "default_mini_root", "quiet_lightning"}  # without arguments
    simple |= {"Case", "Suite"}
    simple |= {
        "LABELS",
        "EdgeBatchSampler",
        "compute_statistics",
        "neighbor_list",
    }  # these have a table in tests/data, as has
    simple |= {name for name in data.__all__ if "struct" in name.lower()}
    public = {*data.__all__, *train.__all__, *bench.__all__, "MoleculeNetwork"} - simple
    known = {name.split(",")[0].split(".")[0] for name in CALLS}
    missing = sorted(public - known)
    assert not missing, f"no row of {missing} in CALLS: add a call of each, and values that it must refuse"


def test_there_are_enough_of_them() -> None:
    assert len(EVERY) >= 300
