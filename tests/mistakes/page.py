"""Writes the tables of mistakes that are found: ``python -m tests.mistakes.page docs/howto/data_mistakes.md``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from textwrap import wrap

from rich.progress import Progress

from eqlayers.data.structures import StructureArrays

from .mistakes import MISTAKES, Mistake, in_units, said_of
from .sets import POOLS, SETS

NAMED, OTHER, MISSED = "●", "○", "–"
SIZES = (10, 30, 100)
DRAWS_OF_MISTAKES, DRAWS_OF_RIGHT = 3, 60

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
  similar structures are enough.
- **A pair potential.** Independent structures may have any compositions. A pair potential is fitted to their forces by
  linear least squares, in splines of the distance. The energies of the pair potential are compared with the labels,
  beside composition, number of bonds and volume. The stress of the pair potential is compared with the labels, without
  the pressure. A comparison counts if the correlation is at least 0.35 and 4.5 standard deviations from 0. A ratio is
  wrong if the ratio is off by more than 3 over the correlation, or if the ratio is negative.
- **Bonds.** The force constant of a bond of nonmetals with the length r is about 45 eV Å² / r⁴. Forces are wrong if the
  median constant is off by a factor of more than 4 for bonds of hydrogen, or of more than 7 for other bonds.
- **Sizes.** Energies may exceed the energies of free atoms with all electrons, or may be such energies in another unit.
  Forces may not add up to 0. All atoms may be twice as far from each other as bonds are long.

If energies change against the work, a sign is surely wrong, and the training does not begin. Everything else is a
warning. The check takes about a second for 1,000 frames of 20 atoms: at most 500 structures with 8,000 atoms together
are fitted, drawn at random and always the same.

This page holds the output of a program that makes the mistakes and runs the check. In a checkout of the repository,
`python -m tests.mistakes.page docs/howto/data_mistakes.md` writes the page again, in about five minutes.

## Mistake by set

● found, and the right cause is named. ○ found, and another cause is named. – not found. An empty field means that the
set lacks the label.

"""
SETS_HEAD = """
| set | structures |
|---|---|
"""
NUMBERS = """
{missed} of {all} fields are not found. Structures at rest with energies alone have nothing that their energies can be
compared with, except for the sizes above.

## Number of structures

Share of the mistakes above that are found, in {draws} random draws of each number of structures.

"""
ALARMS = """
Few structures of many compositions do not tell: energies of 30 different molecules differ more by composition than by
the work of their forces. Their forces are still checked, by the bonds.

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


def by_mistake(step: Callable[[], None]) -> tuple[str, int, int]:
    """The table of mistakes by set, the number of fields that are not found, and of all fields."""
    sets = {name: of() for name, (_, of) in SETS.items()}
    lines = [f"| mistake | {' | '.join(sets)} |", f"|---|{':-:|' * len(sets)}"]
    missed = fields = 0
    for mistake in MISTAKES:
        row = [found(mistake, structures) for structures in sets.values()]
        missed, fields = missed + row.count(MISSED), fields + len(row) - row.count("")
        lines.append(f"| {mistake.name} | {' | '.join(row)} |")
        step()
    return "\n".join(lines) + "\n", missed, fields


def by_number(step: Callable[[], None], names: list[str], field: Callable[[list[StructureArrays]], str]) -> str:
    """A table of sets by number of structures, with a field for the draws of each."""
    lines = [f"| set | {' | '.join(f'{size} structures' for size in SIZES)} |", f"|---|{'--:|' * len(SIZES)}"]
    for name in names:
        row = []
        for size in SIZES:
            draws = [POOLS[name](size, seed) for seed in range(DRAWS_OF_RIGHT)]
            row.append(field([draw for draw in draws if len(draw) == size]))
            step()
        lines.append(f"| {name} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def share(draws: list[StructureArrays]) -> str:
    """Share of mistakes that are found."""
    some = draws[:DRAWS_OF_MISTAKES]
    fields = [found(mistake, draw) for draw in some for mistake in MISTAKES if mistake.applies(draw)]
    return f"{1 - fields.count(MISSED) / len(fields):.0%}" if fields else ""


def page() -> str:
    """The text of the page."""
    (example,) = said_of(in_units(("energy", "kcal/mol")).made(SETS["molecules"][1]()))
    alarms: list[bool] = []

    def count(draws: list[StructureArrays]) -> str:
        said = [bool(said_of(draw)) for draw in draws]
        alarms.extend(said)
        return f"{sum(said)} of {len(said)}" if said else ""

    labelled = [name for name in POOLS if name != "minima"]
    with Progress() as progress:
        bar = progress.add_task("mistakes", total=len(MISTAKES) + len(SIZES) * (len(labelled) + len(POOLS)))
        step = partial(progress.advance, bar)
        rows, missed, fields = by_mistake(step)
        numbers, right = by_number(step, labelled, share), by_number(step, list(POOLS), count)
    return (
        HEAD.format(example="\n".join(wrap(f"warning: {example}", 88)))
        + rows
        + SETS_HEAD
        + "".join(f"| {name} | {what} |\n" for name, (what, _) in SETS.items())
        + NUMBERS.format(missed=missed, all=fields, draws=DRAWS_OF_MISTAKES)
        + numbers
        + ALARMS.format(draws=DRAWS_OF_RIGHT, alarms=sum(alarms), total=len(alarms))
        + right
    )


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())
