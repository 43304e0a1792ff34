"""Results as files: JSON with everything, CSV with one row for each measurement."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import IO, Any

from ..errors import ConfigError
from ..files import atomic_write, read_json

FORMAT = 1  # rises when a field changes its meaning
KINDS = ("run", "step", "cold", "overhead", "accelerate", "kernels", "layers", "tables", "networks", "first-gpu")


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file that gets its name when the block ends without an error: readers see the old or the whole new one.

    Raises:
        ConfigError: The folder cannot be written.
    """
    try:
        with atomic_write(path) as file:
            yield file
    except OSError as error:
        raise ConfigError(
            f"a result must go to a file that can be written, got {path}: {error.strerror or error}. Name another."
        ) from error


def save(result: dict[str, Any], path: str | Path) -> None:
    """Write a result as JSON.

    Raises:
        ConfigError: The file cannot be written.
    """
    with whole_file(Path(path)) as file:
        file.write((json.dumps({"format": FORMAT, **result}, indent=1) + "\n").encode())


def load(path: str | Path) -> dict[str, Any]:
    """Read a result that :func:`save` wrote.

    Raises:
        ConfigError: There is no such file, or it is something else.
    """
    fix = "Give a file that `eqlayers bench run SUITE --json FILE` wrote."
    result = read_json(Path(path), "a result", fix)
    if not isinstance(result, dict) or result.get("kind") not in KINDS or result.get("format") != FORMAT:
        raise ConfigError(f"a result must be one of format {FORMAT}, got another content in {str(path)!r}. {fix}")
    return result


def flat_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """One row for each implementation, layout and direction of every case, or each row of the other commands.

    Example:
        >>> flat_rows({"kind": "step", "commit": "c", "date": "d", "rows": [{"seconds": {"median": 1, "q20": 0}}]})
        [{'commit': 'c', 'date': 'd', 'seconds_median': 1, 'seconds_q20': 0}]
    """
    head = {key: result.get(key) for key in ("commit", "date")}
    if "cases" not in result:
        return [head | _flat(row) for row in result["rows"]]
    about = ("name", "group", "problem", "operation", "graph", "dtype", "nodes", "edges", "runs")
    return [
        head | {key: case[key] for key in about} | _flat(row) for case in result["cases"] for row in case["results"]
    ]


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    out = {}
    for key, value in row.items():
        out.update({f"{key}_{part}": v for part, v in value.items()} if isinstance(value, dict) else {key: value})
    return out


def save_csv(result: dict[str, Any], path: str | Path) -> None:
    """Write :func:`flat_rows` as CSV.

    Raises:
        ConfigError: The file cannot be written.
    """
    rows = flat_rows(result)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    with whole_file(Path(path)) as file:
        file.write(text.getvalue().encode())
