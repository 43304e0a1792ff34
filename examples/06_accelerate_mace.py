"""Make a MACE model faster, train it, save it, and take the acceleration out again: the numbers stay.

    python -m venv mace && mace/bin/pip install mace-torch .
    TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1 mace/bin/python examples/06_accelerate_mace.py

MACE needs e3nn 0.4.4, so it gets an environment of its own. That e3nn reads its constants with `torch.load`, which
refuses them since torch 2.6 unless the variable is set before. Any model file of MACE can take the place of `make()`.
"""

import os
import sys
import time

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # before anything imports e3nn

try:
    import ase.build
    from mace import modules
    from mace.calculators import MACECalculator
except ModuleNotFoundError as error:
    sys.exit(f"this example needs mace-torch, and {error.name} is not installed: pip install mace-torch")

import numpy as np
import torch
from e3nn import o3

import eqlayers as eq

SPECIES = {"H": 1, "C": 6, "O": 8}


def make() -> torch.nn.Module:
    """A small MACE with weights from a seed; instead: torch.load("my.model", weights_only=False)."""
    torch.manual_seed(0)
    return modules.ScaleShiftMACE(
        r_max=5.0,
        num_bessel=8,
        num_polynomial_cutoff=5,
        max_ell=3,
        interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
        interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
        num_interactions=2,
        num_elements=len(SPECIES),
        hidden_irreps=o3.Irreps("32x0e + 32x1o"),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=np.array([-13.6, -1030.0, -2042.0]),
        avg_num_neighbors=8.0,
        atomic_numbers=list(SPECIES.values()),
        correlation=3,
        gate=torch.nn.functional.silu,
        atomic_inter_scale=1.0,
        atomic_inter_shift=0.0,
    )


def energy_and_forces(model: torch.nn.Module) -> tuple[float, np.ndarray, float]:
    """Results for ethanol by MACE's own calculator; and the seconds of a call once all is compiled, e3nn's code too."""
    atoms = ase.build.molecule("CH3CH2OH")
    atoms.calc = MACECalculator(models=[model], default_dtype="float64")
    for seed in range(6):
        atoms.rattle(0.02, seed=seed)
        start = time.perf_counter()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        seconds = time.perf_counter() - start
    return energy, forces, seconds


torch.set_default_dtype(torch.float64)
model = make()
energy, forces, seconds = energy_and_forces(model)

# 1. One call. Every layer is compared with the one it replaces: value, first and second derivatives.
report = eq.accelerate(model)
print(report)

# 2. The same numbers, from the same parameters.
fast_energy, fast_forces, fast_seconds = energy_and_forces(model)
difference = np.abs(fast_forces - forces).max() / np.abs(forces).max()
print(f"energy {energy:.6f} and {fast_energy:.6f} eV; forces differ by {difference:.1e} of the largest")
print(f"one call of the calculator: {seconds * 1000:.0f} ms before, {fast_seconds * 1000:.0f} ms after")

# 3. Checkpoints fit both; a saved model is loaded where eqlayers is installed.
plain = make()
plain.load_state_dict(model.state_dict())
model.load_state_dict(plain.state_dict())

# 4. Back to MACE's own layers, for users without eqlayers: the same objects as before.
eq.deaccelerate(model)
assert not any(type(module).__name__.startswith("Accelerated") for module in model.modules())
back_energy, back_forces, _ = energy_and_forces(model)

if difference > 1e-12 or back_energy != energy or (back_forces != forces).any():
    raise SystemExit("check failed: expected forces that agree to rounding, and the very same ones at the end")
print("check passed: equal to rounding while accelerated, and bit by bit after going back")
