"""`eqlayers bench networks nequip` on a small network: every row agrees with nequip, and is timed."""

from __future__ import annotations

from pathlib import Path

from tests.integrations.network_rows import all_rows_agree_and_are_timed, small_mistakes_are_seen

OPTIONS = {"cutoff": 3.5, "channels": 4, "layers": 2, "lmax": 1}


def test_all_rows_agree_and_are_timed(tmp_path: Path) -> None:
    all_rows_agree_and_are_timed(tmp_path, "nequip", "nequip", OPTIONS)


def test_small_mistakes_are_seen() -> None:
    small_mistakes_are_seen("nequip", OPTIONS)
