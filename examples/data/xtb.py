"""From a SMILES string to QM9's properties at GFN2-xTB level: RDKit for the start geometry, tblite for the rest.

Atomic units inside, QM9's units (Angstrom, Hartree, Debye, a0^3, cal/(mol K), GHz) outside. One thread; about 0.8 s for
a molecule of 14 atoms, two thirds of it for the Hessian.

Method: C. Bannwarth, S. Ehlert, S. Grimme, J. Chem. Theory Comput. 15, 1652 (2019).
"""

from __future__ import annotations

import math
import os

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # tblite reads it when it loads; small molecules gain nothing from threads

from typing import Any

import numpy as np
from numpy.typing import NDArray
from rdkit import Chem, RDLogger
from rdkit.Chem import AllChem
from tblite.interface import Calculator

RDLogger.DisableLog("rdApp.*")
Array = NDArray[np.float64]

BOHR_PER_ANGSTROM = 1.8897261246257702
EV_PER_HARTREE = 27.211386245988
ELECTRON_MASS_PER_DALTON = 1822.888486209
HARTREE_PER_KELVIN = 3.166811563e-6
WAVENUMBER_PER_HARTREE = 219474.6313632
DEBYE_PER_AU = 2.541746473
CAL_PER_MOL_PER_HARTREE = 627509.474
GHZ_PER_HARTREE = 6579683.920502
PASCAL_PER_AU = 2.9421015697e13
MASS = {1: 1.00782503, 6: 12.0, 7: 14.0030740, 8: 15.9949146, 9: 18.9984032}  # most abundant isotope, Dalton


def embed(smiles: str, seed: int = 7) -> tuple[Chem.Mol, NDArray[np.int64], Array] | None:
    """Start geometry by ETKDG and MMFF94 (UFF where MMFF94 has no parameters); None if RDKit finds none."""
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    conformers = list(AllChem.EmbedMultipleConfs(mol, 1, randomSeed=seed))
    if not conformers:
        return None
    if AllChem.MMFFHasAllMoleculeParams(mol):
        AllChem.MMFFOptimizeMoleculeConfs(mol, maxIters=1000)
    else:
        AllChem.UFFOptimizeMoleculeConfs(mol, maxIters=1000)
    numbers = np.array([atom.GetAtomicNum() for atom in mol.GetAtoms()])
    return mol, numbers, mol.GetConformer(conformers[0]).GetPositions()


class SinglePoint:
    """Energy (Hartree) and gradient (Hartree/Bohr) at positions in Angstrom; each call starts from the last density."""

    def __init__(self, z: NDArray[np.int64], pos: Array, accuracy: float = 0.5, field: Array | None = None) -> None:
        self.calculator = Calculator("GFN2-xTB", z, pos * BOHR_PER_ANGSTROM)
        self.calculator.set("verbosity", 0)
        self.calculator.set("accuracy", accuracy)
        if field is not None:
            self.calculator.add("electric-field", [float(value) for value in field])  # tblite 0.8.0 rejects an ndarray
        self.result: Any = None

    def __call__(self, pos: Array) -> tuple[float, Array]:
        """Energy and gradient at new positions, `[A, 3]`."""
        self.calculator.update(positions=pos * BOHR_PER_ANGSTROM)
        self.result = self.calculator.singlepoint(self.result)
        return float(self.result.get("energy")), np.asarray(self.result.get("gradient"))

    @property
    def dipole(self) -> Array:
        """Dipole moment of the last call in Debye, `[3]`."""
        return np.array(self.result.get("dipole")) * DEBYE_PER_AU


