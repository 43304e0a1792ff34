"""The command `eqlayers select`: structures of a pool on which a committee disagrees most, without near-duplicates."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from ..atoms.periodic import neighbor_list
from ..cli.notices import lines
from ..core.checks import check_integer, check_number
from ..core.errors import ConfigError
from ..core.files.read_write import check_output
from ..models import Committee
from ..models.committee import DEVIATION
from .frames import check_different, frames, new_file, without_results
from .options import add_common, loaded, predictions

Lengths = dict[tuple[int, int], NDArray[np.float64]]


def select_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command to a parser."""
    parser.add_argument("structures", metavar="POOL", help="a file of structures without labels")
    add_common(parser)
    parser.add_argument("--most", type=int, default=50, help="number of structures at most; 50 by default")
    about = "A by which a distance must differ from each structure selected before; 0.05 by default"
    parser.add_argument("--difference", type=float, default=0.05, help=about)
    about = "structures that have labels already, of which copies are left out as well"
    parser.add_argument("--known", action="append", default=[], metavar="FILE", help=about)
    parser.add_argument("-o", "--output", metavar="FILE", help="a new .xyz; POOL_selected.xyz by default")
    parser.add_argument("--batch-size", type=int, default=32, help="structures at once; 32 by default")


def run_select(options: argparse.Namespace) -> int:
    """Write selected structures with their row in the pool, the largest deviation first; return the exit status."""
    source = Path(options.structures)
    name = options.output or str(source.with_name(f"{source.stem}_selected.xyz"))
    output = check_output(name, "--output", (".xyz", ".extxyz"), new="Name another.")
    check_different(("POOL", source), ("--output", output), *(("--known", path) for path in options.known))
    most = check_integer("--most", options.most, 1)
    least = check_number("--difference", options.difference, at_least=0)
    committee = loaded(options)
    if not isinstance(committee, Committee):
        raise ConfigError("-m must be a committee, whose members can disagree, got one potential. Name several.")
    structures, deviations = [], []
    for atoms, result in predictions(committee, frames(source), options.batch_size):
        structures.append(without_results(atoms))
        deviations.append(float(result[DEVIATION.format("forces")].max(initial=0.0)))
    order = np.argsort(-np.array(deviations), kind="stable")
    rows_taken, copies = _differing(structures, order, options.known, most, least, committee.cutoff)
    with new_file(output) as write:
        for row in rows_taken:
            structures[row].info.update(pool_row=int(row), max_forces_deviation=deviations[row])
            write(structures[row])
    range_ends = [f"{deviations[row]:.4g}" for row in (rows_taken[0], rows_taken[-1])] if rows_taken else []
    rows = [
        ("pool", f"{len(structures)} structures of {source}, deviation of forces {max(deviations):.4g} eV/A at most"),
        ("selected", f"{len(rows_taken)} structures, {' to '.join(range_ends)} eV/A" if rows_taken else "none"),
        ("copies", f"{copies} left out, whose distances differ by less than {least:g} A"),
        ("output", f"{output}: label it, and train with the earlier file and this one"),
    ]
    print(lines(rows))
    return 0


def _differing(
    pool: list[Atoms], order: NDArray[np.int64], known: list[str], most: int, least: float, cutoff: float
) -> tuple[list[int], int]:
    """Rows of the pool by descending deviation that differ from known structures and each other; number of copies."""
    earlier = [lengths_within(atoms, cutoff) for path in known for atoms in frames(path)]
    rows_taken: list[int] = []
    for seen, row in enumerate(order):
        if len(rows_taken) == most:
            return rows_taken, seen - len(rows_taken)
        lengths = lengths_within(pool[row], cutoff)
        if all(difference(lengths, other) >= least for other in earlier):
            rows_taken.append(int(row))
            earlier.append(lengths)
    return rows_taken, len(order) - len(rows_taken)


def lengths_within(atoms: Atoms, cutoff: float) -> Lengths:
    """Cutoff minus distance of all pairs of atoms in Angstrom, sorted, by pair of species.

    They are invariant under rotation, reflection, translation and permutation of atoms, and zero at the cutoff. The key
    (z, 0) has one zero for each atom of a species.
    """
    (senders, receivers), shifts = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    vectors = atoms.positions[receivers] - atoms.positions[senders] + shifts @ atoms.cell.array
    shorter, z = cutoff - np.linalg.norm(vectors, axis=1), atoms.numbers
    pairs = np.sort(np.stack([z[senders], z[receivers]]), axis=0)
    lengths: Lengths = {(int(number), 0): np.zeros((z == number).sum()) for number in np.unique(z)}
    for pair in np.unique(pairs, axis=1).T:
        lengths[int(pair[0]), int(pair[1])] = np.sort(shorter[(pairs == pair[:, None]).all(0)])[::-1]
    return lengths


def difference(first: Lengths, other: Lengths) -> float:
    """Largest difference of sorted distances in Angstrom; infinite if the numbers of atoms of a species differ."""
    if any(len(first.get(key, ())) != len(other.get(key, ())) for key in first.keys() | other.keys() if key[1] == 0):
        return np.inf
    largest = 0.0
    for key in first.keys() | other.keys():
        a, b = (lengths.get(key, np.empty(0)) for lengths in (first, other))
        size = max(len(a), len(b))
        if size:
            largest = max(largest, float(np.abs(np.pad(a, (0, size - len(a))) - np.pad(b, (0, size - len(b)))).max()))
    return largest
