"""Every fault of mutations.yaml still says where it goes: its text occurs once, and its tests exist."""

from pathlib import Path

import yaml

from tests.each import each

ROOT = Path(__file__).resolve().parents[2]
ROWS = yaml.safe_load((ROOT / "tests/mutations/mutations.yaml").read_text())


@each("row", ROWS, ids=lambda row: Path(row["file"]).stem)
def test_faults_can_be_put_in(row: dict) -> None:
    source = (ROOT / row["file"]).read_text()
    counts = {fault["is"]: source.count(fault["old"]) for fault in row["faults"]}
    assert set(counts.values()) == {1}, f"write `old` of the others as {row['file']} has it now: {counts}"
    assert all(fault["new"] != fault["old"] for fault in row["faults"])
    assert len(counts) == len(row["faults"]), "two faults have one name"
    assert (ROOT / row["tests"]).is_file()


def test_a_file_has_one_row_for_each_of_its_test_files() -> None:
    pairs = [(row["file"], row["tests"]) for row in ROWS]
    twice = sorted({pair for pair in pairs if pairs.count(pair) > 1})
    assert not twice, f"put the faults of these into one row: {twice}"
