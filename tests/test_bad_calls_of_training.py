"""Wrong arguments of eqlayers.data, train and bench: the values follow from annotations, and each is told."""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import eqlayers.data as data
import eqlayers.train as train
from eqlayers import bench
from eqlayers.atoms.periodic import neighbor_list
from eqlayers.core.files.read_write import atomic_write
from eqlayers.data import TARGETS, MoleculeDataModule, StructureArrays, StructureDataModule
from eqlayers.models import NequIP
from tests.each import each
from tests.wrong_values import NAN, WRONG

Values = Sequence[Any]
#: Wrong values by the name of an argument, where its annotation says too little.
COUNT, NOT_NEGATIVE, FRACTION = WRONG["count"], (None, "1", -1.0, NAN, True), (None, "1", -0.1, 1.1, NAN)
WEIGHTS = [f"{label}_weight" for label in ("energy", "forces", "stress", "dipole", "polarizability")]
NAMES: dict[str, Values] = {
    **dict.fromkeys(("seed", "limit_seed", "split_seed", "num_samples", "epoch", "warmup_steps"), COUNT),
    "rank": COUNT, "num_workers": COUNT,
    **dict.fromkeys(("weight_decay", *WEIGHTS), NOT_NEGATIVE), "final_factor": FRACTION, "final": FRACTION,
    "limit_train": ("1", 0, -1, 1.5, True, 0.0, -0.5), "betas": (0.9, "ab", (0.9,), (0.9, 1.0), (NAN, 0.9)),
    "optimizer": (None, 3, "sopa", {"class": "soap"}, {"class_path": "soap", "init_args": 3}),
    "split": (None, 3, [], "standard"), "folder": (None, 3, "", ["x"]),
    "path": (None, 3, "", ["x"]), "monitor": (3, ["x"]), "command": (3, ["x"]), "dtype": (None, 3, "x", torch.int64),
    "backend": (3, "fast", []), "edges": (None, "x", 3), "decay": (None, "0.9", 1.0, -0.1, NAN, True, [0.9]),
    "num_threads": ("1", 0, -1, 1.5, 10**6), "runs": (0, -1, 2.5, "3", True), "total_steps": (None, "1", -1, NAN),
    **dict.fromkeys(("say", "keep"), (None, "x")), "facts": (3, "x", [1]), "config_type_weights": (3, "x", [1.0]),
    "dataset": (None, 3, [], "qm7"), "keys": (3, "energy", {"x": "y"}, {"energy": 3}), "second_stage": FRACTION[1:],
    "units": (3, "eV", {"x": "eV"}, {"energy": "x"}), "structures": (None, "x", "molecules", [1]),
}  # fmt: skip
#: Wrong weights of further labels.
FURTHER = (3, "zpve", ["zpve"], {"U0": 1.0, "gap": 1.0}, {"zpve": -1.0}, {"zpve": NAN}, {"zpve": "x"})
#: Wrong values of all other arguments, by annotation; None is wrong wherever an annotation lacks it.
ANNOTATIONS: dict[str, Values] = {
    "bool": ("no", b"x", NAN, 2, []), "bool | None": ("no", 2), "int": WRONG["width"], "float": WRONG["positive"],
    "int | None": (0, -1, 1.5, "3", True), "str | Path": (3, b"x", "", ["x"]), "str | Path | None": (3, "", ["x"]),
    "str | None": (3, "", ["x"], True), "nn.Module": ("x", 3, torch.nn.Linear), "nn.Module | None": ("zbl", 3),
    "torch.device | str": ("gpu", 3.5), "Target": ("U0", 3), "Literal": (3, [], "foo"),
}  # fmt: skip


def values_of(argument: inspect.Parameter) -> Values | None:
    """The wrong values of an argument; None if neither its name nor its annotation says."""
    annotation = re.sub(r"\[.*\]", "", str(argument.annotation))
    if argument.name in NAMES:
        return NAMES[argument.name]
    if annotation not in ANNOTATIONS:
        return None
    return ANNOTATIONS[annotation] if "None" in annotation else (None, *ANNOTATIONS[annotation])


def entered(function: Any) -> Any:
    """A context manager that is entered."""
    return functools.wraps(function)(lambda **arguments: function(**arguments).__enter__())


