"""Fine-tune a potential of ethanol to aspirin, and see what it forgets: from scratch, without and with replay.

    python examples/08_fine_tuning.py            # two minutes on one core; results in runs/

The potential is small and trained for a minute, so errors are large; what counts is how they compare. The runs are the
commands `eqlayers fit -c configs/fine_tuning.yaml ...`, which anyone would type.
"""

import sys
import warnings
from pathlib import Path

import numpy as np
from ase import Atoms
from rich.console import Console
from rich.table import Table

from eqlayers.cli.main import main as eqlayers
from eqlayers.integrations.ase import predict
from eqlayers.models import load_potential

ROOT = Path(__file__).resolve().parents[1]
NETWORK = """{class_path: eqlayers.models.MACE, init_args: {species: [1, 6, 8], hidden: 16x0e + 16x1o, correlation: 2,
    lmax: 2, layers: 2, radial_hidden: [16]}}"""
QUIET = ["--test_after_fit", "false", "--trainer.enable_progress_bar", "false"]


def fit(config: str, runs: Path, name: str, *options: str) -> Path:
    """One training; the file of its best weights."""
    print(f"\n== {name}", flush=True)
    if eqlayers(["fit", "-c", str(ROOT / "configs" / config), "--runs", str(runs), "--name", name, *QUIET, *options]):
        raise SystemExit(f"the training {name} failed")
    return runs / name / "checkpoints" / "best.ckpt"


def force_error(checkpoint: Path, name: str) -> float:
    """Mean absolute error of force components in meV/Angstrom on the last 200 frames of a set, its test part."""
    with np.load(ROOT / "examples" / "data" / f"{name}.npz") as file:
        structures, forces = [Atoms(file["z"], pos) for pos in file["R"][-200:]], file["F"][-200:]
    found = [result["forces"] for result in predict(load_potential(checkpoint), structures)]
    return 1000 * float(np.abs(np.stack(found) - forces).mean())


def main() -> None:
    runs = Path(sys.argv[1] if len(sys.argv) > 1 else "runs")
    warnings.filterwarnings("ignore", module="lightning")
    own = ["--model.model", NETWORK, "--model.learning_rate", "0.02"]
    few = ["--data.train", "300", "--data.val", "100", "--trainer.max_epochs", "15"]
    old = fit("ethanol.yaml", runs, "example_ethanol", *own, *few)
    start = ["--start_from", str(old)]
    scratch = ["--start_from", "null", *own, "--data.cutoff", "4"]
    ways = {
        "ethanol alone": old,
        "aspirin from scratch": fit("fine_tuning.yaml", runs, "example_scratch", *scratch, "--data.replay", "null"),
        "fine-tuned, no replay": fit("fine_tuning.yaml", runs, "example_forgetful", *start, "--data.replay", "null"),
        "fine-tuned, with replay": fit("fine_tuning.yaml", runs, "example_replay", *start),
    }
    table = Table(title="forces, MAE in meV/A", title_justify="left")
    for heading in ("potential", "ethanol (before)", "aspirin (new)"):
        table.add_column(heading, justify="left" if heading == "potential" else "right")
    for name, checkpoint in ways.items():
        table.add_row(name, *(f"{force_error(checkpoint, data):.0f}" for data in ("ethanol_md", "aspirin_nm")))
    Console().print(table)


if __name__ == "__main__":
    main()
