"""Writes the tables of mistakes that are found: ``python -m tests.mistakes.page docs/howto/data_mistakes.md``."""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from textwrap import wrap

from rich.progress import Progress

from eqlayers.data.structures import StructureArrays

from .mistakes import MISTAKES, Mistake, in_units, said_of
from .sets import POOLS, SETS

NAMED, OTHER, MISSED = "●", "○", "–"
SIZES = (10, 30, 100)
DRAWS_OF_MISTAKES, DRAWS_OF_RIGHT = 1, 30

HEAD = """# Mistakes in labels that are found

Before a training, `eqlayers fit` compares the labels with each other and with facts of chemistry. The command warns of
wrong units, wrong signs, and virials in place of stress. A warning has three sentences: the number that was found, the
likely cause, and the key of the configuration that mends it.

```text
{example}
```

The command reads four kinds of numbers:

- **Work.** From one frame of a trajectory to the next, the energy changes by the work of the forces. From one cell to
  another cell of the same composition, the energy changes by the work of the stress and of the forces. Eight pairs of
  similar structures are enough. A ratio of energies to work is wrong outside 0.55 to 1.5 for frames, where few frames
  widen the range, and outside 0.4 to 2.5 for cells.
- **A pair potential.** Independent structures may have any compositions. A pair potential is fitted to their forces by
  linear least squares, in splines of the distance. The energies of the pair potential are compared with the labels,
  beside composition, number of bonds and volume. The stress of the pair potential is compared with the labels, without
  the pressure. A comparison counts if the correlation is at least 0.35 and 4.5 standard deviations from 0. A ratio is
  wrong if the ratio is off by a factor of more than 3 over the correlation, or if the ratio is negative.
- **Bonds.** The force constant of a bond of nonmetals with the length r is about 45 eV Å² / r⁴. Forces are wrong if the
  median constant is off by a factor of more than 4 for bonds of hydrogen, or of more than 7 for other bonds.
- **Sizes.** Energies may exceed the energies of free atoms with all electrons, or may be such energies in another unit.
  Forces may not add up to 0. All atoms may be twice as far from each other as bonds are long.

Other mistakes are no factor of all labels. A finding of this list names files and rows, and a cause where one alone
explains the numbers:

- **Numbers that were not computed.** One energy in structures of unlike composition or unlike forces, forces that are
  exactly 0 where symmetry does not make them 0, stress that is 0 or has no shear. The number of digits of the labels
  is the margin.
- **Some of the structures.** Energies that are farther from the others of their composition than forces times 1 Å, 15
  median deviations, and 1 eV an atom (12 eV an atom where the number of bonds differs). Forces that point against
  the others, or are more than 8 times larger, beside one pair potential for all. Up to a half may be wrong. Replayed
  structures of another method are refused.
- **Order.** Labels of the frame before or after, cells that are transposed or have other axes, components of shear in
  another order: another order explains the labels, and the one of the file does not.
- **Energies of atoms** (`e0s`) that leave more than 12 eV an atom, where bonds give 0 to −9; energies that were divided
  by the number of atoms; positions in nm.

Forces of more than 15 eV/Å in the median structure, as in hot metals, are a remark. No command sets a unit on a
finding: units come from the file or from `units`.

Of 118 pairs of such a mistake and a set of 40 structures, 106 are found and named. None of 126 right sets that look
unusual (hot copper, energies of all electrons, elastic scans of MgO, strained metals, scans of dimers and reactions in
random order, relaxations, phonons; 6, 12 and 40 structures) gets a word but the remark on large forces. In a checkout,
`pytest tests/mistakes/test_defects.py` tests both, and lists the 12 pairs that are not found. Nine are of 40 crystals
of 12 compounds: three structures of a compound are too few, and a pair potential gives their shear with a correlation
below 0.4. One is energies per atom of alloys, which are measured from perfect crystals and are about 0 for any size.
Two are gradients in every other structure of aspirin and of alloys, where each half may be the right one.

If energies change against the work, a sign is surely wrong, and the training does not begin. Everything else is a
warning. The check takes one to three seconds for 1,000 frames of 20 atoms: at most 500 structures with 8,000 atoms
together are fitted, drawn at random and always the same.

This page holds the output of a program that makes the mistakes and runs the check. In a checkout of the repository,
`python -m tests.mistakes.page docs/howto/data_mistakes.md` writes the page again, in some minutes.

## Mistake by set

● found, and the right cause is named. ○ found, and another cause is named. – not found. An empty field means that the
set lacks the label.

"""
SETS_HEAD = """
| set | structures |
|---|---|
"""
NUMBERS = """
{missed} of {all} fields are not found:

- Energies of structures at rest, without forces, can be compared with the sizes above only.
- Energies and forces of a metal may both be in a wrong unit. Then their ratio is right, and without stress and without
  bonds of nonmetals there is nothing else to compare with.

## Number of structures

Share of the mistakes above that are found, in a random draw of each number of structures.

"""
ALARMS = """
Few structures of many compositions tell little: the energies of 10 different molecules differ by composition more than
by the work of the forces. The bonds still tell the unit of the forces.

## False alarms

Right structures, in {draws} random draws of each number of structures: {alarms} of {total} draws got a warning.

"""