def arrays(**fields: Any) -> StructureArrays:
    return StructureArrays.of("test", [2, 2], [1, 1, 6, 8], [[0.0, 0, 0], [1, 0, 0]] * 2, **fields)


U0, GOOD, PAIRS, ORDER = TARGETS["U0"], arrays(y=[1.0, 2.0]), arrays(energy=[1.0, 2.0]), data.EpochSampler(2, 0)
POS, Z, PATH, SMOKE = torch.rand(3, 3), torch.tensor([8, 1, 1]), ("no/such/file", "tests"), bench.read_suite("smoke")
LISTS, PARTS = data.structure_edges(PAIRS, 3.0), np.full(20, "")
CRYSTAL = StructureArrays.of("test", [1], [29], [[0, 0, 0]], cell=[2.5 * np.eye(3)], pbc=[[True] * 3])
SHIFTED = data.structure_edges(CRYSTAL, 3.0)
STATISTICS = {"structures": PAIRS, "edges": LISTS, "train": np.arange(2)}
PLOT = {"true": [1.0, 2.0], "predicted": [1.0, 2.0], "name": "mu", "unit": "D", "caption": "x"}
Row = tuple[Callable[..., Any], dict[str, Any], dict[str, Values]]

#: A call -> its function, its right arguments, and wrong values that no annotation implies.
ROWS: dict[str, Row] = {
    # ---- data
    "get_target": (data.get_target, {}, {"name": (None, 3, ["U0"], "u0", b"U0", "")}),
    "thermochemical_atomref": (data.thermochemical_atomref, {}, {}),
    "load_mini": (data.load_mini, {"root": None, "target": U0}, {
        "root": ("no/such/folder",), "target": (TARGETS["r2"],), "auxiliary": (3, ["charge"])}),
    "load_qm9": (data.load_qm9, {"root": "x", "target": U0, "offline": True}, {"auxiliary": (3, ["charges"])}),
    "make_split": (data.make_split, {"name": "random", "dataset": "mini", "heavy": np.ones(20, int)}, {
        "name": (None, 3, [], "standard"),
        "heavy": (None, 3, "x", np.ones((2, 2), int), np.ones(20), [], [1], [[1, 2], [3, 4]])}),
    "radius_graph": (data.radius_graph, {"pos": POS, "cutoff": 5.0}, {
        "pos": (None, [[0.0, 0, 0]], torch.zeros(3), POS.long(), Z),
        "n_atoms": (3, [3], torch.tensor([3.0]), torch.tensor([2]), torch.tensor([4, -1]), torch.tensor([[3]]),
            torch.tensor([True]))}),
    "EpochSampler": (data.EpochSampler, {"num_samples": 3, "seed": 0}, {}),
    "EpochSampler.set_epoch": (data.EpochSampler(3, 0).set_epoch, {}, {}),
    "atomic_write": (entered(atomic_write), {}, {"path": (None, 3, "", ["x"])}),
    "MoleculeDataModule": (MoleculeDataModule, {}, {"target": (None, 3, ["U0"], "u0"),
        "auxiliary": FURTHER, "extra": (3, "", [], "more.npz")}),
    "MoleculeDataModule.setup": (MoleculeDataModule().setup, {}, {"stage": (3, "train", ["fit"])}),
    "MoleculeDataModule before setup": (lambda part: getattr(MoleculeDataModule(), f"{part}_dataloader")(), {}, {
        "part": ("train", "val", "test", "predict")}),
    "PropertyDataModule": (data.PropertyDataModule, {"path": "x", "target": "gap"}, {
        "target": (None, 3, "", ["gap", "mu"]), "unit": (None, 3, ["eV"]), "auxiliary": FURTHER}),
    "StructureArrays": (functools.wraps(StructureArrays)(lambda **fields: replace(PAIRS, **fields)), {}, {
        "z": (None, [1, 1, 6, 8], np.array([1.0] * 4), PAIRS.z * 0),
        "pbc": (None, True, np.ones((2, 3), int), np.ones((2, 3), bool))}),
    "neighbor_list": (neighbor_list, {"pos": [[0, 0, 0]], "cell": None, "pbc": False, "cutoff": 3.0}, {
        "pos": (None, 3, "x", [1.0], [[NAN, 0, 0]]), "pbc": ([True], [0, 0], np.eye(3))}),
    "neighbor_list of periodic": (neighbor_list, {"pos": [[0, 0, 0]], "pbc": True, "cutoff": 3.0}, {
        "cell": (None, 3, "x", np.zeros((3, 3)))}),
    "structure_edges": (data.structure_edges, {"structures": PAIRS, "cutoff": 3.0}, {"cache": (True,)}),
    "StructureDataset": (data.StructureDataset, {"structures": PAIRS, "edges": LISTS}, {
        "edges": (LISTS.local, replace(LISTS, n_edges=None), replace(LISTS, local=None)),
        "rows": (3, "x", np.array([2]), [-1], [0.5]), "dtype": ("float32",)}),
    "StructureDataset of shifts": (lambda v: data.StructureDataset(CRYSTAL, replace(SHIFTED, shifts=v)), {}, {
        "v": (None, np.zeros((1, 3)), np.zeros(3))}),
    "EdgeBatchSampler": (data.EdgeBatchSampler, {
        "sampler": ORDER, "n_edges": [1, 1], "max_edges": 9, "batch_size": 9}, {
        "sampler": (None, 2, [0, 1], range(2)), "n_edges": (None, 2, [1], [0.5, 1], [10, 1])}),
    "EdgeBatchSampler in ranks": (
        functools.partial(data.EdgeBatchSampler, ORDER, [1, 1], 9, 9), {"rank": 0, "processes": 2}, {
        "rank": (2,), "processes": (3,)}),
    "compute_statistics": (data.compute_statistics, STATISTICS, {
        "edges": (LISTS.local,), "train": (None, "x", 0, np.array([], int), np.array([2]), np.array([0.0])),
        "e0s": (None, 3, "x", {}, {"Cu": 0.0}, {"Xx": 0.0}, {1.5: 0.0}, {"H": NAN}, ["fit"]),
        "target": ("U0", 3, ["U0"]), "sum_of": (3, ["zpve"])}),
    "split_structures": (data.split_structures, {"name": "random", "groups": PARTS}, {
        "name": (None, 3, [], "size"), "groups": (None, 3, "x", [], ["a"]), "train": ("x", [], 0, -1, 21, NAN)}),
    "split_structures of rows": (data.split_structures, {"name": "rows", "groups": PARTS}, {
        "train": (None, "", "x", [], 0, -1, NAN, ["x"], "no/such/file", "\0")}),
    "read_structures": (data.read_structures, {"path": "x"}, {"path": ("no/such/file.xyz", "tests")}),
    "StructureDataModule": (StructureDataModule, {}, {
        "test_path": (3, "", [], [3], ["x", "x"], {}), "published": (["rmd17"], "md17"),
        "e0s": (None, 3, "x", {"Xx": 1.0}), "limit_train": (-0.5,),
        "replay": (3, "old.xyz", {}, {"path": 3}, {"path": "x", "number": 0}, {"path": "x", "labels": ["x"]},
            {"file": "x"})}),
    # ---- train
    "PropertyModule": (train.PropertyModule, {"model": torch.nn.Linear(2, 2)}, {"betas": ((0.9, "x"),)}),
    "PotentialModule": (train.PotentialModule, {"model": NequIP([1], "2x0e", 0, 1)}, {
        "model": (torch.nn.Linear(2, 2),), "repulsion": (torch.nn.Linear,),
        **{f"second_{name}_weight": NOT_NEGATIVE[1:] for name in ("energy", "forces")},
        "species_weights": (3, "x", [1.0], {1: -1.0}, {1: NAN}, {1: "x"}),
        "config_type_weights": ({"bulk": -1.0}, {"bulk": NAN}, {"bulk": "x"})}),
    "metric_name": (train.metric_name, {"target": U0}, {"kind": (None, "max", [])}),
    "EMA": (train.EMA, {}, {}),
    "History": (train.History, {"folder": "x"}, {}),
    "PredictionTable": (train.PredictionTable, {}, {}),
    "TestReport": (train.TestReport, {"folder": "x"}, {}),
    "best_and_last": (train.best_and_last, {"folder": "x"}, {}),
    "checkpoint_path": (train.checkpoint_path, {"folder": "x"}, {"name": (None, 3, "", "../x", "a/b", "..")}),
    "read_checkpoint": (train.read_checkpoint, {}, {"path": ("no/such.ckpt", Path())}),
    "read_history": (train.read_history, {}, {}),
    "run_callbacks": (train.run_callbacks, {"folder": "x"}, {}),
    "run_loggers": (train.run_loggers, {}, {}),
    "trainer_options": (train.trainer_options, {"folder": "x"}, {}),
    "layer_rows": (train.layer_rows, {"model": torch.nn.Linear(2, 2)}, {}),
    "summary_table": (train.summary_table, {"model": torch.nn.Linear(2, 2)}, {}),
    "warmup_cosine": (train.warmup_cosine, {"warmup_steps": 1, "total_steps": 10}, {"total_steps": (float("inf"),)}),
    "parity_plot": (train.parity_plot, PLOT, {
        "true": (None, "x", [], [1.0], ["a", "b"], [NAN, 1.0], [[1.0, 2.0]]),
        "groups": (3, "x", [], ["a"], [["a", "b"]])}),
    "learning_curve": (train.learning_curve, {"rows": [], "name": "mu", "unit": "D", "baselines": {}}, {
        "rows": (None, 3, "x", [1], [{}], [{"step": 1}])}),
    "LayerSummary": (train.LayerSummary, {}, {}),
    # ---- bench
    "read_suite": (bench.read_suite, {}, {
        "name": (None, 3, "", ["x"], "smoky", "no/such.yaml", "..", "/", "/dev/zero")}),
    "read_problems": (bench.read_problems, {}, {"path": ("no/such.yaml", Path())}),
    "run_suite": (bench.run_suite, {"suite": SMOKE}, {
        "suite": (None, "smoke", 3), "peers": ("e3nn", 3, ["e3n"], [3])}),
    "Suite.only": (SMOKE.only, {}, {"pattern": (3, "nothing", ["x"])}),
    "Problem": (lambda **changed: bench.Problem(**({"name": "p", "mode": "uvu"} | changed)).facts(), {
        "in1": "1x0e", "in2": "1x0e", "out": "1x0e"}, {
        "mode": (None, "uvx", 3, []), "in1": (None, "xx", 3), "weights": (None, "some", 3)}),
}  # fmt: skip


