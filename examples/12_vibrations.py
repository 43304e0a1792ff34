"""Vibrations of ethanol: relaxed structure, Hessian, frequencies in cm^-1, and three checks of them.

    python examples/09_own_structures.py                            # trains the potential that is taken by default
    python examples/12_vibrations.py [runs/ethanol/potential.pt]    # or any other for C, H and O

The Hessian is `Potential.hessian`, by `torch.func`; masses, modes and units are ASE's. A free molecule has six modes of
frequency zero; a translation exerts no force (sum rule); and differences of forces give the same frequencies. Crystals
and other structures: docs/howto/vibrations.md. Ten seconds.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from ase import Atoms
from ase.vibrations import Vibrations, VibrationsData
from matplotlib.figure import Figure

from eqlayers.data.embedded import embedded_trajectory
from eqlayers.integrations.ase import Calculator
from eqlayers.simulate import relax

MODEL = "runs/example_09/potential.pt"
ZERO = 6  # modes of a molecule that is not linear: three translations, three rotations


def signed(data: VibrationsData) -> np.ndarray:
    """Frequencies in cm^-1, ascending; negative for directions in which the energy falls."""
    found = data.get_frequencies()
    return np.sort(found.real - found.imag)


def picture(data: VibrationsData, path: Path, caption: str) -> None:
    """Density of vibrational states by the element that moves, above the frequencies."""
    atoms, grid = data.get_atoms(), np.linspace(0, 4000, 2000)
    moving = atoms.get_masses() * np.square(data.get_modes(all_atoms=True)).sum(2)  # [modes, atoms], kinetic energy
    moving /= moving.sum(1, keepdims=True)
    peaks = 100 * np.exp(-0.5 * ((grid - signed(data)[ZERO:, None]) / 15) ** 2) / (15 * np.sqrt(2 * np.pi))
    elements = sorted(set(atoms.symbols))
    parts = [moving[ZERO:, atoms.symbols == element].sum(1) @ peaks for element in elements]
    figure = Figure(figsize=(6.4, 3.6), dpi=160, layout="constrained")
    axis = figure.subplots()
    axis.stackplot(grid, parts, labels=elements, colors=("#4a4a4a", "#7fb2e5", "#c0392b"))
    axis.vlines(signed(data)[ZERO:], -0.7, -0.2, color="black", linewidth=0.8)
    axis.set(xlabel="wavenumber (cm$^{-1}$)", ylabel="states per 100 cm$^{-1}$", xlim=(0, 4000))
    axis.set_yticks([tick for tick in axis.get_yticks() if tick >= 0])
    axis.set_title(caption, fontsize=9)
    axis.legend(title="what moves", frameon=False, loc="upper center")
    figure.savefig(path)


def main() -> None:
    model = Path(sys.argv[1] if len(sys.argv) > 1 else MODEL)
    if not model.exists():
        raise SystemExit(f"there is no {model}; train it first: python examples/09_own_structures.py")
    torch.set_num_threads(1)

    # 1. A minimum, in float64: what is left of the forces turns up as frequencies of rotations.
    with np.load(embedded_trajectory("ethanol_nm")) as file:
        start = Atoms(file["z"], file["R"].mean(0))
    calculator = Calculator(model, dtype=torch.float64)
    found = relax(start, calculator, optimizer="bfgs", fmax=1e-5, steps=1000)
    print(f"relaxed in {found.steps} steps: {found.energies[1]:.4f} eV, forces below {found.forces[1]:.0e} eV/A")

    # 2. Second derivatives, eV/A^2, and modes.
    hessian = calculator.get_hessian(found.atoms)  # [9, 3, 9, 3]
    modes = VibrationsData(found.atoms, hessian)
    print(modes.tabulate())

    # 3. The same by differences of forces, two on either side.
    with TemporaryDirectory() as folder:
        moved = found.atoms.copy()
        moved.calc = calculator
        differences = Vibrations(moved, name=folder + "/cache", delta=0.005, nfree=4)
        differences.run()
        deviation = np.abs(signed(modes) - signed(differences.get_vibrations()))[ZERO:].max()
    frequencies, zero = np.split(np.sort(np.abs(signed(modes)))[::-1], [-ZERO])
    push = np.abs(hessian.sum(2)).max() / np.abs(hessian).max()
    print(f"modes of frequency zero: at most {zero[0]:.2f} cm^-1; lowest of the others {frequencies[-1]:.1f} cm^-1")
    print(f"differences of forces: {deviation:.3f} cm^-1 away at most; sum rule: {push:.0e} of the largest constant")
    path = model.with_name("vibrations.png")
    energy = modes.get_zero_point_energy()
    picture(modes, path, f"{found.atoms.get_chemical_formula()}, harmonic; zero-point energy {energy:.3f} eV")
    print(f"picture: {path}")
    if not (found.converged and zero[0] < 5 and signed(modes)[ZERO] > 20 and deviation < 0.5 and push < 1e-10):
        raise SystemExit("check failed: expected a minimum with six modes of zero, and equal differences")
    print("check passed: a minimum, six modes of zero, the same by differences")


if __name__ == "__main__":
    main()