def relax(point: SinglePoint, pos: Array, gmax: float = 2e-4, max_steps: int = 250) -> tuple[Array, float, bool]:
    """Minimise by Cartesian BFGS with a step cap of 0.25 Bohr per atom.

    Args:
        point: The energy.
        pos: Start in Angstrom, `[A, 3]`.
        gmax: Largest component of the gradient at the end in Hartree/Bohr (2e-4 is 0.010 eV/Angstrom).
        max_steps: Give up after this many steps.

    Returns:
        Positions, energy in Hartree, and whether it converged.
    """
    x = pos.ravel() * BOHR_PER_ANGSTROM
    hessian = np.eye(len(x)) * 0.6
    energy, gradient = point(pos)
    gradient = gradient.ravel()
    for _ in range(max_steps):
        if np.abs(gradient).max() < gmax:
            return x.reshape(-1, 3) / BOHR_PER_ANGSTROM, energy, True
        w, v = np.linalg.eigh(hessian)
        step = -v @ ((v.T @ gradient) / np.maximum(np.abs(w), 0.02))
        step *= min(1.0, 0.25 / np.linalg.norm(step.reshape(-1, 3), axis=1).max())
        energy, new = point((x + step).reshape(-1, 3) / BOHR_PER_ANGSTROM)
        change = new.ravel() - gradient
        curvature, applied = step @ change, hessian @ step
        if abs(curvature) > 1e-10:
            hessian = hessian + np.outer(change, change) / curvature - np.outer(applied, applied) / (step @ applied)
        x, gradient = x + step, new.ravel()
    return x.reshape(-1, 3) / BOHR_PER_ANGSTROM, energy, False


def hessian(point: SinglePoint, pos: Array, h: float = 0.005) -> Array:
    """Second derivatives in Hartree/Bohr^2 by central differences of the gradient, step h in Bohr, `[3A, 3A]`."""
    x = pos.ravel() * BOHR_PER_ANGSTROM
    rows = []
    for i in range(len(x)):
        shift = np.zeros(len(x))
        shift[i] = h
        forward = point((x + shift).reshape(-1, 3) / BOHR_PER_ANGSTROM)[1]
        backward = point((x - shift).reshape(-1, 3) / BOHR_PER_ANGSTROM)[1]
        rows.append((forward - backward).ravel() / (2 * h))
    matrix = np.array(rows)
    return 0.5 * (matrix + matrix.T)


def polarizability(z: NDArray[np.int64], pos: Array, h: float = 1e-3) -> float:
    """Isotropic polarisability in a0^3: central differences of the dipole in a field of h atomic units."""
    diagonal = []
    for k in range(3):
        dipoles = []
        for sign in (1, -1):
            field = np.zeros(3)
            field[k] = sign * h
            point = SinglePoint(z, pos, field=field)
            point(pos)
            dipoles.append(point.dipole[k] / DEBYE_PER_AU)
        diagonal.append((dipoles[0] - dipoles[1]) / (2 * h))
    return float(np.sum(diagonal) / 3)


def thermochemistry(
    z: NDArray[np.int64],
    pos: Array,
    energy: float,
    matrix: Array,
    temperature: float = 298.15,
    pressure: float = 101325.0,
) -> tuple[dict[str, float], int]:
    """Rigid rotor, harmonic oscillator, ideal gas, symmetry number 1.

    Returns:
        `zpve U0 U H G` (Hartree), `Cv` (cal/(mol K)), `A B C` (GHz); and the number of modes beyond 30i cm^-1.
    """
    mass = np.array([MASS[int(number)] for number in z]) * ELECTRON_MASS_PER_DALTON
    total = mass.sum()
    q = pos * BOHR_PER_ANGSTROM
    q = q - (mass[:, None] * q).sum(0) / total
    outer = (q**2).sum(1)[:, None, None] * np.eye(3) - q[:, :, None] * q[:, None, :]
    moments, axes = np.linalg.eigh((mass[:, None, None] * outer).sum(0))
    linear = moments[0] < 1e-3 * moments[-1]

    root = np.sqrt(np.repeat(mass, 3))
    rigid = [(np.eye(3)[k] * np.ones((len(z), 1))).ravel() * root for k in range(3)]
    rigid += [np.cross(axes[:, k], q).ravel() * root for k in range(3)]
    basis = np.linalg.svd(np.array(rigid).T, full_matrices=True)[0][:, 5 if linear else 6 :]
    squares = np.linalg.eigvalsh(basis.T @ (matrix / np.outer(root, root)) @ basis)
    omega = np.sign(squares) * np.sqrt(np.abs(squares))
    imaginary = int((omega * WAVENUMBER_PER_HARTREE < -30).sum())
    omega = np.abs(omega[omega * WAVENUMBER_PER_HARTREE > 10])

    kt = HARTREE_PER_KELVIN * temperature
    x = omega / kt
    zpve = float(0.5 * omega.sum())
    rotations = 2 if linear else 3
    u = energy + zpve + float((omega / np.expm1(x)).sum()) + (1.5 + rotations / 2) * kt
    h = u + kt
    cv = float((x**2 * np.exp(x) / np.expm1(x) ** 2).sum()) + 1.5 + rotations / 2
    s_vib = float((x / np.expm1(x) - np.log1p(-np.exp(-x))).sum())
    s_trans = math.log((total * kt / (2 * math.pi)) ** 1.5 * kt / (pressure / PASCAL_PER_AU)) + 2.5
    if linear:
        s_rot = math.log(2 * moments[-1] * kt) + 1
    else:
        s_rot = 0.5 * math.log(math.pi * float(np.prod(2 * moments * kt))) + 1.5
    g = h - kt * (s_trans + s_rot + s_vib)
    constants = [float(GHZ_PER_HARTREE / (2 * moment)) if moment > 1e-3 * moments[-1] else 0.0 for moment in moments]
    properties = {"zpve": zpve, "U0": energy + zpve, "U": u, "H": h, "G": g}
    properties["Cv"] = cv * HARTREE_PER_KELVIN * CAL_PER_MOL_PER_HARTREE
    return properties | dict(zip("ABC", constants, strict=True)), imaginary


