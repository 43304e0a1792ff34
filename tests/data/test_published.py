"""Files of published sets: right ones are taken, and each that is not what its name says is refused."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
from ase.formula import Formula

from eqlayers.data import StructureDataModule
from eqlayers.data.embedded import PUBLISHED, check_published, find_published
from eqlayers.data.readers import read_structures
from eqlayers.errors import ConfigError, DataError, EqlayersError
from tests.data.published_files import take_any_number, write_3bpa, write_md17, write_rmd17, write_rows

ATOMS = {"aspirin": 21, "azobenzene": 24, "benzene": 12, "ethanol": 9, "malonaldehyde": 9, "naphthalene": 18}
ATOMS |= {"paracetamol": 20, "salicylic": 16, "toluene": 15, "uracil": 12}
PAGE = b"\n<!DOCTYPE html>\n<html><head><title>403 Forbidden</title></head></html>\n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets with files of any number of structures."""
    take_any_number(monkeypatch)


def read(name: str, path: Path) -> None:
    """Read a file as the data module does."""
    find_published(name, str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of files that are cut off
        structures, _ = read_structures(path)
    check_published(name, str(path), structures)


def test_the_molecules_of_rmd17() -> None:
    files = PUBLISHED["rmd17"].files
    sizes = {
        name.removeprefix("rmd17_").removesuffix(".npz"): len(Formula(file.formula)) for name, file in files.items()
    }
    assert sizes == ATOMS
    assert {name: file.frames for name, file in files.items() if file.frames != 100_000} == {
        "rmd17_azobenzene.npz": 99_988
    }
    assert {len(Formula(file.formula)) for file in PUBLISHED["3bpa"].files.values()} == {27}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("molecule", ATOMS)
def test_every_molecule_is_taken(molecule: str, tmp_path: Path) -> None:
    read("rmd17", write_rmd17(tmp_path / f"rmd17_{molecule}.npz", 4))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", ["train_300K", "train_mixedT", "test_1200K", "test_dih_beta120"])
def test_every_file_of_3bpa_is_taken(name: str, tmp_path: Path) -> None:
    read("3bpa", write_3bpa(tmp_path, name, 3))
    read("3bpa", write_3bpa(tmp_path, name, 3, config_type="300K", pbc="F F F"))


def refused(message: str, name: str, path: Path, error: type[EqlayersError] = DataError) -> None:
    with pytest.raises(error, match=message):
        read(name, path)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    refused(
        r"path must be rmd17_uracil\.npz of rMD17, got '.*', which is no file\. Fetch rmd17\.tar\.bz2 of "
        r"doi:10\.6084/m9\.figshare\.12672038 on a machine with a connection, unpack it, and pass "
        r"--data\.path FOLDER/rmd17_uracil\.npz",
        "rmd17",
        tmp_path / "rmd17_uracil.npz",
    )
    refused(r"Fetch .* doi:10\.1021/acs\.jctc\.1c00647 \(ct1c00647_si_002\.zip\)", "3bpa", tmp_path / "test_300K.xyz")
    refused(
        r"path must be a file of 3BPA \(train_300K\.xyz, .*Correct the path", "3bpa", tmp_path / "a.xyz", ConfigError
    )
    with pytest.raises(ConfigError, match="published must be one of rmd17, 3bpa, got 'md17'"):
        StructureDataModule(published="md17")


@pytest.mark.usefixtures("small")
def test_energies_in_another_unit(tmp_path: Path) -> None:
    message = r"total energies near the energy of the free atoms, -4184 eV, got -182\.\d* eV.* Fetch rmd17\.tar\.bz2"
    refused(message, "rmd17", write_rmd17(tmp_path / "rmd17_ethanol.npz", 4, energies=np.full(4, -4_209.0)))


@pytest.mark.usefixtures("small")
def test_files_of_something_else(tmp_path: Path) -> None:
    path = tmp_path / "rmd17_ethanol.npz"
    refused("units of energy and forces must be given", "rmd17", write_md17(path, 4), ConfigError)
    for formula, numbers in (("C7H8", "{1: 8, 6: 7}"), ("C2H6", "{1: 6, 6: 2}"), ("C2H7O", "{1: 7, 6: 2, 8: 1}")):
        message = re.escape(f"the molecule C2H6O, got atoms by atomic number {numbers} in row 0")
        refused(message, "rmd17", write_rmd17(path, 4, formula=formula))
    refused("the molecule C12H12N2O, got", "3bpa", write_3bpa(tmp_path, "test_300K", 2, formula="C12H13NO"))
    whole = write_rmd17(path, 4).read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-30], b"", b"PK\x03\x04", PAGE):
        path.write_bytes(content)
        refused("got a web page" if content == PAGE else r"whole npz archive|got an empty file", "rmd17", path)
    broken = bytearray(whole)
    broken[whole.index(b"coords.npy") + 200] ^= 1  # one bit of a number: the archive has checksums of its own
    path.write_bytes(broken)
    refused("must be a whole npz archive, got BadZipFile", "rmd17", path)
    (tmp_path / "test_600K.xyz").write_bytes(PAGE)
    refused(r"got a web page \(HTML\)", "3bpa", tmp_path / "test_600K.xyz")


