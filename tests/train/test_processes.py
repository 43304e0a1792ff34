"""Two processes: the test errors of one, the training of one with larger batches, and equal weights in both."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.io import write

from eqlayers.cli.main import main
from eqlayers.data import MoleculeDataModule
from eqlayers.models import NequIP, Potential, save_potential
from eqlayers.train import checkpoint_path, read_checkpoint
from tests.train.waters import displaced_waters

# what a user's `eqlayers` is, and each process keeps the weights that it ends with
SCRIPT = """
import sys
import torch
from eqlayers.cli.main import main
from eqlayers.train.base import TrainedModule

def keep(self):
    torch.save(dict(self.state_dict()), f"{sys.argv[1]}/rank{self.global_rank}.pt")

TrainedModule.on_train_end = keep
raise SystemExit(main(sys.argv[2:]))
"""
SMALL = {"hidden": "4x0e + 4x1o", "lmax": 1, "layers": 2, "radial_hidden": [8]}


def potential(network: str, init: dict[str, Any], data: dict[str, Any], **model: Any) -> dict[str, Any]:
    read = {"path": "train.xyz", "train": 10, "val": 4, "cutoff": 3.0, "dtype": "float64"}
    network_section = {"class_path": f"eqlayers.models.{network}", "init_args": {"species": [1, 8], **SMALL, **init}}
    sizes = {"batch_size": 3, "eval_batch_size": 2}
    return {
        "task": "potential",
        "report": False,
        "data": {**read, **sizes, **data},
        "model": {"model": network_section, **model},
    }


PROPERTY = {
    "data": {"limit_train": 22, "batch_size": 4, "eval_batch_size": 64},
    "model": {"model": {"class_path": "eqlayers.models.MoleculeNetwork", "init_args": SMALL}},
}
CASES: dict[str, tuple[dict[str, Any], int | None]] = {
    # configuration, size of the batches of one process that trains in the same way
    "potential": (potential("NequIP", {}, {}), 6),
    "recomputed": (potential("MACE", {"correlation": 2}, {}, checkpointing=True), 6),
    "batches by edges": (potential("NequIP", {}, {"max_edges": 12}), None),
    "fine-tuned": (
        {**potential("NequIP", {}, {"replay": {"path": "old.xyz", "number": 2}}), "start_from": "start.pt"},
        6,
    ),
    "property": (PROPERTY, 8),
}


def waters(count: int) -> list[Atoms]:
    """Frames, an odd number of them for the test; every third has no forces, and one no energy."""
    made, frames = np.random.default_rng(1), list(displaced_waters(count))
    for number, atoms in enumerate(frames):
        if number != 4:
            atoms.info["REF_energy"] = float(made.standard_normal())
        if number % 3:
            atoms.arrays["REF_forces"] = made.standard_normal((3, 3))
    return frames


def errors(run: Path) -> dict[str, float]:
    metrics = json.loads((run / "metrics.json").read_text())
    return {name: value for name, value in metrics.items() if name.startswith("test_")}


@pytest.mark.long
@pytest.mark.thinned(6)
@pytest.mark.filterwarnings("ignore:the forces of structures", "ignore:.*are NaN or missing")  # they are random
@pytest.mark.parametrize("case", CASES)
def test_two_processes(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, one_batch = CASES[case]
    write(tmp_path / "train.xyz", waters(21), format="extxyz")
    write(tmp_path / "old.xyz", waters(25)[21:], format="extxyz")
    save_potential(Potential(NequIP([1, 8], cutoff=3.0, **SMALL), [1, 8]), tmp_path / "start.pt")
    path, script = tmp_path / "run.yaml", tmp_path / "script.py"
    config = {**config, "runs": "runs", "data": {**config["data"], "cache_dir": "cache"}}
    config["trainer"] = {"accelerator": "cpu", "max_epochs": 2, "log_every_n_steps": 1, "precision": "64-true"}
    path.write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    script.write_text(SCRIPT)
    command = ["fit", "-c", str(path)]

    def in_two(*options: str) -> None:
        two = [*command, "--trainer.devices", "2", "--trainer.strategy", "ddp", *options]
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path), *two],
            capture_output=True,
            text=True,
            timeout=300,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert done.returncode == 0, done.stderr

    in_two("--name", "two")
    ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
    assert ranks[0].keys() == ranks[1].keys()
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])

    run = tmp_path / "runs" / "two"
    of_two = errors(run)
    assert main(["test", "-c", str(path), "--name", "two"]) == 0  # the same weights in one process
    assert of_two == pytest.approx(errors(run), rel=1e-8)
    assert of_two

    if case == "potential":  # both processes restore the checkpoint of a run that goes on
        in_two("--name", "parts", "--trainer.max_epochs", "1", "--test_after_fit", "false")
        in_two("--name", "parts", "--resume")
        ends = [read_checkpoint(checkpoint_path(tmp_path / "runs" / name, "last")) for name in ("parts", "two")]
        assert ends[0]["epoch"] == ends[1]["epoch"] == 1
        assert ends[0]["global_step"] == ends[1]["global_step"]
        ranks = [torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1)]
        assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])

    if one_batch is not None:
        assert main([*command, "--name", "one", "--data.batch_size", str(one_batch)]) == 0
        ends = [read_checkpoint(checkpoint_path(tmp_path / "runs" / name, "last")) for name in ("one", "two")]
        assert ends[0]["global_step"] == ends[1]["global_step"] >= 4
        for name, value in ends[0]["state_dict"].items():  # the optimizer's state is float32, of gradients to 2**-53
            torch.testing.assert_close(ends[1]["state_dict"][name], value, rtol=1e-6, atol=1e-7, msg=name)


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_loaders_of_several_processes_share_a_part(
    processes: int, make_data: Callable[..., MoleculeDataModule], monkeypatch: pytest.MonkeyPatch
) -> None:
    data: Any = make_data(eval_batch_size=10)
    data.setup()
    device = torch.device("cpu")
    seen: dict[str, list[int]] = {"test": [], "val": [], "train": []}
    steps: dict[str, set[int]] = {name: set() for name in seen}
    for rank in range(processes):

        class Trainer:
            global_rank, world_size = rank, processes
            strategy = type("Strategy", (), {"root_device": device})

        monkeypatch.setattr(data, "trainer", Trainer)
        for name in seen:
            loader = getattr(data, f"{name}_dataloader")()
            batches = [batch.idx.tolist() for batch in loader]
            steps[name].add(len(batches))
            assert len(loader) == len(batches)
            seen[name] += [idx for batch in batches for idx in batch]
    for name, shares in seen.items():
        structures = getattr(data, f"{name}_set")
        assert sorted(shares) == sorted(int(sample.idx) for sample in structures), name
        assert len(steps[name]) == 1
