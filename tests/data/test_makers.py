"""The scripts that made the embedded data reproduce them; needs RDKit and tblite, which nothing else does."""

import sys
from types import ModuleType

import numpy as np
import pytest

from eqlayers.data.embedded import TRAJECTORIES, default_mini_root

pytest.importorskip("rdkit")
pytest.importorskip("tblite")


@pytest.fixture
def mini(monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(default_mini_root())
    import make_mini_qm9

    yield make_mini_qm9
    for name in ("make_mini_qm9", "make_forces", "enumerate_smiles", "store", "xtb"):
        sys.modules.pop(name, None)


def test_rows_are_reproduced(mini, capsys):
    assert mini.verify(mini.HERE / mini.NAME, rows=3, seed=5)
    assert "too large" not in capsys.readouterr().out


def test_further_molecules_are_reproduced(mini, capsys):
    assert mini.verify(mini.HERE / mini.FURTHER, rows=3, seed=5)
    assert "too large" not in capsys.readouterr().out


def test_a_changed_row_is_noticed(mini, tmp_path):
    arrays, _ = mini.load(mini.HERE / mini.NAME)
    arrays["zpve"] = arrays["zpve"] * np.float32(1.001)
    np.savez(tmp_path / "changed.npz", **arrays)
    assert not mini.verify(tmp_path / "changed.npz", rows=2, seed=5)


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_frames_are_reproduced(mini, name):
    import make_forces

    assert make_forces.verify(mini.HERE / f"{name}.npz", rows=3, seed=5)


def test_displaced_frames_are_made_again(mini, tmp_path):
    import make_forces

    make_forces.make("ethanol_nm", tmp_path, frames=3)
    made, stored = np.load(tmp_path / "ethanol_nm.npz"), np.load(mini.HERE / "ethanol_nm.npz")
    assert np.array_equal(made["z"], stored["z"])
    assert np.array_equal(made["R"], stored["R"][:3])
    for key, (tolerance, _) in make_forces.TOLERANCES.items():  # another build of tblite rounds otherwise
        np.testing.assert_allclose(made[key], stored[key][:3], rtol=0, atol=tolerance)


def test_an_interrupted_run_continues(mini, tmp_path):
    mini.make(tmp_path, jobs=1, max_heavy=2)
    records = tmp_path / "records.jsonl"
    whole = records.read_bytes()
    records.write_bytes(whole[: len(whole) // 2])
    assert len(mini.read_records(records)) < whole.count(b"\n")
    before, _ = mini.load(tmp_path / mini.NAME)
    mini.make(tmp_path, jobs=1, max_heavy=2)
    after, _ = mini.load(tmp_path / mini.NAME)
    assert sorted(records.read_bytes().splitlines()) == sorted(whole.splitlines())
    assert all(np.array_equal(before[key], after[key]) for key in before)
    stored, _ = mini.load(mini.HERE / mini.NAME)
    np.testing.assert_allclose(after["U0"], stored["U0"][:12], rtol=0, atol=mini.TOLERANCES["U0"][0])
