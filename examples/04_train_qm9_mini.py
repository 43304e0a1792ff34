"""Learn the energy of small molecules in under a minute, with the Python interface behind `eqlayers fit`.

    python examples/04_train_qm9_mini.py

The data are in the repository: 2,785 molecules, GFN2-xTB energies U0. The check at the end: half the error of a linear
regression on the numbers of atoms, which is the best one can do without looking at the geometry.
"""

import json
from pathlib import Path

import torch
from lightning.pytorch import Trainer, seed_everything

from eqlayers.data import MoleculeDataModule
from eqlayers.models import MoleculeNetwork
from eqlayers.train import EMA, PropertyModule, checkpoint_path, quiet_lightning, trainer_options

RUN = "runs/example_04"  # checkpoints, logs, metrics.json and pictures go here


def main() -> None:
    seed_everything(2026)
    torch.set_num_threads(1)  # one thread is never much slower at this size, and far faster on a busy machine

    # 1. Data: graphs with edges shorter than the cutoff (Angstrom), labels in eV, a fixed split.
    data = MoleculeDataModule(dataset="mini", target="U0", cutoff=4.0, limit_train=1000, batch_size=16)

    # 2. Network: two interactions on scalars (0e) and vectors (1o); energies of atoms are added up.
    network = MoleculeNetwork(hidden="16x0e + 16x1o", lmax=1, layers=2, cutoff=4.0, radial_hidden=(32,))

    # 3. Training: SOAP with warm-up and cosine; absolute error; averaged weights are validated and tested.
    module = PropertyModule(network, learning_rate=1e-2, warmup_steps=50)
    options = trainer_options(RUN)
    options["callbacks"].append(EMA(decay=0.98))
    trainer = Trainer(max_epochs=16, accelerator="cpu", gradient_clip_val=10.0, log_every_n_steps=10, **options)
    trainer.fit(module, datamodule=data)

    # 4. Test with the best weights: prints a table, writes RUN/metrics.json, parity.png and learning_curve.png.
    (result,) = trainer.test(module, datamodule=data, ckpt_path=str(checkpoint_path(RUN)), verbose=False)

    metrics = json.loads(Path(RUN, "metrics.json").read_text())
    error, baseline = result["test/U0_mae_meV"], metrics["baseline_composition_mae_meV"]
    print(f"test MAE {error:.0f} meV; composition regression {baseline:.0f} meV; ratio {error / baseline:.2f}")
    if error > baseline / 2:
        raise SystemExit("check failed: expected at most half the error of the composition regression")
    print("check passed: at most half the error of the composition regression")


if __name__ == "__main__":
    with quiet_lightning():
        main()
