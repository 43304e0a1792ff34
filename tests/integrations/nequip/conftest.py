"""These tests run where NequIP is installed (`nox -s nequip`), and are not collected elsewhere."""

import copy
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

collect_ignore_glob = [] if find_spec("nequip") else ["test_*.py"]

TYPES = ["Cu"]
MODEL = {
    "_target_": "nequip.model.NequIPGNNModel",
    "seed": 1,
    "model_dtype": "float64",
    "type_names": TYPES,
    "r_max": 4.0,
    "l_max": 1,
    "parity": True,
    "num_layers": 2,
    "num_features": 4,
    "radial_mlp_width": 8,
    "avg_num_neighbors": 12.0,
    "per_type_energy_shifts": {"Cu": 0.0},
    "per_type_energy_scales": {"Cu": 1.0},
}
MODIFIED = {"_target_": "nequip.model.modify", "modifiers": [{"modifier": "enable_eqlayers"}], "model": MODEL}
CONFIG = {
    "run": ["train", "test"],
    "cutoff_radius": 4.0,
    "model_type_names": TYPES,
    "chemical_species": TYPES,
    "dataloader": {"_target_": "torch.utils.data.DataLoader", "batch_size": 2},
    "data": {
        "_target_": "nequip.data.datamodule.NequIPDataModule",
        "seed": 1,
        "split_dataset": {
            "dataset": {
                "_target_": "nequip.data.dataset.EMTTestDataset",
                "transforms": [
                    {
                        "_target_": "nequip.data.transforms.ChemicalSpeciesToAtomTypeMapper",
                        "model_type_names": TYPES,
                        "chemical_species_to_atom_type_map": {"Cu": "Cu"},
                    },
                    {"_target_": "nequip.data.transforms.NeighborListTransform", "r_max": 4.0},
                ],
                "supercell": [2, 2, 2],
                "seed": 1,
                "num_frames": 8,
                "element": "Cu",
            },
            "train": 4,
            "val": 2,
            "test": 2,
        },
        "train_dataloader": "${dataloader}",
        "val_dataloader": "${dataloader}",
        "test_dataloader": "${dataloader}",
        "stats_manager": {"_target_": "nequip.data.CommonDataStatisticsManager", "type_names": TYPES},
    },
    "trainer": {
        "_target_": "lightning.Trainer",
        "accelerator": "cpu",
        "max_epochs": 2,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "logger": {"_target_": "lightning.pytorch.loggers.CSVLogger", "save_dir": "${hydra:runtime.output_dir}"},
        "callbacks": [
            {
                "_target_": "lightning.pytorch.callbacks.ModelCheckpoint",
                "dirpath": "${hydra:runtime.output_dir}",
                "filename": "best",
                "save_last": True,
            }
        ],
    },
    "training_module": {
        "_target_": "nequip.train.EMALightningModule",
        "loss": {
            "_target_": "nequip.train.EnergyForceLoss",
            "per_atom_energy": True,
            "coeffs": {"total_energy": 1.0, "forces": 1.0},
        },
        "val_metrics": {
            "_target_": "nequip.train.EnergyForceMetrics",
            "coeffs": {"total_energy_mae": 1.0, "forces_mae": 1.0},
        },
        "train_metrics": "${training_module.val_metrics}",
        "test_metrics": "${training_module.val_metrics}",
        # not Adam: its first step divides each gradient by itself, and rounding errors of zeros with it
        "optimizer": {"_target_": "torch.optim.SGD", "lr": 0.001},
    },
}


def train(folder: Path, model: dict[str, object]) -> dict[str, list[float]]:
    """Run `nequip-train` in a process of its own; the metrics that it logged."""
    config = copy.deepcopy(CONFIG)
    config["training_module"]["model"] = model
    folder.mkdir()
    (folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = [sys.executable, "-m", "nequip.scripts.train", "-cp", str(folder), "-cn", "config"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, f"hydra.run.dir={folder}"], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (table,) = folder.rglob("metrics.csv")
    header, *lines = table.read_text().splitlines()
    columns: dict[str, list[float]] = {name: [] for name in header.split(",")}
    for line in lines:
        for name, value in zip(columns, line.split(","), strict=True):
            if value:
                columns[name].append(float(value))
    return columns


@pytest.fixture(scope="session")
def trained() -> Callable[[Path, dict[str, object]], dict[str, list[float]]]:
    """:func:`train`, for tests of other starts."""
    return train


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, dict[str, list[float]]]]:
    """Folder and metrics of the same training, 'plain' and 'fast'."""
    top = tmp_path_factory.mktemp("runs")
    models = {"plain": MODEL, "fast": MODIFIED}
    return {name: (top / name, train(top / name, model)) for name, model in models.items()}
