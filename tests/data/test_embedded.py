"""Embedded sets: what is in them, where they are, and what happens when they are missing, changed or cut off."""

import json
import shutil

import numpy as np
import pytest
from ase.data import covalent_radii

from eqlayers.data import embedded
from eqlayers.data.embedded import (
    MINI_FILE,
    TRAJECTORIES,
    compare_with_manifest,
    default_mini_root,
    embedded_folder,
    embedded_trajectory,
    load_mini,
)
from eqlayers.data.qm9 import HARTREE_TO_EV, TARGETS
from eqlayers.errors import ConfigError, DataError
from tests.each import each


@pytest.mark.parametrize("name", TRAJECTORIES)
def test_the_sets_are_there_and_listed(name):
    path = embedded_trajectory(name)
    assert path.name in json.loads((path.parent / "manifest.json").read_text())["files"]


def test_an_installed_package_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "__file__", str(tmp_path / "a" / "b" / "c.py"))
    with pytest.raises(DataError, match="an installed package; pass path= the folder examples/data/ethanol_md"):
        embedded_trajectory("ethanol_md")
    with pytest.raises(DataError, match=r"pass root= a folder that holds examples/data/x.npz"):
        embedded_folder("x.npz")
    with pytest.raises(DataError, match="not part of an installed package; pass root= a folder"):
        load_mini(None, TARGETS["U0"])
    with pytest.raises(DataError, match=rf"expected a folder with {MINI_FILE}; .* does not exist; restore it"):
        load_mini(tmp_path / "nowhere", TARGETS["U0"])


def test_the_manifest_decides(tmp_path):
    file, manifest = tmp_path / "set.npz", tmp_path / "manifest.json"
    file.write_bytes(b"abc")
    compare_with_manifest(file, "fix it")  # without one
    manifest.write_text('{"files": {}}')
    compare_with_manifest(file, "fix it")  # not listed
    manifest.write_text('{"files": {"set.npz": {"sha256": "00"}}}')
    with pytest.raises(DataError, match=r"expected SHA-256 00 .*; got ba7816bf.*; the file is .* changed: fix it"):
        compare_with_manifest(file, "fix it")
    manifest.write_text("[]")
    with pytest.raises(DataError, match=r"expected JSON with files -> name -> sha256; got TypeError: .*; fix it"):
        compare_with_manifest(file, "fix it")


# -- the small set of molecules --

ENERGY = TARGETS["U0"]


@pytest.fixture
def copy(tmp_path):
    """A copy of the set that may be damaged, without a manifest."""
    shutil.copy(default_mini_root() / MINI_FILE, tmp_path)
    return tmp_path


def rewrite(folder, change):
    with np.load(folder / MINI_FILE) as file:
        arrays = {key: file[key] for key in file.files}
    change(arrays)
    np.savez(folder / MINI_FILE, **arrays)


def test_content():
    molecules = load_mini(None, ENERGY)
    assert len(molecules.n_atoms) == 2785
    assert np.unique(molecules.z).tolist() == [1, 6, 7, 8, 9]
    assert np.bincount(molecules.heavy).tolist() == [0, 3, 9, 13, 64, 248, 1498, 950]
    assert molecules.z[:5].tolist() == [6, 1, 1, 1, 1]  # methane is the first
    carbon_hydrogen = np.linalg.norm(molecules.pos[1:5] - molecules.pos[0], axis=1)
    assert carbon_hydrogen == pytest.approx(1.09, abs=0.01)
    assert molecules.y.dtype == np.float64
    assert molecules.y[0] == pytest.approx(-4.13038450 * HARTREE_TO_EV, abs=1e-6)


@each("name", [name for name, target in TARGETS.items() if target.mini_key])
def test_every_target_loads_in_its_unit(name):
    target = TARGETS[name]
    y = load_mini(None, target).y
    with np.load(default_mini_root() / MINI_FILE) as file:
        assert np.array_equal(y, file[target.mini_key].astype(np.float64) * target.raw_factor)
        if name == "mu":
            assert y == pytest.approx(np.linalg.norm(file["dipole"], axis=1), abs=1e-5)
        if name == "gap":
            assert y == pytest.approx((file["lumo"] - file["homo"]) * HARTREE_TO_EV, abs=1e-4)
        if name == "U0":
            assert y == pytest.approx((file["energy"] + file["zpve"]) * HARTREE_TO_EV, abs=1e-5)


