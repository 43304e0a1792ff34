"""QM9 on a small fixture in its formats: precision, downloads, damage."""

import shutil
import zipfile

import numpy as np
import pytest
from torch_geometric.datasets.qm9 import atomrefs

from eqlayers.data import qm9
from eqlayers.data.qm9 import HARTREE_TO_EV, TARGETS, load_qm9, thermochemical_atomref
from eqlayers.errors import DataError

ENERGY = TARGETS["U0"]
KEPT = [row for row in range(26) if row + 1 not in (4, 17)]


def table(records, target):
    """The labels as the table has them, in float64, of the records that are kept."""
    return np.array([records[row]["table"][target.raw_column] for row in KEPT]) * target.raw_factor


def same_geometry(molecules, records):
    pos = np.concatenate([records[row]["pos"] for row in KEPT]).astype(np.float32)
    return (
        molecules.idx.tolist() == KEPT
        and np.array_equal(molecules.z, np.concatenate([records[row]["z"] for row in KEPT]))
        and np.array_equal(molecules.pos, pos)
    )


def test_fixture_is_what_its_script_writes(maker, records, gdb9_root, tmp_path):
    maker.write_raw(tmp_path / "again", records)
    for path in (gdb9_root / "raw").iterdir():
        assert path.read_text() == (tmp_path / "again" / path.name).read_text()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_text_files(gdb9_root, records, target):
    molecules = load_qm9(gdb9_root, target, offline=True)
    assert same_geometry(molecules, records)
    assert np.array_equal(molecules.y, table(records, target))


def test_atomic_references():
    for name in ("U0", "U", "H", "G"):
        ours = thermochemical_atomref(TARGETS[name])
        theirs = dict(zip((1, 6, 7, 8, 9), atomrefs[TARGETS[name].qm9_index], strict=True))
        assert ours == pytest.approx(theirs, rel=2e-8)
        atomization = thermochemical_atomref(TARGETS[f"{name}_atom"])
        assert atomization is None
    # Methane, record 1 of QM9: total energy, and atomisation energy in kcal/mol.
    references = thermochemical_atomref(ENERGY)
    bound = -40.47893 * HARTREE_TO_EV - references[6] - 4 * references[1]
    assert bound == pytest.approx(-395.999594594 * TARGETS["U0_atom"].raw_factor, abs=1e-6)


def test_geometries_are_cached_and_the_cache_is_not_trusted(gdb9_root, records, tmp_path, monkeypatch):
    load_qm9(gdb9_root, ENERGY, tmp_path, offline=True)
    with monkeypatch.context() as patch:
        patch.setattr(qm9, "read_sdf", None)
        assert same_geometry(load_qm9(gdb9_root, ENERGY, tmp_path, offline=True), records)
    (tmp_path / "geometries.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match="made again: it cannot be read"):
        assert same_geometry(load_qm9(gdb9_root, ENERGY, tmp_path, offline=True), records)
    sdf = gdb9_root / "raw" / "gdb9.sdf"
    sdf.write_text(sdf.read_text().replace("-0.7068", "-0.7069"))
    with pytest.warns(UserWarning, match="made again: it was made from other data"):
        assert not same_geometry(load_qm9(gdb9_root, ENERGY, tmp_path, offline=True), records)


# --- damage ----------------------------------------------------------------------------------------------------------
def cut(path, keep=0.5):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gdb9.sdf", lambda text: text[: len(text) // 2], r"gdb9.sdf: expected 26 records, .* got \d+ complete ones"),
        (
            "gdb9.sdf.csv",
            lambda text: text[: len(text) // 2],
            r"(mol_id and 19 numbers in every row|records, as many as)",
        ),
        ("gdb9.sdf.csv", lambda text: text.replace(",", ";"), "expected mol_id and 19 numbers in every row"),
        (
            "uncharacterized.txt",
            lambda text: text.replace("     17", "   none"),
            "a record number at the start of every",
        ),
        (
            "uncharacterized.txt",
            lambda text: text.replace("     17", "    170"),
            "record numbers from 1 to 26; got 170",
        ),
    ],
)
def test_damaged_text_files(gdb9_root, name, change, message):
    path = gdb9_root / "raw" / name
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message):
        load_qm9(gdb9_root, ENERGY, offline=True)


