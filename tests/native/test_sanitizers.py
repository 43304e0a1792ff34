"""Native programs under AddressSanitizer, UBSan and ThreadSanitizer, with damaged files and inputs; and for aarch64.

`sanitized.c` calls them in a process without Python. What it prints are the potential's numbers.
"""

from __future__ import annotations

import dataclasses
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from eqlayers import deploy
from eqlayers.errors import DataError
from eqlayers.models import Potential
from eqlayers.native import NativePotential
from eqlayers.native.files import CROSS
from eqlayers.native.program import CProgram, graph_of
from eqlayers_kernels.c.build import compiler as toolchain
from tests.kernels.sanitized import COMMON, SANITIZERS

from .conftest import NETWORKS, STRUCTURES, edges_of, made
from .test_files import check_example
from .test_stages import crystal, empty

DRIVER = Path(__file__).with_name("sanitized.c")
QEMU, LIBRARIES = "qemu-aarch64", "/usr/aarch64-linux-gnu"
#: Uninitialised memory is not a number, and no index.
OPTIONS = {
    "ASAN_OPTIONS": "max_malloc_fill_size=4000000000:malloc_fill_byte=255:detect_leaks=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}
#: Under these, networks of `.ci/run`; all others are slow, and `nox -s native` runs them.
SHORT = {"address": ("MACE, tables", "NequIP"), "thread": ("MACE, tables",)}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
Structure = tuple[Tensor, Tensor, Tensor]


def is_short(sanitizer: str, name: str, dtype: str) -> bool:
    """Whether a program is one of `.ci/run`."""
    return name in SHORT[sanitizer] and dtype == ("float64" if name == "NequIP" else "float32")


def marked(sanitizer: str, name: str, dtype: str) -> object:
    """A set of parameters."""
    return pytest.param(
        sanitizer, name, dtype, marks=pytest.mark.sanitizer if is_short(sanitizer, name, dtype) else pytest.mark.slow
    )


PROGRAMS = [marked(*one) for one in ((s, name, dtype) for s in SANITIZERS for name in NETWORKS for dtype in DTYPES)]


def with_ghosts(structure: Structure) -> tuple[Structure, Tensor]:
    """Half of the edges from copies of their senders, several of some; and the atoms that these are copies of."""
    z, vectors, (src, dst) = structure
    copies = torch.randint(0, 4, src.shape).clamp(max=2) * len(z) + src
    ghosts = copies[copies >= len(z)].unique()
    where = torch.cat([torch.arange(len(z)), torch.zeros(2 * len(z)).long()])
    where[ghosts] = len(z) + torch.arange(len(ghosts))
    owners = ghosts % len(z)
    return (torch.cat([z, z[owners]]), vectors, torch.stack([where[copies], dst])), owners


def structures_of(potential: Potential, many: bool = False) -> list[tuple[Structure, Tensor, Structure]]:
    """Structures with ghosts, what these are copies of, and the same structures without."""
    none = torch.zeros(0).long()
    wanted = [empty(potential.dtype), *(edges_of(potential, atoms()) for atoms in STRUCTURES.values())]
    wanted += [edges_of(potential, crystal((2, 2, 2)))]
    if many:
        far = crystal((5, 4, 4))
        far.set_cell(far.cell * 1.45, scale_atoms=True)
        wanted += [edges_of(potential, crystal((3, 3, 4))), edges_of(potential, far)]
    torch.manual_seed(0)
    alone = torch.tensor(potential.species)
    ghosts_only = (alone, *empty(potential.dtype)[1:]), torch.full_like(alone, -1), empty(potential.dtype)
    made_ = [(one, none, one) for one in wanted]
    return [*made_, ghosts_only, *((*with_ghosts(one), one) for one in wanted[1:])]


def write(path: Path, structures: list[tuple[Structure, Tensor, Structure]]) -> None:
    """Write structures into the file that the driver reads."""
    with path.open("wb") as file:
        file.write(np.int64(len(structures)).tobytes())
        for (z, vectors, ends), owners, _ in structures:
            file.write(np.array([len(z) - len(owners), len(z), len(vectors)]).tobytes())
            for values in (z, ends, owners, vectors.double()):
                file.write(values.numpy().tobytes())


def compare(potential: Potential, printed: bytes, structures: list[tuple[Structure, Tensor, Structure]]) -> None:
    """Compare the energies and slopes that the driver printed with the potential's graph."""
    graph, values, at = graph_of(potential), np.frombuffer(printed), 0
    for number, (_, _, whole) in enumerate(structures):
        for wanted in graph(*whole, torch.ones(len(whole[0]), dtype=potential.dtype)):
            wanted = wanted.detach().double().numpy().ravel()
            mine, at = values[at : at + len(wanted)], at + len(wanted)
            most = np.abs(wanted).max(initial=1e-300)
            near = 500 * torch.finfo(potential.dtype).eps * most
            np.testing.assert_allclose(mine, wanted, rtol=0, atol=near, err_msg=f"structure {number}")
    assert at == len(values)


def build(folder: Path, command: tuple[str, ...], flags: tuple[str, ...]) -> Path:
    """The driver."""
    header = files("eqlayers.native").joinpath("eqlayers.h")
    (folder / "eqlayers.h").write_text(header.read_text())
    words = (*command, *flags, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-I", ".", str(DRIVER), "-o", "sanitized")
    subprocess.run((*words, "-ldl", "-lpthread", "-lm"), cwd=folder, check=True)
    return folder / "sanitized"


def call(*words: object, before: tuple[str, ...] = (), **environment: str) -> bytes:
    """Run the driver, which must return 0; its output."""
    done = subprocess.run(
        (*before, *map(str, words)), env=os.environ | OPTIONS | environment, capture_output=True, timeout=550
    )
    assert done.returncode == 0, (done.stdout[:200] + done.stderr).decode(errors="replace")[:5000]
    return done.stdout


def counts(*words: object, **environment: str) -> np.ndarray[Any, Any]:
    """How often the driver had each status."""
    return np.array(call(*words, **environment).split(), int)


def in_small_tiles(program: CProgram, units: Callable[[CProgram], list[str]] = CProgram.units) -> list[str]:
    """The source of a program for which few atoms are many tiles, of several rounds, and too large to keep all."""
    text, *others = units(program)
    for name, value in (("TILE_ATOMS", 16), ("ROUND", 4), ("KEPT_AT_MOST", 50_000)):
        text, changed = re.subn(rf"\b{name} = \d+", f"{name} = {value}", text)
        assert changed == 1, name
    return [text, *others]


def sanitized(sanitizer: str, potential: Potential, folder: Path, patch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """The driver and a program, compiled with a sanitizer."""
    real = toolchain.toolchain()
    checks = f"-fsanitize={SANITIZERS[sanitizer]}", *["-fsanitize=float-cast-overflow"] * (sanitizer == "address")
    flags = (*COMMON, *checks, "-fno-sanitize-recover=all")
    with patch.context() as context:  # kernels that Python runs meanwhile are as always
        context.setattr(CProgram, "units", in_small_tiles)
        context.setattr("eqlayers.native.files._tools", lambda _: dataclasses.replace(real, flags=flags))
        deploy(potential, folder / "program.so")
    return build(folder, real.command, flags), folder / "program.so"


@pytest.mark.parametrize(("sanitizer", "name", "dtype"), PROGRAMS)
def test_programs(sanitizer: str, name: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All threads, stages with ghosts, 20 callers at once; then damaged files and inputs."""
    potential = made(name, DTYPES[dtype])
    driver, program = sanitized(sanitizer, potential, tmp_path, monkeypatch)
    structures = structures_of(potential, many=True)
    write(tmp_path / "structures", structures)
    compare(potential, call(driver, "run", program, tmp_path / "structures"), structures)
    opened = counts(driver, "files", program, tmp_path / "copy.so", 500)
    assert opened[:12].sum() == 502
    assert all(opened[[0, 6, 8]]), f"files are good, damaged, and of another processor, got {opened}"
    write(tmp_path / "small", [one for one in structures if len(one[0][0]) < 50])
    called = counts(driver, "input", program, tmp_path / "small", 3000)
    assert called.sum() == 3000
    assert all(called[[0, 2, 3, 4, 10]]), f"inputs are good, and wrong in several ways, got {called}"
    if name in SHORT["address"] and sanitizer == "address":  # memory that ends in a call: others need little
        most = program.stat().st_size // 2**20 + 1  # the file itself is read
        little = f"{OPTIONS['ASAN_OPTIONS']}:allocator_may_return_null=1:max_allocation_size_mb={most}"
        far = crystal((20, 20, 40))  # rows of atoms are more than all inputs
        far.set_cell(far.cell * 2, scale_atoms=True)
        large = edges_of(potential, far)
        write(tmp_path / "large", [*structures[:8], (large, torch.zeros(0).long(), large)])
        called = counts(driver, "input", program, tmp_path / "large", 90, ASAN_OPTIONS=little)
        assert all(called[[0, 1]]), f"memory is enough for small structures alone, got {called}"


@pytest.fixture
def emulator() -> tuple[str, ...]:
    """Runs programs of aarch64."""
    if shutil.which(CROSS) is None or shutil.which(QEMU) is None or not Path(LIBRARIES).is_dir():
        packages = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
        pytest.fail(f"{CROSS}, {QEMU} and {LIBRARIES} must be there; install them: apt-get install {packages}")
    return QEMU, "-L", LIBRARIES


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NETWORKS)
def test_programs_for_aarch64(name: str, dtype: str, tmp_path: Path, emulator: tuple[str, ...]) -> None:
    """Under emulation; this processor refuses them."""
    potential = made(name, DTYPES[dtype])
    program = deploy(potential, tmp_path / "program.so", target="aarch64").path
    if platform.machine() != "aarch64":
        with pytest.raises(DataError, match=r"must be of a processor .*, got one of aarch64"):
            NativePotential(program)
    driver, path, structures = build(tmp_path, (CROSS,), ("-O2",)), tmp_path / "structures", structures_of(potential)
    write(path, structures)
    compare(potential, call(driver, "run", program, path, before=emulator), structures)
    assert sum(map(int, call(driver, "input", program, path, 200, before=emulator).split())) == 200
    call(driver, "files", program, tmp_path / "copy.so", 50, before=emulator)


@pytest.mark.slow
def test_the_example_for_aarch64(tmp_path: Path, emulator: tuple[str, ...]) -> None:
    check_example(tmp_path, (CROSS,), "aarch64", emulator)