def test_files_that_are_cut_off(tmp_path: Path) -> None:
    refused("must have 100,000 structures, got 4", "rmd17", write_rmd17(tmp_path / "rmd17_ethanol.npz", 4))
    path = write_3bpa(tmp_path, "train_300K", 5)
    refused("must have 500 structures, got 5", "3bpa", path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-7]))  # within the last structure
    refused("frame 4, line 117: the frame says 27 atoms and has 20 lines", "3bpa", path)


@pytest.mark.usefixtures("small")
def test_labels_that_are_missing(tmp_path: Path) -> None:
    path = write_3bpa(tmp_path, "test_300K", 2)
    path.write_text(path.read_text().replace("forces:R:3", "f:R:3"))
    refused("forces of every structure, got 162 that are missing", "3bpa", path)
    path = write_3bpa(tmp_path, "test_300K", 2)
    path.write_text(path.read_text().replace(" energy=", " E0=", 1))
    refused("energy of every structure, got 1 that are missing", "3bpa", path)


@pytest.mark.usefixtures("small")
def test_parts_by_the_files_of_the_set(tmp_path: Path) -> None:
    path = write_rmd17(tmp_path / "rmd17_ethanol.npz", 2500)
    train, test = write_rows(tmp_path / "splits", 1000, 1000, 2500)
    options = {"split": "rows", "train": str(train), "val": 50, "cutoff": 4.0, "published": "rmd17"}
    data = StructureDataModule(str(path), test=str(test), cache_dir=str(tmp_path / "cache"), **options)
    data.setup()
    parts = [[int(sample.idx) for sample in part] for part in (data.train_set, data.val_set, data.test_set)]
    assert [len(part) for part in parts] == [950, 50, 1000]
    assert sorted(parts[0] + parts[1]) == sorted(map(int, train.read_text().split()))
    assert sorted(parts[2]) == sorted(map(int, test.read_text().split()))
    assert len(data.train_set.structures) == 2000, "the other 500 need no neighbours"
    with np.load(path) as archive:
        first = data.test_set[0]
        coords = archive["coords"][int(first.idx)]
        np.testing.assert_allclose(first.pos, coords - coords.mean(axis=0), rtol=1e-6, atol=1e-6)
        # kcal/mol, as CODATA and the definition of the calorie have it
        np.testing.assert_allclose(first.energy, archive["energies"][int(first.idx)] * 0.0433641, rtol=1e-6)
        np.testing.assert_allclose(first.forces, archive["forces"][int(first.idx)] * 0.0433641, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_every_file_is_compared(tmp_path: Path) -> None:
    good, bad = write_3bpa(tmp_path, "train_300K", 8), write_3bpa(tmp_path, "test_600K", 8, formula="C6H6")
    also = write_3bpa(tmp_path, "test_300K", 4)
    data = StructureDataModule(str(good), test_path=[str(also), str(bad)], published="3bpa", cache_dir=str(tmp_path))
    with pytest.raises(DataError, match=r"test_600K\.xyz of 3BPA must have the molecule C12H12N2O"):
        data.setup()
