"""Wrong arguments of readers, splits and batches of structures: each raises an error, none is taken or crashes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import eqlayers.data as data
from eqlayers.atoms.periodic import neighbor_list
from tests.each import each

NAN = float("nan")
GOOD = "molecules"  # something of another kind
POS = np.array([[0.0, 0, 0], [1.0, 0, 0]] * 2)
PAIRS = data.StructureArrays.of("test", [2, 2], [1, 1, 6, 8], POS, energy=[1.0, 2.0])
LISTS = data.structure_edges(PAIRS, 3.0)
CRYSTAL = data.StructureArrays.of("test", [1], [29], [[0, 0, 0]], cell=[2.5 * np.eye(3)], pbc=[[True] * 3])
ORDER = data.EpochSampler(2, 0)

CALLS: dict[str, tuple[Callable[[Any], Any], tuple[Any, ...]]] = {
    "StructureArrays, z": (lambda v: replace(PAIRS, z=v), (None, [1, 1, 6, 8], np.array([1.0] * 4), PAIRS.z * 0)),
    "StructureArrays, pbc": (
        lambda v: replace(PAIRS, pbc=v),
        (None, True, np.ones((2, 3), int), np.ones((2, 3), bool)),
    ),
    "neighbor_list, pos": (lambda v: neighbor_list(v, None, False, 3.0), (None, 3, "x", [1.0], [[NAN, 0, 0]])),
    "neighbor_list, cell": (
        lambda v: neighbor_list([[0, 0, 0]], v, True, 3.0),
        (None, 3, "x", np.zeros((3, 3))),
    ),
    "neighbor_list, pbc": (lambda v: neighbor_list([[0, 0, 0]], None, v, 3.0), ([True], [0, 0], np.eye(3))),
    "neighbor_list, cutoff": (lambda v: neighbor_list([[0, 0, 0]], None, False, v), (None, "3", 0, -1.0, NAN)),
    "structure_edges, structures": (lambda v: data.structure_edges(v, 3.0), (None, "x", GOOD, [PAIRS])),
    "structure_edges, cutoff": (lambda v: data.structure_edges(PAIRS, v), (None, "3", 0, NAN)),
    "structure_edges, cache": (lambda v: data.structure_edges(PAIRS, 3.0, v), (3, "", ["x"], True)),
    "StructureDataset, structures": (lambda v: data.StructureDataset(v, LISTS), (None, "x", GOOD)),
    "StructureDataset, edges": (
        lambda v: data.StructureDataset(PAIRS, v),
        (None, LISTS.local, replace(LISTS, n_edges=None), replace(LISTS, local=None)),
    ),
    "StructureDataset, shifts": (
        lambda v: data.StructureDataset(CRYSTAL, replace(data.structure_edges(CRYSTAL, 3.0), shifts=v)),
        (None, np.zeros((1, 3)), np.zeros(3)),
    ),
    "StructureDataset, rows": (lambda v: data.StructureDataset(PAIRS, LISTS, v), (3, "x", np.array([2]), [-1], [0.5])),
    "StructureDataset, dtype": (lambda v: data.StructureDataset(PAIRS, LISTS, None, v), (None, "float32", torch.int64)),
    "EdgeBatchSampler, sampler": (lambda v: data.EdgeBatchSampler(v, [1, 1], 9, 9), (None, 2, [0, 1], range(2))),
    "EdgeBatchSampler, n_edges": (lambda v: data.EdgeBatchSampler(ORDER, v, 9, 9), (None, 2, [1], [0.5, 1], [10, 1])),
    "EdgeBatchSampler, max_edges": (lambda v: data.EdgeBatchSampler(ORDER, [1, 1], v, 9), (None, 0, "9", 1.5)),
    "EdgeBatchSampler, rank": (lambda v: data.EdgeBatchSampler(ORDER, [1, 1], 9, 9, v, 2), (None, 2, -1, "1", 0.5)),
    "EdgeBatchSampler, processes": (lambda v: data.EdgeBatchSampler(ORDER, [1, 1], 9, 9, 0, v), (None, 0, "2", 3)),
    "EdgeBatchSampler, batch_size": (lambda v: data.EdgeBatchSampler(ORDER, [1, 1], 9, v), (None, 0, "9", 1.5)),
    "compute_statistics, structures": (
        lambda v: data.compute_statistics(v, LISTS, np.arange(2)),
        (None, "x", GOOD),
    ),
    "compute_statistics, edges": (
        lambda v: data.compute_statistics(PAIRS, v, np.arange(2)),
        (None, LISTS.local),
    ),
    "compute_statistics, train": (
        lambda v: data.compute_statistics(PAIRS, LISTS, v),
        (None, "x", 0, np.array([], int), np.array([2]), np.array([0.0])),
    ),
    "compute_statistics, e0s": (
        lambda v: data.compute_statistics(PAIRS, LISTS, np.arange(2), v),
        (None, 3, "x", {}, {"Cu": 0.0}, {"Xx": 0.0}, {1.5: 0.0}, {"H": NAN}, ["fit"]),
    ),
    "compute_statistics, target": (
        lambda v: data.compute_statistics(PAIRS, LISTS, np.arange(2), target=v),
        ("U0", 3, ["U0"]),
    ),
    "split_structures, name": (lambda v: data.split_structures(v, np.full(20, "")), (None, 3, [], "size")),
    "split_structures, groups": (lambda v: data.split_structures("random", v), (None, 3, "x", [], ["a"])),
    "split_structures, train": (
        lambda v: data.split_structures("random", np.full(20, ""), v),
        ("x", [], 0, -1, 21, NAN),
    ),
    "split_structures, rows": (
        lambda v: data.split_structures("rows", np.full(20, ""), v),
        (None, "", "x", [], 0, -1, NAN, ["x"], "no/such/file", "\0"),
    ),
    "split_structures, seed": (
        lambda v: data.split_structures("random", np.full(20, ""), seed=v),
        (None, -1, 0.5, "x"),
    ),
    "read_structures, path": (data.read_structures, (None, 3, "", ["x"], "no/such/file.xyz", "tests")),
    "read_structures, keys": (lambda v: data.read_structures("x", v), (3, "energy", {"x": "y"}, {"energy": 3})),
    "read_structures, units": (lambda v: data.read_structures("x", None, v), (3, "eV", {"x": "eV"}, {"energy": "x"})),
    "StructureDataModule, path": (data.StructureDataModule, (None, 3, "", ["x"])),
    "StructureDataModule, val_path": (lambda v: data.StructureDataModule(val_path=v), (3, "", ["x"], True)),
    "StructureDataModule, test_path": (
        lambda v: data.StructureDataModule(test_path=v),
        (3, "", [], [3], ["x", "x"], {}),
    ),
    "StructureDataModule, published": (lambda v: data.StructureDataModule(published=v), (3, "", ["rmd17"], "md17")),
    "StructureDataModule, limit_train": (
        lambda v: data.StructureDataModule(limit_train=v),
        (0, -1, "3", 1.5, True, 0.0, -0.5),
    ),
    "StructureDataModule, limit_seed": (lambda v: data.StructureDataModule(limit_seed=v), (-1, "3", 1.5, None, True)),
    "StructureDataModule, dtype": (lambda v: data.StructureDataModule(dtype=v), (None, 3, "x", torch.int64)),
    "StructureDataModule, replay": (
        lambda v: data.StructureDataModule(replay=v),
        (3, "old.xyz", {}, {"path": 3}, {"path": "x", "number": 0}, {"path": "x", "labels": ["x"]}, {"file": "x"}),
    ),
    "StructureDataModule, e0s": (lambda v: data.StructureDataModule(e0s=v), (None, 3, "x", {"Xx": 1.0})),
}
EVERY = [(name, value) for name, (_, values) in CALLS.items() for value in values]


@each("name, value", EVERY)
def test_a_wrong_argument_is_told(name: str, value: Any, told: Callable[..., None]) -> None:
    told(CALLS[name][0], value)


def test_every_public_callable_is_in_the_table() -> None:
    records = {"STRUCTURE_SPLITS"}  # checked where it is used
    public = {name for name in data.__all__ if "struct" in name.lower()} - records
    listed, wanted = (
        {name.split(",")[0] for name in CALLS},
        public | {"EdgeBatchSampler", "neighbor_list", "compute_statistics"},
    )
    missing, surplus = sorted(wanted - listed), sorted(listed - wanted)
    assert not missing, f"no row of {missing} in CALLS: add a call of each, and values that it must refuse"
    assert not surplus, f"CALLS has rows of {surplus}, which eqlayers.data does not export: take them out"