def found(mistake: Mistake, structures: StructureArrays) -> str:
    """Field of the table."""
    if not mistake.applies(structures):
        return ""
    said = said_of(mistake.made(structures))
    named = any(cause in text for cause in mistake.cause for text in said)
    return NAMED if named else OTHER if said else MISSED


def row_of(mistake: int) -> list[str]:
    """Fields of a mistake, one for each set."""
    return [found(MISTAKES[mistake], of()) for _, of in SETS.values()]


def draws_of(name: str, size: int, number: int) -> list[StructureArrays]:
    """Draws of a set; none if the set is smaller."""
    return [draw for seed in range(number) if len(draw := POOLS[name](size, seed)) == size]


def share(name: str, size: int) -> str:
    """Share of the mistakes that are found."""
    draws = draws_of(name, size, DRAWS_OF_MISTAKES)
    fields = [found(mistake, draw) for draw in draws for mistake in MISTAKES if mistake.applies(draw)]
    return f"{1 - fields.count(MISSED) / len(fields):.0%}" if fields else ""


def alarms(name: str, size: int) -> tuple[int, int]:
    """Draws of right structures that get a warning, and all draws."""
    said = [bool(said_of(draw)) for draw in draws_of(name, size, DRAWS_OF_RIGHT)]
    return sum(said), len(said)


def table(names: list[str], fields: list[str]) -> str:
    """A table of sets by number of structures."""
    lines = [f"| set | {' | '.join(f'{size} structures' for size in SIZES)} |", f"|---|{'--:|' * len(SIZES)}"]
    rows = (fields[start : start + len(SIZES)] for start in range(0, len(fields), len(SIZES)))
    lines += [f"| {name} | {' | '.join(row)} |" for name, row in zip(names, rows, strict=True)]
    return "\n".join(lines) + "\n"


def page(processes: int) -> str:
    """The text of the page, by several processes."""
    (example,) = said_of(in_units(("energy", "kcal/mol")).made(SETS["molecules"][1]()))
    for _, of in SETS.values():
        of()  # once, for all processes
    labelled = [name for name in POOLS if name != "minima"]
    with Progress() as progress, ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as workers:
        tasks = [workers.submit(row_of, mistake) for mistake in range(len(MISTAKES))]
        shares = [workers.submit(share, name, size) for name in labelled for size in SIZES]
        counts = [workers.submit(alarms, name, size) for name in POOLS for size in SIZES]
        every = [*tasks, *shares, *counts]
        for _ in progress.track(as_completed(every), total=len(every), description="mistakes"):
            pass
    rows = [task.result() for task in tasks]
    counted = [task.result() for task in counts]
    fields = [field for row in rows for field in row if field]
    warned, drawn = (sum(column) for column in zip(*counted, strict=True))
    lines = [f"| mistake | {' | '.join(SETS)} |", f"|---|{':-:|' * len(SETS)}"]
    lines += [f"| {mistake.name} | {' | '.join(row)} |" for mistake, row in zip(MISTAKES, rows, strict=True)]
    return (
        HEAD.format(example="\n".join(wrap(f"warning: {example}", 88)))
        + "\n".join(lines)
        + "\n"
        + SETS_HEAD
        + "".join(f"| {name} | {what} |\n" for name, (what, _) in SETS.items())
        + NUMBERS.format(missed=fields.count(MISSED), all=len(fields))
        + table(labelled, [task.result() for task in shares])
        + ALARMS.format(draws=DRAWS_OF_RIGHT, alarms=warned, total=drawn)
        + table(list(POOLS), [f"{some} of {number}" if number else "" for some, number in counted])
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(os.cpu_count() or 1))
