"""QM9 through torch-geometric's class on a small fixture in QM9's formats: precision, sources, downloads, damage.

torch-geometric takes other raw files with RDKit than without; both ways are tested where RDKit is installed.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
import zipfile

import numpy as np
import pytest
import torch
from torch_geometric.datasets import QM9
from torch_geometric.datasets.qm9 import atomrefs

from eqlayers.data import qm9
from eqlayers.data.qm9 import load_qm9, thermochemical_atomref
from eqlayers.data.targets import HARTREE_TO_EV, TARGETS
from eqlayers.errors import DataError

ENERGY = TARGETS["U0"]
KEPT = [row for row in range(26) if row + 1 not in (4, 17)]


@pytest.fixture
def without_rdkit(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)


@pytest.fixture
def with_rdkit():
    pytest.importorskip("rdkit")


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
def test_text_files_without_rdkit(gdb9_root, records, target, without_rdkit):
    molecules = load_qm9(gdb9_root, target, offline=True)
    assert same_geometry(molecules, records)
    assert np.array_equal(molecules.y, table(records, target))
    assert not (gdb9_root / "processed").exists()


@pytest.mark.usefixtures("with_rdkit")
def test_text_files_with_rdkit(gdb9_root, records):
    for target in TARGETS.values():
        molecules = load_qm9(gdb9_root, target, offline=True)
        assert same_geometry(molecules, records)
        assert np.array_equal(molecules.y, table(records, target))
    assert (gdb9_root / "processed" / "data_v3.pt").exists()


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_processed_by_the_unmodified_class_and_raw_removed(v3_root, records, target, without_rdkit):
    dataset = QM9(str(v3_root))
    assert len(dataset) == 24
    shutil.rmtree(v3_root / "raw")
    molecules = load_qm9(v3_root, target, offline=True)
    assert same_geometry(molecules, records)
    exact = table(records, target)
    if target.raw_unit in ("Hartree", "kcal/mol"):
        assert np.abs(molecules.y - exact).max() < 1e-5  # 0.01 meV
    assert molecules.y == pytest.approx(exact, rel=1e-6, abs=1e-6)
    assert not (v3_root / "raw").exists()


def test_float32_labels_would_be_wrong_by_far_more(v3_root, records, without_rdkit):
    labels = QM9(str(v3_root))._data.y[:, ENERGY.qm9_index].double().numpy()
    assert np.abs(labels - table(records, ENERGY)).max() > 2e-4  # 0.2 meV


def test_table_beside_processed_data_gives_exact_labels(v3_root, gdb9_root, records, without_rdkit):
    assert v3_root == gdb9_root  # both fixtures fill the same folder
    QM9(str(v3_root))
    assert np.array_equal(load_qm9(v3_root, ENERGY, offline=True).y, table(records, ENERGY))
    path = v3_root / "raw" / "gdb9.sdf.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    with pytest.raises(
        DataError, match=r"expected the U0 of the processed molecules; 2\d of 24 differ; .* delete processed/"
    ):
        load_qm9(v3_root, ENERGY, offline=True)


def test_one_molecule(tmp_path, maker, records, without_rdkit):
    maker.write_v3(tmp_path / "raw", records[:1])
    molecules = load_qm9(tmp_path, ENERGY, offline=True)
    assert (molecules.z.tolist(), molecules.idx.tolist()) == ([6, 1, 1, 1, 1], [0])


def test_names_stand_in_for_missing_row_numbers(v3_root, without_rdkit):
    path = v3_root / "raw" / "qm9_v3.pt"
    samples = [{key: value for key, value in sample.items() if key != "idx"} for sample in torch.load(path)]
    torch.save(samples, path)
    assert load_qm9(v3_root, ENERGY, offline=True).idx.tolist() == KEPT


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


def test_geometries_are_cached_and_the_cache_is_not_trusted(gdb9_root, records, tmp_path, monkeypatch, without_rdkit):
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


@pytest.mark.parametrize("branch", ["without_rdkit", "with_rdkit"])
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
def test_damaged_text_files(request, gdb9_root, branch, name, change, message):
    request.getfixturevalue(branch)
    path = gdb9_root / "raw" / name
    path.write_text(change(path.read_text()))
    with pytest.raises(DataError, match=message):
        load_qm9(gdb9_root, ENERGY, offline=True)
    assert not (gdb9_root / "processed" / "data_v3.pt").exists()


def test_damaged_record(gdb9_root, without_rdkit):
    path = gdb9_root / "raw" / "gdb9.sdf"
    path.write_text(path.read_text().replace("    1.0759", "    1.x759"))
    with pytest.raises(DataError, match=r"expected a V2000 record in place 1; got another content \(ValueError\)"):
        load_qm9(gdb9_root, ENERGY, offline=True)


def test_nan_labels_name_their_rows(gdb9_root, records, without_rdkit):
    path = gdb9_root / "raw" / "gdb9.sdf.csv"
    text = path.read_text()
    for row in (0, 8):
        text = text.replace(repr(records[row]["table"][ENERGY.raw_column]), "nan")
    path.write_text(text)
    with pytest.raises(DataError, match=r"target U0: expected finite labels; 2 of 24 structures .* rows 0, 8;"):
        load_qm9(gdb9_root, ENERGY, offline=True)
    load_qm9(gdb9_root, TARGETS["gap"], offline=True)


@pytest.mark.parametrize("keep", [0, 0.5])
def test_processing_that_was_cut_off_is_done_again(v3_root, records, keep, without_rdkit):
    load_qm9(v3_root, ENERGY, offline=True)
    cut(v3_root / "processed" / "data_v3.pt", keep)
    with pytest.warns(UserWarning, match="is processed again from raw/: found a data_v3.pt that cannot be read"):
        assert same_geometry(load_qm9(v3_root, ENERGY, offline=True), records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_qm9(v3_root, ENERGY, offline=True)


def test_processed_data_that_cannot_be_made_again(v3_root, without_rdkit):
    load_qm9(v3_root, ENERGY, offline=True)
    shutil.rmtree(v3_root / "raw")
    cut(v3_root / "processed" / "data_v3.pt")
    with pytest.raises(DataError, match=r"got data_v3.pt that cannot be read .*--data.dataset mini"):
        load_qm9(v3_root, ENERGY, offline=True)


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.filterwarnings("default::UserWarning")  # an error of tests would stop the file itself
@pytest.mark.parametrize("kind", ["hostile", "damaged"])
def test_processed_data_that_are_not_read(kind, v3_root, tmp_path, without_rdkit):
    """torch-geometric would run the code of a pickle, after a warning."""
    path = v3_root / "processed" / "data_v3.pt"
    load_qm9(v3_root, ENERGY, offline=True)
    if kind == "hostile":
        torch.save(Hostile(tmp_path / "executed"), path)
    else:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    shutil.rmtree(v3_root / "raw")
    message = "Weights only load failed" if kind == "hostile" else r"its member '\S+' is damaged"
    with pytest.raises(DataError, match=rf"data_v3\.pt that cannot be read .*{message}"):
        load_qm9(v3_root, ENERGY, offline=True)
    assert not (tmp_path / "executed").exists()


def test_interrupted_while_saving_leaves_nothing(v3_root, records, monkeypatch, without_rdkit):
    def save(data, file):
        file.write(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(qm9.torch, "save", save)
        with pytest.raises(KeyboardInterrupt):
            load_qm9(v3_root, ENERGY, offline=True)
    assert list((v3_root / "processed").iterdir()) == []
    assert same_geometry(load_qm9(v3_root, ENERGY, offline=True), records)


def test_corrupt_raw_v3(v3_root, without_rdkit):
    cut(v3_root / "raw" / "qm9_v3.pt")
    with pytest.raises(DataError, match=r"got raw files that cannot be processed .*delete them"):
        load_qm9(v3_root, ENERGY, offline=True)


def test_labels_of_another_shape(v3_root, without_rdkit):
    path = v3_root / "raw" / "qm9_v3.pt"
    torch.save([sample | {"y": sample["y"][:, :12]} for sample in torch.load(path)], path)
    with pytest.raises(DataError, match=r"labels of shape \[24, 12\] in data_v3.pt for 24 molecules with 19 each"):
        load_qm9(v3_root, ENERGY, offline=True)


# --- downloads -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("branch", ["without_rdkit", "with_rdkit"])
def test_offline_and_nothing_there(request, tmp_path, branch):
    request.getfixturevalue(branch)
    expected = (
        r"expected gdb9.sdf, .* in .*raw, .*; got no download, as offline is set; fetch https.*--data.dataset mini"
    )
    for _ in range(2):
        with pytest.raises(DataError, match=expected):
            load_qm9(tmp_path / "new", ENERGY, offline=True)


@pytest.fixture
def archive(v3_root, tmp_path):
    """A zip file with qm9_v3.pt, as the real one, and an empty folder to load into."""
    path = tmp_path / "qm9_v3.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.write(v3_root / "raw" / "qm9_v3.pt", "qm9_v3.pt")
    return path, tmp_path / "empty"


def test_download(archive, records, monkeypatch, without_rdkit):
    path, root = archive
    monkeypatch.setattr(QM9, "processed_url", path.as_uri())
    assert same_geometry(load_qm9(root, ENERGY), records)
    assert [entry.name for entry in (root / "raw").iterdir()] == ["qm9_v3.pt"]
    path.unlink()
    assert same_geometry(load_qm9(root, ENERGY), records)


@pytest.mark.parametrize("damage", [cut, lambda path: path.write_text("<html>403</html>"), lambda path: path.unlink()])
def test_failing_download_leaves_nothing_and_the_next_one_recovers(
    archive, records, monkeypatch, damage, without_rdkit
):
    path, root = archive
    good = path.read_bytes()
    monkeypatch.setattr(QM9, "processed_url", path.as_uri())
    damage(path)
    with pytest.raises(DataError, match=r"got (BadZipFile|URLError) from file://.*--data.dataset mini"):
        load_qm9(root, ENERGY)
    assert list((root / "raw").iterdir()) == []
    path.write_bytes(good)
    assert same_geometry(load_qm9(root, ENERGY), records)


def test_second_of_two_downloads_fails(gdb9_root, tmp_path, monkeypatch):
    """The archive arrives, the list of records does not; the next try fetches only the list."""
    raw = gdb9_root / "raw"
    archive = tmp_path / "qm9.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("gdb9.sdf", "gdb9.sdf.csv"):
            file.write(raw / name, name)
    listed = tmp_path / "3195404"
    monkeypatch.setattr(qm9, "_has_rdkit", lambda: True)
    monkeypatch.setattr(QM9, "raw_url", archive.as_uri())
    monkeypatch.setattr(QM9, "raw_url2", listed.as_uri())
    dataset = qm9._AtomicQM9.__new__(qm9._AtomicQM9)
    dataset.root, dataset.offline = str(tmp_path / "new"), False
    with pytest.raises(DataError, match=r"got URLError from file://.*3195404"):
        dataset.download()
    assert sorted(path.name for path in (tmp_path / "new" / "raw").iterdir()) == ["gdb9.sdf", "gdb9.sdf.csv"]
    archive.unlink()
    shutil.copy(raw / "uncharacterized.txt", listed)
    dataset.download()
    for path in raw.iterdir():
        assert (tmp_path / "new" / "raw" / path.name).read_bytes() == path.read_bytes()


def test_truncated_text_files_are_noticed_before_torch_geometric_reads_them(gdb9_root, monkeypatch):
    monkeypatch.setattr(qm9, "_has_rdkit", lambda: True)
    monkeypatch.setattr(QM9, "process", lambda self: pytest.fail("processed a truncated file"))
    cut(gdb9_root / "raw" / "gdb9.sdf")
    dataset = qm9._AtomicQM9.__new__(qm9._AtomicQM9)
    dataset.root = str(gdb9_root)
    with pytest.raises(DataError, match=r"gdb9.sdf: expected 26 records"):
        dataset.process()