def cases() -> Iterator[tuple[str, str, Any]]:
    """Calls with each argument of their table given wrongly."""
    for name, (function, _, own) in ROWS.items():
        arguments = dict(inspect.signature(function).parameters)
        for argument in {**arguments, **own}:
            derived = values_of(arguments[argument]) if argument in arguments and " of " not in name else ()
            for value in (*(derived or ()), *own.get(argument, ())):
                yield name, argument, value


EVERY = list(cases())


@each("name, argument, value", EVERY, ids=lambda case: f"{case[0]}({case[1]}={case[2]!r})"[:80])
def test_a_wrong_argument_is_told(name: str, argument: str, value: Any, told: Callable[..., None]) -> None:
    function, good, _ = ROWS[name]
    told(lambda value: function(**{**good, argument: value}), value)


def test_every_argument_of_every_public_callable_is_in_the_table() -> None:
    """Records and functions without arguments aside; what is named here is looked at where it is used."""
    records = {"Case", "Edges", "Problem", "Statistics", "StructureArrays", "Suite", "Target"}
    left = {"options", "map_location", "baselines", "test", "progress", "val", "skip_bad"}
    left |= {"name", "unit", "caption", "predicted", "train", "cell"}
    tested = {(name.split(".")[0].split(" ")[0], argument) for name, argument, _ in EVERY}
    missing = [
        f"{part.__name__}.{name}({argument})"
        for part in (data, train, bench)
        for name in sorted(set(part.__all__) - records)
        if callable(function := getattr(part, name))
        for argument in inspect.signature(function).parameters
        if (name, argument) not in tested and argument not in left
    ]
    assert not missing, f"no wrong values of {missing}: add them to the rows of the calls, or an annotation"
    assert len(EVERY) >= 600
