"""`eqlayers bench networks mace` on a small network: every row agrees with mace-torch, and is timed."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.network_rows import all_rows_agree_and_are_timed, small_mistakes_are_seen

OPTIONS = {"cutoff": 3.5, "hidden": "4x0e + 4x1o", "lmax": 1, "correlation": 2}


def test_all_rows_agree_and_are_timed(tmp_path: Path) -> None:
    all_rows_agree_and_are_timed(tmp_path, "mace", "mace-torch", OPTIONS)


def test_small_mistakes_are_seen() -> None:
    small_mistakes_are_seen("mace", OPTIONS)
