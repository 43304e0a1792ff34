"""Writes the table of layers by property: ``python -m tests.catalogue.page docs/reference/catalogue.md``."""

import sys
from itertools import groupby
from pathlib import Path

from .cases import Case
from .properties import PROPERTIES

HEAD = """# Layers by property

Every row is a layer of `eqlayers.nn` in the list of the tests (`tests/catalogue`). A dot is a test that passed. A
number is a property that the layer does not have; the reason is below. A field is empty if the property does not apply:
e3nn has no such layer, or the layer has no features in a layout. Made by
`python -m tests.catalogue.page docs/reference/catalogue.md`.

| property | what is tested, in float64 unless said |
|---|---|
"""


def page(cases: list[Case]) -> str:
    """The text of the page."""
    from .test_layers import has

    lines = [f"| {name} | {' '.join((check.__doc__ or '').split())} |" for name, check in PROPERTIES.items()]
    text, notes = HEAD + "\n".join(lines) + "\n", []
    ordered = sorted(cases, key=lambda case: case.family)
    for family, of in groupby(ordered, key=lambda case: case.family):
        text += f"\n## {family}\n\n| layer | {' | '.join(PROPERTIES)} |\n|---|{':-:|' * len(PROPERTIES)}\n"
        for case in of:
            fields = []
            for name in PROPERTIES:
                if name in case.lacks:
                    reason = f"`{case.name}`, {name}: {case.lacks[name]}"
                    notes += [] if reason in notes else [reason]
                    fields.append(f"({notes.index(reason) + 1})")
                else:
                    fields.append("·" if has(case, name) else "")
            text += f"| `{case.name}` | {' | '.join(fields)} |\n"
    if notes:
        text += "\n## Missing properties, with the reason\n\n"
        text += "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    return text


if __name__ == "__main__":
    from .test_layers import CASES

    Path(sys.argv[1]).write_text(page(CASES))
