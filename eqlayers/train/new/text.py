"""A configuration as YAML, with a comment and a unit on each line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from .choose import Choices, Setting
from .look import Look, described

_COLUMN, _WIDTH = 32, 119
#: Comments of sections that have none of their own.
_SECTIONS = {"data.keys": "names of labels in the file", "data.units": "units of these labels in the file"}


def as_yaml(facts: Look, choices: Choices, name: str, typed: str, file: str | None = None) -> str:
    """The text of a configuration."""
    general = {
        "task": Setting("potential", "energies, forces and stress of structures"),
        "name": Setting(name, "the run's folder under `runs`"),
        "runs": Setting("runs", "folder of all runs"),
        "seed_everything": Setting(2026, "seed of weights; the same seed and thread count give the same result"),
        "threads": Setting(1, "CPU threads of torch; 0 for torch's choice, faster where structures are large"),
        "test_after_fit": Setting(True, "test the best weights at the end and write the report"),
    }
    heading = [f"A potential for {described(facts)}.", f"Written by `{typed}`."]
    if file is not None:
        heading.append(f"  eqlayers fit {file}")
    heading.append(
        "Every key is also an option, e.g. --trainer.max_epochs 10. Units: eV and Angstrom; errors are reported in "
        "meV and meV/A. Paths begin at the folder in which the command is typed."
    )
    notes = list(facts.file.notes)
    if facts.guess is not None:
        notes.append(f"units of energy and forces are guessed: {facts.guess.reason}")
    notes += [*facts.noticed, *choices.noticed]
    if notes:
        heading += ["", "Noticed in the data:", *(f"- {one}" for one in notes)]
    return "\n".join([*_comments(heading), "", *_lines({**general, **choices.settings}), ""])


def _comments(paragraphs: Iterable[str]) -> list[str]:
    lines = []
    for text in paragraphs:
        indent = "  " if text.startswith("- ") else ""
        wrapped = textwrap.wrap(
            text, _WIDTH - 2, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        lines += [f"# {line}" for line in wrapped] or ["#"]
    return lines


def _lines(settings: dict[str, Setting]) -> list[str]:
    """Nested keys, each line with its comment behind it, or above where it is long."""
    lines: list[str] = []
    before: list[str] = []
    for key, (value, about) in settings.items():
        *sections, last = key.split(".")
        shared = 0
        while shared < min(len(sections), len(before)) and sections[shared] == before[shared]:
            shared += 1
        if len(sections) + len(before) and not shared and (sections[:1] != before[:1]):
            lines.append("")
        for depth in range(shared, len(sections)):
            comment = _SECTIONS.get(".".join(sections[: depth + 1]), "")
            lines += _line(depth, f"{sections[depth]}:", comment)
        lines += _line(len(sections), f"{last}: {scalar(value)}", about)
        before = sections
    return lines


def _line(depth: int, text: str, about: str) -> list[str]:
    start = f"{'  ' * depth}{text}"
    if not about:
        return [start]
    line = f"{start:<{_COLUMN - 1}} # {about}"
    if len(line) <= _WIDTH:
        return [line]
    room = _WIDTH - 2 * depth - 2
    return [*(f"{'  ' * depth}# {part}" for part in textwrap.wrap(about, room)), start]


def scalar(value: Any) -> str:
    """A value in YAML: a text without quotes where it means itself.

    Example:
        >>> scalar("my.xyz"), scalar("No"), scalar(["H", "No"]), scalar(True), scalar("a: b")
        ('my.xyz', '"No"', '[H, "No"]', 'true', '"a: b"')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(scalar, value))}]"
    if not isinstance(value, str):
        return repr(value)
    import json

    import yaml

    plain = re.fullmatch(r"[\w./+^ -]+", value) is not None
    return value if plain and yaml.safe_load(f"[{value}]") == [value] else json.dumps(value, ensure_ascii=False)
