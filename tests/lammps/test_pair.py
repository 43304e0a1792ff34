"""Runs of LAMMPS with pair style eqlayers: at their ends, the potential has the same numbers in Python."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from eqlayers import Calculator, deploy
from eqlayers.lammps import build, plugins
from eqlayers.lammps.plugin import _compile
from eqlayers.models import MACE, NequIP, Potential
from eqlayers.nn import ZBL

from .conftest import OUTPUT, WRITE, Run, batch_of, compare, lammps, mass, read, write_data

SPECIES = ["H", "O", "Cu"]
TINY = {"hidden": "4x0e + 4x1o", "cutoff": 4.0, "radial_hidden": (8,)}
NETWORKS = {
    "NequIP": lambda: NequIP(SPECIES, lmax=2, layers=3, **TINY | {"hidden": "32x0e + 32x1o"}),
    "MACE": lambda: MACE(SPECIES, lmax=2, correlation=2, layers=2, **TINY),
    "one layer": lambda: NequIP(SPECIES, lmax=1, layers=1, **TINY),
}


class Whole(torch.nn.Module):
    """A network whose energies depend on all atoms at once."""

    irreps_sh, cutoff, species = "0e", 4.0, (8,)

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        return edges.lengths.tanh().sum().expand(atom_types.shape[0])


class ThereAndBack(torch.nn.Module):
    """Features are summed for senders, so that gradients are copied to ghosts."""

    irreps_sh, cutoff, species = "0e", 4.0, tuple(SPECIES)

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        src, dst = graph.ends
        features = (1 + atom_types[:, None]) * torch.ones(1, 3, dtype=edges.vectors.dtype)
        factors = (1 - (edges.lengths / 4)[:, None] ** 2) ** 3
        for ends in ((dst, src), (src, dst)):
            sums = torch.zeros_like(features).index_add(0, ends[0], factors * features[ends[1]])
            features = features + (0.02 * sums).tanh()
        return (features**2).sum(1)


NETWORKS |= {"there and back": ThereAndBack}


class SumsForSenders(torch.autograd.Function):
    """Its reverse pass reads sums of gradients and rows."""

    @staticmethod
    def forward(ctx, rows, src, dst):  # type: ignore[no-untyped-def]
        ctx.save_for_backward(rows, src, dst)
        return torch.zeros_like(rows).index_add(0, src, rows[dst])

    @staticmethod
    def backward(ctx, slopes):  # type: ignore[no-untyped-def]
        rows, src, dst = ctx.saved_tensors
        return torch.zeros_like(rows).index_add(0, dst, (slopes + rows)[src] - rows[src]), None, None


class OtherReverse(Whole):
    """A network with a reverse pass that it writes itself."""

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        sums = edges.lengths.new_zeros(atom_types.shape[0], 1).index_add(0, graph.ends[1], edges.lengths[:, None])
        return 1e-3 * SumsForSenders.apply(sums, *graph.ends)[:, 0]


class LennardJones(Whole):
    """Half of the energy of a pair is of the sender: a sum for senders, with an exchange."""

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        power = (2 / edges.lengths) ** 6
        return power.new_zeros(atom_types.shape[0]).index_add(0, graph.ends[0], 0.1 * (power**2 - power))


def potential_of(name: str, dtype: torch.dtype = torch.float64) -> Potential:
    torch.manual_seed(5)
    return Potential(NETWORKS[name](), SPECIES, {"H": -13.6, "Cu": -3.0}, 0.7).to(dtype).eval()


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The plugin, and programs of the potentials."""
    folder = tmp_path_factory.mktemp("programs")
    made: dict[str, Any] = {"plugin": build(path=folder / "eqlayersplugin.so").path}
    for name in NETWORKS:
        made[name] = deploy(potential_of(name), folder / f"{name.split()[0]}.so").path
    repelled = Potential(NETWORKS["one layer"](), SPECIES, repulsion=ZBL()).double()
    made["ZBL"] = deploy(repelled, folder / "ZBL.so").path
    made["whole"] = deploy(Potential(Whole(), ["O"], subtract_isolated=False), folder / "whole.so").path
    made["reverse"] = deploy(Potential(OtherReverse(), ["O"], subtract_isolated=False), folder / "reverse.so").path
    made["LJ"] = deploy(Potential(LennardJones(), ["O"], subtract_isolated=False).double(), folder / "LJ.so").path
    made["float32"] = deploy(potential_of("MACE", torch.float32), folder / "float32.so").path
    return made


