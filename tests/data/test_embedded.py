"""Embedded sets: where they are, and what happens when they are missing or changed."""

from __future__ import annotations

import json

import pytest

from eqlayers.data import embedded
from eqlayers.data.embedded import TRAJECTORIES, compare_with_manifest, embedded_folder, embedded_trajectory
from eqlayers.errors import DataError


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