def test_damaged_record(gdb9_root):
    path = gdb9_root / "raw" / "gdb9.sdf"
    path.write_text(path.read_text().replace("    1.0759", "    1.x759"))
    with pytest.raises(DataError, match=r"expected a V2000 record in place 1; got another content \(ValueError\)"):
        load_qm9(gdb9_root, ENERGY, offline=True)


def test_nan_labels_name_their_rows(gdb9_root, records):
    path = gdb9_root / "raw" / "gdb9.sdf.csv"
    text = path.read_text()
    for row in (0, 8):
        text = text.replace(repr(records[row]["table"][ENERGY.raw_column]), "nan")
    path.write_text(text)
    with pytest.raises(DataError, match=r"target U0: expected finite labels; 2 of 24 structures .* rows 0, 8;"):
        load_qm9(gdb9_root, ENERGY, offline=True)
    load_qm9(gdb9_root, TARGETS["gap"], offline=True)


# --- downloads -------------------------------------------------------------------------------------------------------
def test_offline_and_nothing_there(tmp_path):
    expected = r"expected gdb9.sdf, .* in .*raw; got no download, as offline is set; fetch https.*--data.dataset mini"
    for _ in range(2):
        with pytest.raises(DataError, match=expected):
            load_qm9(tmp_path / "new", ENERGY, offline=True)


@pytest.fixture
def sources(gdb9_root, tmp_path, monkeypatch):
    """An archive and a list as the published ones, and an empty folder to load into."""
    raw, archive, listed = gdb9_root / "raw", tmp_path / "qm9.zip", tmp_path / "3195404"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("gdb9.sdf", "gdb9.sdf.csv"):
            file.write(raw / name, name)
    shutil.copy(raw / "uncharacterized.txt", listed)
    urls = dict(zip((archive.as_uri(), listed.as_uri()), qm9.SOURCES.values(), strict=True))
    monkeypatch.setattr(qm9, "SOURCES", urls)
    return archive, listed, tmp_path / "empty"


def test_download(sources, records):
    *files, root = sources
    assert same_geometry(load_qm9(root, ENERGY), records)
    assert sorted(path.name for path in (root / "raw").iterdir()) == ["gdb9.sdf", "gdb9.sdf.csv", "uncharacterized.txt"]
    for path in files:
        path.unlink()
    assert same_geometry(load_qm9(root, ENERGY), records)


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_text("<html>403</html>"), lambda path: path.unlink()])
def test_failing_download_leaves_nothing_and_the_next_one_recovers(sources, records, damage):
    archive, _, root = sources
    good = archive.read_bytes()
    damage(archive)
    with pytest.raises(DataError, match=r"got (BadZipFile|URLError) from file://.*--data.dataset mini"):
        load_qm9(root, ENERGY)
    assert list((root / "raw").iterdir()) == []
    archive.write_bytes(good)
    assert same_geometry(load_qm9(root, ENERGY), records)


def test_second_of_two_downloads_fails(sources, records):
    """The archive arrives, the list of records does not; the next try fetches only the list."""
    archive, listed, root = sources
    content = listed.read_bytes()
    listed.unlink()
    with pytest.raises(DataError, match=r"got URLError from file://.*3195404"):
        load_qm9(root, ENERGY)
    assert sorted(path.name for path in (root / "raw").iterdir()) == ["gdb9.sdf", "gdb9.sdf.csv"]
    archive.unlink()
    listed.write_bytes(content)
    assert same_geometry(load_qm9(root, ENERGY), records)