def crystal(tilted: bool = False, size: int = 3) -> Atoms:
    """Copper with some oxygen and hydrogen, atoms moved at random."""
    atoms = bulk("Cu", cubic=True) * (size, size, size)
    atoms.symbols[::5] = "O"
    atoms.symbols[3::7] = "H"
    if tilted:
        shear = np.array([[1, 0, 0], [0.15, 1, 0], [0.1, -0.2, 1]])
        atoms.set_cell(atoms.cell.array @ shear, scale_atoms=True)
    atoms.rattle(0.1, seed=2)
    return atoms


def waters(count: int, side: float) -> Atoms:
    """Molecules of water on a grid, turned at random."""
    atoms, rng = Atoms(cell=[side] * 3, pbc=True), np.random.default_rng(4)
    grid = round(count ** (1 / 3))
    for place in np.ndindex(grid, grid, grid):
        one = molecule("H2O")
        one.rotate(rng.uniform(0, 360), rng.normal(size=3), center="COM")
        one.translate(np.array(place) * side / grid + 1.0 - one.get_center_of_mass())
        atoms += one
    atoms.wrap()
    return atoms


PAIR = "pair_style eqlayers\npair_coeff * * {} H O Cu"


def start(made: dict[str, Any], name: str = "NequIP", boundary: str = "p p p", **words: str) -> str:
    """The begin of an input: the box and its atoms, the pair style, and what is computed."""
    return f"""
plugin clear
plugin load {made["plugin"]}
units {words.get("units", "metal")}
atom_style {words.get("style", "atomic")}
boundary {boundary}
atom_modify map array
{words.get("before", "")}
read_data start.data
{words.get("pair", PAIR).format(made[name])}
neighbor 1.0 bin
neigh_modify every 1 delay 0 check yes
velocity all create 600 5 loop all
{OUTPUT}
"""


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("cell", ["orthogonal", "triclinic", "smaller than the cutoff", "slab", "molecule"])
def test_energies_forces_and_virials(name: str, cell: str, ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    """On each number of processes, some without atoms."""
    atoms, boundary = crystal(cell == "triclinic"), "p p p"
    if cell == "smaller than the cutoff":
        atoms = crystal(True, 1)
    elif cell == "slab":
        atoms.cell[2, 2], boundary = 40.0, "p p f"
    elif cell == "molecule":
        atoms, boundary = Atoms(molecule("H2O"), cell=[30.0] * 3, pbc=False), "f f f"
        atoms.positions += 2.0
    write_data(tmp_path / "start.data", atoms, "H O Cu")
    log = lammps(tmp_path, f"{start(made, name, boundary=boundary)}\nrun 0\n{WRITE.format('end.txt')}\n", ranks)
    compare(read(tmp_path, "end.txt", "H O Cu", log), potential_of(name))


MOVES = {
    "atoms cross": "velocity all set 300 200 NULL sum yes\nfix n all nve\nrun 40",
    "npt": "fix n all npt temp 600 600 0.05 aniso 0 0 0.5\nrun 20",
    # forces of a last step are of the box before its change
    "deform": "fix n all nve\nfix d all deform 1 x erate 2 xy erate 1 remap x\nrun 20\nunfix d\nrun 1",
    "restart": "fix n all nve\nrun 5\nwrite_restart a.restart\nclear\n{plugin}\nread_restart a.restart\n{pair}\n"
    "{output}\nfix n all nve\nrun 5",
    "minimize": "min_modify dmax 0.05\nminimize 0 1e-3 8 50",
    "replicate": "replicate 2 1 2\nrun 0",
    "tiled": "comm_style tiled\nbalance 1.0 rcb\nfix n all nve\nrun 5",
    "deposit": "region r block 0 10 0 10 0 10\nfix n all nve\nfix d all deposit 5 2 1 7 region r near 0.8\nrun 12",
    "gcmc": "fix n all nve\nfix g all gcmc 2 20 10 1 7 3000 -2.0 0.1\nrun 8",
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", MOVES)
def test_runs_end_with_the_numbers_of_python(kind: str, ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    atoms = crystal(kind in ("npt", "deform"))
    write_data(tmp_path / "start.data", atoms, "H O Cu")
    parts = {"plugin": f"plugin load {made['plugin']}", "pair": PAIR.format(made["NequIP"]), "output": OUTPUT}
    log = lammps(tmp_path, f"{start(made)}\n{MOVES[kind].format(**parts)}\n{WRITE.format('end.txt')}\n", ranks)
    run = read(tmp_path, "end.txt", "H O Cu", log)
    compare(run, potential_of("NequIP"))
    expected = {"replicate": 4 * len(atoms), "deposit": len(atoms) + 5}.get(kind, len(atoms))
    assert (len(run.atoms) == expected) != (kind == "gcmc"), "the number of atoms"


#: Pair styles beside eqlayers -> the input, and what is left without eqlayers.
BESIDE = {
    "zbl": (
        "pair_style hybrid/overlay eqlayers zbl 2 3\npair_coeff * * eqlayers {} H O Cu\n"
        "pair_coeff 1 1 zbl 1 1\npair_coeff 1 2 zbl 1 8\npair_coeff 1 3 zbl 1 29\npair_coeff 2 2 zbl 8 8\n"
        "pair_coeff 2 3 zbl 8 29\npair_coeff 3 3 zbl 29 29\n",
        "pair_style zbl 2 3\npair_coeff 1 1 1 1\npair_coeff 2 2 8 8\npair_coeff 3 3 29 29\n",
    ),
    # hydrogen is a guest that the network does not know
    "NULL": (
        "pair_style hybrid eqlayers lj/cut 5\npair_coeff * * eqlayers {} NULL O Cu\n"
        "pair_coeff 1 1 lj/cut 0.01 1.5\npair_coeff 1 2 lj/cut 0.01 1.5\npair_coeff 1 3 lj/cut 0.01 1.5\n",
        "pair_style hybrid lj/cut 5 zero 5\npair_coeff 1 1 lj/cut 0.01 1.5\npair_coeff 1 2 lj/cut 0.01 1.5\n"
        "pair_coeff 1 3 lj/cut 0.01 1.5\npair_coeff 2*3 2*3 zero\n",
    ),
    "bonds": (
        "bond_style harmonic\nbond_coeff 1 10 1.0\nspecial_bonds lj/coul 1 1 1\npair_style eqlayers\n"
        "pair_coeff * * {} H O\n",
        "pair_style zero 5\npair_coeff * *\n",
    ),
}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("kind", BESIDE)
def test_beside_other_styles(kind: str, ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    """Forces of the others are taken away, which LAMMPS computes for the same atoms."""
    bonds, symbols = kind == "bonds", "H O" if kind == "bonds" else "H O Cu"
    atoms = waters(27, 9.0) if bonds else crystal()
    write_data(tmp_path / "start.data", atoms, symbols, 27 if bonds else 0)
    with_, without = BESIDE[kind]
    text = start(made, style="full" if bonds else "atomic", pair=with_)
    text += f"fix n all nve\nrun 10\n{WRITE.format('end.txt')}\n{without}\nrun 0\n{WRITE.format('other.txt')}\n"
    log = lammps(tmp_path, text, ranks)
    first = log.index("Loop time") + 20
    both, other = read(tmp_path, "end.txt", symbols, log[:first]), read(tmp_path, "other.txt", symbols, log)
    known = both.atoms.numbers != 1 if kind == "NULL" else None
    left = (mine - theirs for mine, theirs in zip(both[1:-1], other[1:-1], strict=True))
    compare(Run(both.atoms, *left, log), potential_of("NequIP"), known, near=1e-11)  # differences of larger numbers


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_thousands_of_molecules(ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    """4,096 of water by replicate, with bonds: energies and forces repeat."""
    atoms = waters(8, 6.5)
    write_data(tmp_path / "start.data", atoms, "H O", 8)
    pair = BESIDE["bonds"][0].replace("bond_coeff 1 10", "bond_coeff 1 0")
    text = start(made, style="full", pair=f"replicate 8 8 8\n{pair}") + f"run 0\n{WRITE.format('end.txt')}\n"
    run = read(tmp_path, "end.txt", "H O", lammps(tmp_path, text, ranks))
    assert len(run.atoms) == 3 * 4096
    atoms.calc = Calculator(potential_of("NequIP"), dtype=torch.float64)
    assert run.energy == pytest.approx(512 * atoms.get_potential_energy(), rel=1e-12)
    forces = np.tile(atoms.get_forces(), (512, 1))  # replicate counts atoms of one copy after the other
    np.testing.assert_allclose(run.forces, forces, rtol=0, atol=1e-12 * np.abs(forces).max())


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_units_and_float32(ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    write_data(tmp_path / "start.data", crystal(True), "H O Cu")
    runs = []
    for name, units in (("MACE", "metal"), ("MACE", "real"), ("float32", "metal")):
        text = start(made, name, units=units) + f"run 0\n{WRITE.format('end.txt')}\n"
        runs.append(read(tmp_path, "end.txt", "H O Cu", lammps(tmp_path, text, ranks, threads=ranks // 2 or 3)))
    metal, real, single = runs
    compare(single, potential_of("MACE", torch.float32), near=5e-6)
    kcal, atmospheres = 23.060549, 1.01325  # of LAMMPS; pressures differ by the constants of both units, 1e-7
    for name, scale in (("energy", kcal), ("energies", kcal), ("forces", kcal), ("pressure", 1 / atmospheres)):
        mine, theirs = getattr(real, name), getattr(metal, name) * scale
        near = 1e-6 if name == "pressure" else 1e-12
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=near * np.abs(theirs).max())


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize(
    ("name", "size"),
    [*((name, 1) for name in (*NETWORKS, "float32")), ("one layer", 0), ("NequIP", 0), ("MACE", 2)],
)
def test_current_of_heat(name: str, size: int, ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    """The derivative by time of the sum of positions times energies of atoms, in crystals and without a cell (0)."""
    atoms = crystal(tilted=size > 0, size=size or 3)
    atoms.center(vacuum=6.0) if not size else None
    write_data(tmp_path / "start.data", atoms, "H O Cu")
    flux = "compute kinetic all ke/atom\ncompute flux all heat/flux kinetic energy centroid\n"
    flux += "thermo_style custom step pe c_flux[*]\nthermo_modify format float %.17g\n"
    end = f"run 0\n{WRITE.format('end.txt').replace('fx', 'vx vy vz fx')}\n"
    log = lammps(tmp_path, start(made, name, "p p p" if size else "f f f") + flux + end, ranks)
    current = np.array(log[: log.rindex("Loop time")].strip().splitlines()[-1].split()[2:5], float)
    table = np.loadtxt(tmp_path / "end.txt", skiprows=9)
    potential = potential_of("MACE" if name == "float32" else name)
    heights = 1 / np.linalg.norm(np.linalg.inv(atoms.cell.array), axis=0)
    near = np.ceil(3 * potential.cutoff / heights.min()) if size else 0
    images = torch.cartesian_prod(*[torch.arange(-near, near + 1).double()] * 3)
    images = images[images.abs().sum(1).argsort(stable=True)] @ torch.tensor(atoms.cell.array)  # this cell is the first
    pos = (images[:, None] + torch.tensor(table[:, 2:5])).flatten(0, 1)
    structures = batch_of(potential, Atoms(np.tile(atoms.numbers, len(images)), pos.numpy()))
    pos.requires_grad_()
    energies = potential.atomic_energies(structures._replace(pos=pos))[: len(atoms)]
    speed = torch.tensor(table[:, 5:8])
    masses = torch.tensor([mass(symbol) for symbol in atoms.symbols])
    kinetic = 0.5 * masses * 1.0364269e-4 * speed.square().sum(1)  # of LAMMPS: of masses and Angstrom per ps in eV
    wanted = ((energies.detach() + kinetic)[:, None] * speed).sum(0)
    (forces,) = torch.autograd.grad(energies.sum(), pos, retain_graph=True)
    for axis in range(3):
        weighted = (pos.detach()[: len(atoms), axis] * energies).sum()
        (slope,) = torch.autograd.grad(weighted, pos, retain_graph=True)
        work = slope - pos.detach()[:, axis, None] * forces
        wanted[axis] += (work * speed.repeat(len(images), 1)).sum()
    error = np.abs(current - wanted.numpy()).max() / float(wanted.abs().max())
    assert error < (1e-5 if name == "float32" else 1e-9), error


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_pair_potentials_have_the_matrices_of_lammps(ranks: int, made: dict[str, Any], tmp_path: Path) -> None:
    """A pair potential has the matrices of lj/cut, from which LAMMPS computes currents of heat."""
    write_data(tmp_path / "start.data", crystal(tilted=True), "H O Cu")
    matrices = []
    for pair in ("pair_style lj/cut 4.0\npair_coeff * * 0.05 2.0", PAIR.replace("H O Cu", "O O O")):
        text = start(made, "LJ", pair=pair) + f"run 0\n{WRITE.format('end.txt')}\n"
        matrices.append(read(tmp_path, "end.txt", "H O Cu", lammps(tmp_path, text, ranks)).centroid)
    mine, theirs = matrices[1], matrices[0]
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


#: What is refused -> words of the input, what takes their place, and words of the error.
REFUSED = {
    "newton off": ("units metal", "newton off\nunits metal", "Newton must be on for pair style eqlayers, got off"),
    "units": ("units metal", "units lj", "Units must be metal or real for pair style eqlayers, got lj"),
    "NULL alone": ("H O Cu", "H O NULL", "must know all types, got NULL for type 3"),
    "an unknown element": ("H O Cu", "H O Ag", "must be species of .*, or NULL, got Ag"),
    "too few elements": ("H O Cu", "H O", "element to type mappings"),
    "no file": ("* * {file}", "* * none.so", "the file must be readable, got none.so"),
    "another file": ("* * {file}", "* * start.data", "must be a potential that eqlayers deploy wrote"),
    "no words": ("* * {file} H O Cu", "* * H", "must have a file and an element for each type, got 3 words"),
    "an option": ("pair_style eqlayers", "pair_style eqlayers a.so", "must have no options, got a.so"),
    "a whole structure": ("{file} H O Cu", "{whole} O O O", "must have stages, got .*whole.so"),
    "another reverse pass": ("{file} H O Cu", "{reverse} O O O", "must be linear in factors of energies .* got"),
    "bonds": ("atom_style atomic", "atom_style full", "bonds connect must stay .* got special_bonds 0 for 1-2"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_computed_is_refused(kind: str, made: dict[str, Any], tmp_path: Path) -> None:
    """On all processes, with the fix."""
    old, new, words = (text.format(file=made["NequIP"], **made) for text in REFUSED[kind])
    bonds = kind == "bonds"
    write_data(tmp_path / "start.data", *((waters(8, 6.5), "H O Cu", 8) if bonds else (crystal(), "H O Cu")))
    printed = lammps(tmp_path, start(made).replace(old, new, 1) + "run 0\n", 2, fails=True)
    assert re.search(words, printed.replace("\n", " ")), printed[-2000:]


def test_an_error_of_one_process_ends_all(made: dict[str, Any], tmp_path: Path) -> None:
    """Two atoms on one point, in a run of four processes; and a process that may not write to its folder."""
    atoms = crystal()
    atoms.positions[4] = atoms.positions[40] = [2.0, 2.0, 2.0]
    write_data(tmp_path / "start.data", atoms, "H O Cu")
    printed = lammps(tmp_path, start(made, "ZBL") + "run 5\n", 4, fails=True)
    assert "energy of each atom must be finite" in printed
    write_data(tmp_path / "start.data", crystal(), "H O Cu")
    text = start(made) + "run 0\n"
    printed = lammps(tmp_path, text, 2, fails=True, first={"TMPDIR": str(tmp_path / "none")})
    assert "TMPDIR must be a folder from which libraries can be loaded" in printed


def test_the_program_of_the_package_loads_the_plugin(made: dict[str, Any], tmp_path: Path) -> None:
    """After `eqlayers lammps build`; and a plugin for another version is refused."""
    built = build()
    assert build().seconds == 0.0
    assert Path(plugins()) == built.path.parent
    write_data(tmp_path / "start.data", crystal(), "H O Cu")
    text = start(made) + "run 0\n"
    assert "Loaded 1 plugins from" in lammps(tmp_path, text.replace("plugin clear\nplugin load", "#"))
    other = tmp_path / "otherplugin.so"
    _compile(built.lammps._replace(version="29 Aug 2024"), other)
    printed = lammps(tmp_path, text.replace(str(made["plugin"]), str(other)), fails=True)
    assert "must be compiled for this LAMMPS, got one for 29 Aug 2024" in printed