def test_manifest_lists_the_shipped_files():
    manifest = json.loads((default_mini_root() / "manifest.json").read_text())["files"]
    for name, entry in manifest.items():
        path = default_mini_root() / name
        assert path.stat().st_size == entry["bytes"]
        with np.load(path) as file:
            assert len(file["E" if "E" in file else "n_atoms"]) == entry["rows"]
    assert set(manifest) == {path.name for path in default_mini_root().glob("*.npz")}


def bonds(z: np.ndarray, pos: np.ndarray) -> np.ndarray:
    """``[A, A]`` 1 for each bond, by distance, and atomic numbers on the diagonal."""
    radii, near = covalent_radii[z], np.linalg.norm(pos[:, None] - pos[None], axis=-1)
    matrix = (near < 1.25 * (radii[:, None] + radii)).astype(float)
    np.fill_diagonal(matrix, z * np.pi)
    return matrix


def test_no_further_molecule_is_validated_or_tested():
    """Neither by its SMILES nor by its graph, whose eigenvalues depend on no order of the atoms."""
    seen, spectra = [], []
    for name in (MINI_FILE, "further_qm9_xtb.npz"):
        with np.load(default_mini_root() / name) as file:
            ends = np.cumsum(file["n_atoms"].astype(int))
            z, pos = (np.split(file[key], ends[:-1]) for key in ("z", "pos"))
            rows = np.flatnonzero(file["split"]) if name == MINI_FILE else np.arange(len(ends))
            seen.append({file["smiles"][row] for row in rows})
            pos = pos if name == MINI_FILE else [each * 1e-3 for each in pos]
            eigenvalues = [np.linalg.eigvalsh(bonds(z[row].astype(int), pos[row])) for row in rows]
            spectra.append({tuple(values.round(6)) for values in eigenvalues})
    assert len(seen[0]) == 557
    assert len(spectra[1]) > 0.98 * len(seen[1])  # graphs are told apart
    assert not seen[0] & seen[1]
    assert not spectra[0] & spectra[1]


def test_ethanol_is_what_the_readme_says():
    with np.load(default_mini_root() / "ethanol_md.npz") as file:
        assert file["z"].tolist() == [6, 6, 8, 1, 1, 1, 1, 1, 1]
        assert file["R"].shape == file["F"].shape == (2000, 9, 3)
        assert np.abs(file["F"].sum(axis=1)).max() < 1e-5
        assert file["E"].std() == pytest.approx(0.129, abs=0.001)
        assert np.sqrt((file["F"] ** 2).mean()) == pytest.approx(1.00, abs=0.01)


@pytest.mark.parametrize("name", ["r2", "U0_atom"])
def test_targets_that_it_does_not_have(name):
    with pytest.raises(ConfigError, match=rf'one that dataset="mini" has \(mu, alpha, .*; got \'{name}\'; choose'):
        load_mini(None, TARGETS[name])


@pytest.mark.parametrize("keep", [0, 100, 400_000, -1])
def test_truncated_file(copy, keep):
    path = copy / MINI_FILE
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        DataError, match=r"expected an npz archive with n_atoms, z, pos and U0; it cannot be read .*git checkout"
    ):
        load_mini(copy, ENERGY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda arrays: arrays.pop("U0"), "npz archive with n_atoms, z, pos and U0; it cannot be read"),
        (lambda arrays: arrays.update(U0=arrays["U0"][:-1]), r"y of .* must be \[2785\].* got \[2784\]"),
        (lambda arrays: arrays.update(pos=arrays["pos"][:-1]), r"pos of .* must be \[38858, 3\].*got \[38857, 3\]"),
        (lambda arrays: arrays.update(z=arrays["z"].astype(float)), "right kind in 'z'; got dtype float64"),
        (lambda arrays: arrays.update(U0=arrays["smiles"]), "right kind in 'U0'; got dtype"),
        (
            lambda arrays: arrays["U0"].__setitem__([3, 2000], np.nan),
            "expected finite labels; 2 of 2785 .* rows 3, 2000;",
        ),
    ],
)
def test_damaged_arrays(copy, change, message):
    rewrite(copy, change)
    with pytest.raises(DataError, match=message):
        load_mini(copy, ENERGY)


def test_nan_in_another_target_does_not_matter(copy):
    rewrite(copy, lambda arrays: arrays["U0"].__setitem__(3, np.nan))
    load_mini(copy, TARGETS["mu"])


def test_the_manifest_is_read_beside_the_set(copy):
    shutil.copy(default_mini_root() / "manifest.json", copy)
    load_mini(copy, ENERGY)
    rewrite(copy, lambda arrays: None)  # the same numbers, another file
    with pytest.raises(
        DataError, match=r"expected SHA-256 706f.* \(from manifest.json\); got .*; the file is truncated"
    ):
        load_mini(copy, ENERGY)