def bonds_kept(mol: Chem.Mol, pos: Array) -> bool:
    """Whether the relaxed geometry still has the bonds of the graph and no others, by covalent radii."""
    table = Chem.GetPeriodicTable()
    radius = np.array([table.GetRcovalent(atom.GetAtomicNum()) for atom in mol.GetAtoms()])
    upper = np.triu_indices(len(radius), 1)
    ratio = (np.linalg.norm(pos[:, None] - pos[None], axis=-1) / (radius[:, None] + radius[None]))[upper]
    bonded = Chem.GetAdjacencyMatrix(mol).astype(bool)[upper]
    return bool((ratio[bonded] < 1.3).all() and (ratio[~bonded] > 1.15).all())


def compute_molecule(smiles: str, modes: bool = True) -> dict[str, Any]:
    """Everything the embedded set stores of one molecule, and the facts by which it is kept or dropped.

    Args:
        smiles: The graph.
        modes: Whether to compute what needs second derivatives or fields, nine tenths of the time.

    Returns:
        Plain lists and floats, ready for JSON. `status` is `"ok"`, `"not embedded"`, `"not converged"`,
        `"bonds changed"`, `"imaginary mode"` or `"small gap"`.
    """
    start = embed(smiles)
    if start is None:
        return {"smiles": smiles, "status": "not embedded"}
    mol, z, pos = start
    point = SinglePoint(z, pos)
    pos, energy, converged = relax(point, pos)
    levels, occupation = (np.asarray(point.result.get(f"orbital-{name}")) for name in ("energies", "occupations"))
    top = int(np.flatnonzero(occupation > 1).max())
    record: dict[str, Any] = {
        "smiles": smiles,
        "z": z.tolist(),
        "pos": (pos - pos.mean(0)).tolist(),
        "charges": np.asarray(point.result.get("charges")).tolist(),
        "dipole": point.dipole.tolist(),
        "energy": energy,
        "mu": float(np.linalg.norm(point.dipole)),
        "homo": float(levels[top]),
        "lumo": float(levels[top + 1]),
        "gap": float(levels[top + 1] - levels[top]),
    }
    imaginary = 0
    if modes:
        record["alpha"] = polarizability(z, pos)
        properties, imaginary = thermochemistry(z, pos, energy, hessian(point, pos))
        record |= properties
    reasons = {
        "not converged": not converged,
        "bonds changed": not bonds_kept(mol, pos),
        "imaginary mode": imaginary > 0,
        "small gap": record["gap"] < 0.02,
    }
    record["status"] = next((name for name, holds in reasons.items() if holds), "ok")
    return record
