"""Files of native programs: the potential's numbers in Python, in ASE and in C, and errors for damaged files."""

from __future__ import annotations

import copy
import os
import pickle
import platform
import shutil
import struct
import subprocess
import threading
import warnings
import zlib
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

import eqlayers
from eqlayers import Calculator, deploy, save_potential
from eqlayers.cli.main import main
from eqlayers.errors import BackendError, ConfigError, DataError, DTypeError, IndexRangeError, ShapeError
from eqlayers.models import MACE, Committee, Potential
from eqlayers.native import NativePotential
from eqlayers.native.files import FOOTER
from eqlayers_kernels.c.build import compiler as toolchain

from .conftest import NETWORKS, SPECIES, STRUCTURES, TINY, batch_of, edges_of, made

pytestmark = pytest.mark.kernels
OUTPUTS = ("energy", "energies", "forces", "virials", "stress")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the program of one potential is."""
    folder = tmp_path_factory.mktemp("programs")
    deploy(made("NequIP"), folder / "nequip.so")
    return folder


@pytest.mark.parametrize("name", NETWORKS)
def test_programs_have_the_numbers_of_potentials(name: str, tmp_path: Path) -> None:
    """Of several structures at once, molecules and cells."""
    for dtype, roundings in ((torch.float64, 500), (torch.float32, 500)):
        potential = made(name, dtype)
        report = deploy(potential.train(), tmp_path / f"{dtype}.so")
        assert potential.training, "the potential is not changed"
        assert report.path.stat().st_size == report.size
        native = NativePotential(report.path)
        assert (native.species, native.cutoff, native.dtype) == (tuple(SPECIES), potential.cutoff, dtype)
        batch = batch_of(native, *(atoms() for atoms in STRUCTURES.values()))
        mine, theirs = native(batch, OUTPUTS), potential.eval()(batch, OUTPUTS)
        assert mine.keys() == theirs.keys()
        for key, value in theirs.items():
            assert mine[key].dtype == value.dtype, key
            most = float(value.nan_to_num().abs().max())
            near = roundings * torch.finfo(dtype).eps * most
            torch.testing.assert_close(mine[key], value.detach(), rtol=0, atol=near, equal_nan=True, msg=key)


def test_other_dtypes_and_targets(tmp_path: Path) -> None:
    potential = made("NequIP", torch.float32)
    wanted = potential.double()(batch_of(potential, STRUCTURES["ethanol"]()))
    capability = torch.backends.cpu.get_cpu_capability()
    for target in ("avx2", "avx512", "native"):
        report = deploy(potential.float(), tmp_path / "a.so", dtype=torch.float64, target=target)
        assert str(report).startswith(f"{tmp_path / 'a.so'}: ")
        assert report.target == target
        needed = FOOTER.unpack(report.path.read_bytes()[-FOOTER.size - 4 : -4])[3]
        assert needed == {"avx2": 1, "avx512": 3}.get(target, needed)
        if target == "avx512" and capability != "AVX512":
            with pytest.raises(DataError, match="must run on a processor with AVX512"):
                NativePotential(report.path)
            continue
        native = NativePotential(report.path)
        results = native(batch_of(native, STRUCTURES["ethanol"]()))
        for key, value in wanted.items():
            torch.testing.assert_close(results[key], value.detach(), rtol=1e-12, atol=1e-12)


def test_a_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    """Under the same name, while the older program is in use."""
    batches, results = [], []
    for name in ("NequIP", "TFN"):
        native = NativePotential(deploy(made(name), tmp_path / "same.so").path)
        batches.append((native, batch_of(native, STRUCTURES["ethanol"]())))
        results.append(made(name)(batches[-1][1])["energy"].detach())
    for (native, batch), energy in zip(batches, results, strict=True):
        torch.testing.assert_close(native(batch)["energy"], energy)


def test_threads_and_copies(folder: Path) -> None:
    """Several threads at once, each many times, structures of different sizes in turns; and after a pickle."""
    native = NativePotential(folder / "nequip.so")
    copy = pickle.loads(pickle.dumps(native))
    batches = [batch_of(native, atoms()) for atoms in STRUCTURES.values()]
    wanted = [native(batch)["forces"] for batch in batches]
    wrong: list[Any] = []

    def work(number: int) -> None:
        for turn in range(30):
            which = (number + turn) % len(batches)
            if not torch.equal((native if number % 2 else copy)(batches[which])["forces"], wanted[which]):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def raising(_: Any) -> Any:
    """A potential that no program can have."""
    raise ConfigError("it cannot")


def test_in_ase_and_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    potential = Potential(MACE(SPECIES, lmax=1, correlation=2, **TINY), SPECIES).eval()
    save_potential(potential, "my.pt")
    assert main(["deploy", "my.pt", "-o", "my.so", "--dtype", "float64"]) == 0
    assert "wrote my.so: " in capsys.readouterr().out
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1)
    both = []
    for calculator in (
        Calculator("my.so"),
        Calculator("my.pt", dtype=torch.float64),
        Calculator(NativePotential("my.so")),
        Calculator("my.pt", dtype=torch.float64, native=True),
        pickle.loads(pickle.dumps(Calculator("my.pt", dtype=torch.float64, native=True))),
        copy.deepcopy(Calculator("my.pt", dtype=torch.float64, native=True)),
    ):
        atoms.calc = calculator
        both.append(
            [atoms.get_potential_energy(), atoms.get_forces(), atoms.get_stress(), atoms.get_potential_energies()]
        )
    for one in both[1:]:
        for mine, theirs in zip(both[0], one, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-10, atol=1e-12)
    atoms.write("copper.xyz")
    assert main(["md", "copper.xyz", "-m", "my.so", "--steps", "3", "-o", "md.xyz", "--seed", "1"]) == 0
    capsys.readouterr()
    few = ["--steps", "3", "--seed", "1", "--compile", "true"]
    assert main(["md", "copper.xyz", "-m", "my.pt", *few, "-o", "native.xyz"]) == 0
    assert "a native program" in capsys.readouterr().out
    with monkeypatch.context() as patched, warnings.catch_warnings():
        warnings.simplefilter("always")
        patched.setattr("eqlayers.simulate.options.WORTH_COMPILING", 1)
        assert main(["predict", "copper.xyz", "-m", "my.pt", "-o", "native_predicted.xyz"]) == 0
        patched.setattr("eqlayers.simulate.options.as_native", raising)
        assert main(["md", "copper.xyz", "-m", "my.pt", *few, "-o", "compiled.xyz"]) == 0
        assert main(["predict", "copper.xyz", "-m", "my.pt", "-o", "by_python.xyz"]) == 0
    said = capsys.readouterr()
    assert ", compiled" in said.out
    assert said.err.count("the potential runs by Python: it cannot") == 2
    with pytest.raises(ConfigError, match="potential must be a Potential"):
        Calculator([potential, made("MACE", torch.float32)], native=True)
    assert main(["predict", "copper.xyz", "-m", "my.so", "-o", "predicted.xyz"]) == 0
    assert main(["info", "my.so"]) == 0
    assert "NativePotential('my.so', species H, C, O, Cu" in capsys.readouterr().out
    with pytest.raises(ConfigError, match=r"dtype must be torch.float64 for .*my.so, got torch.float32"):
        Calculator("my.so", dtype=torch.float32)
    assert main(["deploy", "my.pt", "-o", "my.so", "--target", "avx3"]) == 2
    assert "avx2" in capsys.readouterr().err


def test_a_c_program_without_python(tmp_path: Path) -> None:
    """Is built from the header and the example, and prints what Python computes."""
    check_example(tmp_path, toolchain.toolchain().command)
    if shutil.which("c++") is not None:  # the header is one of C++ as well
        strict = ["-x", "c++", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DEQLAYERS_IMPLEMENTATION"]
        subprocess.run(["c++", *strict, "eqlayers.h"], cwd=tmp_path, check=True)
    linked = subprocess.run(["ldd", "energy"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    assert "python" not in linked
    assert "torch" not in linked
    for words, status in ((["nothing.so"], "must be readable"), ([], "one file must follow")):
        failed = subprocess.run(["./energy", *words], cwd=tmp_path, capture_output=True, text=True, env={})
        assert failed.returncode == 1
        assert status in failed.stderr


def check_example(folder: Path, command: Sequence[str], target: str = "native", before: Sequence[str] = ()) -> None:
    """Build the example in a folder, and compare what it prints."""
    potential = made("MACE")
    deploy(potential, folder / "water.so", target=target)
    shutil.copy(ROOT / "examples" / "energy.c", folder)
    header = files("eqlayers.native").joinpath("eqlayers.h")
    (folder / "eqlayers.h").write_text(header.read_text())
    strict = ("-O2", "-Wall", "-Wextra", "-Werror")
    subprocess.run([*command, *strict, "energy.c", "-o", "energy", "-ldl", "-lpthread", "-lm"], cwd=folder, check=True)
    words = [*before, "./energy", "water.so"]
    done = subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True, env={})
    lines = [line.split() for line in done.stdout.splitlines()]
    pos = [[0.0, 0.0, 0.119], [0.0, 0.763, -0.477], [0.0, -0.763, -0.477]]
    batch = batch_of(potential, Atoms("OHH", positions=pos))
    results = potential(batch, ("energy", "forces", "virials"))
    assert float(lines[0][1]) == pytest.approx(float(results["energy"]), abs=1e-9)
    forces = [list(map(float, line[1:4])) for line in lines[1:4]]
    np.testing.assert_allclose(forces, results["forces"].detach().numpy(), atol=1e-10)
    virial = sum(float(line[1]) for line in lines[4:7])
    assert virial == pytest.approx(float(results["virials"][0].trace()), abs=1e-9)


def test_damaged_files_are_refused(folder: Path, tmp_path: Path) -> None:
    """Before they are loaded as code, by Python and by C: cut, changed, zeroed in blocks, of another version."""
    content = (folder / "nequip.so").read_bytes()
    path, rng = tmp_path / "damaged.so", np.random.default_rng(0)
    damaged: list[bytes] = [content[:-1], content[: len(content) // 2], b"", content + b"x", content[1:]]
    for _ in range(150):
        at, size = int(rng.integers(len(content))), int(rng.integers(1, 5000))
        block = bytes(len(content[at : at + size]))
        damaged.append(content[:at] + block + content[at + size :])
        flipped = bytearray(content)
        flipped[at] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    native = NativePotential(folder / "nequip.so")
    handle = type(native._handle)()
    for number, bytes_ in enumerate(damaged):
        if bytes_ == content:
            continue
        path.write_bytes(bytes_)
        with pytest.raises(DataError, match=r"must be a (program|readable)"):
            NativePotential(path)
        status = native._library.eqlayers_open(os.fsencode(path), native_pointer(handle))
        assert status == 6, number
    for number, value, words, status in FORGED:
        facts, library = list(FOOTER.unpack(content[-FOOTER.size - 4 : -4])), bytearray(content[: -FOOTER.size - 4])
        if number == MACHINE:
            library[number] = value
        else:
            facts[number] = value
        changed = bytes(library) + FOOTER.pack(*facts)
        path.write_bytes(changed + struct.pack("<I", zlib.crc32(changed)))
        with pytest.raises(DataError, match=words):
            NativePotential(path)
        assert native._library.eqlayers_open(os.fsencode(path), native_pointer(handle)) == status, (number, value)
    with pytest.raises(DataError, match="must be a readable file"):
        NativePotential(tmp_path / "nothing.so")


MACHINE = 18  # its byte in a library
#: A number of a fact and its value, under a checksum of the whole; the error of Python, and the status in C.
FORGED: list[tuple[int, Any, str, int]] = [
    (1, 2, "must be of version 3, got 2", 7),
    (2, 4, "must be a potential", 6),
    (3, 1 << 9, "must have the instructions", 8),
    *((4, count, "must be a potential", 6) for count in (0, 121)),
    *((5, size, "must have a whole library", 6) for size in (-1, 0, 5000, 1 << 40)),
    *((6, start, "must (have a whole library|be a potential)", 6) for start in (-64, 1 << 62)),
    *((7, size, "must be a potential", 6) for size in (-64, 64, 1 << 62)),
    *((9, cutoff, "must be a potential", 6) for cutoff in (float("nan"), -1.0, float("inf"))),
    *((10, species, "must be a potential", 6) for species in (-1, 6)),
    *((13, species, "must be a potential", 6) for species in (120, 1 << 40)),
    (MACHINE, 183 if platform.machine() == "x86_64" else 62, "must be of a processor .*, got one of", 8),
]


def native_pointer(handle: Any) -> Any:
    """The address of a handle."""
    import ctypes

    return ctypes.byref(handle)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda z, v, e: (z[:-1], v, e), IndexRangeError, "each end of an edge must be an atom"),
        (lambda z, v, e: (z, v, e - 1), IndexRangeError, "each end of an edge must be an atom"),
        (lambda z, v, e: (torch.full_like(z, 2), v, e), IndexRangeError, "each species must be one of the potential's"),
        (lambda z, v, e: (z - 900, v, e), IndexRangeError, "each species must be one of the potential's"),
        (lambda z, v, e: (z, v[1:], e), ShapeError, r"z, vectors, edge_index and factors must be \[A\]"),
        (lambda z, v, e: (z, v, e, v[:1, 0]), ShapeError, r"z, vectors, edge_index and factors must be \[A\]"),
        (lambda z, v, e: (z, v, e, z), DTypeError, "factors must be torch.float64 on the CPU"),
        (lambda z, v, e: (z, v.float(), e), DTypeError, "vectors must be torch.float64 on the CPU"),
        (lambda z, v, e: (z, v, e.int()), DTypeError, "edge_index must be torch.int64"),
    ],
)
def test_bad_input(folder: Path, change: Callable[..., Any], error: type[Exception], words: str) -> None:
    native = NativePotential(folder / "nequip.so")
    operands = edges_of(native, molecule("CH4"))
    assert native.evaluate(*operands)[0].shape == (5,)
    with pytest.raises(error, match=words):
        native.evaluate(*change(*operands))


def test_bad_calls_and_options(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    native = NativePotential(folder / "nequip.so")
    batch = batch_of(native, molecule("CH4"))
    with pytest.raises(ConfigError, match="create_graph must be false"):
        native(batch, create_graph=True)
    with pytest.raises(ConfigError, match="outputs must be one of"):
        native(batch, ("dipole",))
    with pytest.raises(IndexRangeError, match="each end of an edge"):
        native(batch._replace(edge_index=batch.edge_index + 3))
    with pytest.raises(ConfigError, match=r"path must end in \.so, got"):
        deploy(made("TFN"), tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="target must be one of"):
        deploy(made("TFN"), tmp_path / "a.so", target="sse")
    with pytest.raises(ConfigError, match="must be float32 or float64"):
        deploy(made("TFN"), tmp_path / "a.so", dtype=torch.bfloat16)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(BackendError, match=r"'aarch64' needs .*-gcc, .* apt-get install gcc-aarch64-linux-gnu"):
        deploy(made("TFN"), tmp_path / "a.so", target="aarch64")
    for other in (NETWORKS["TFN"](), Committee([made("TFN"), made("TFN")])):
        with pytest.raises(ConfigError, match="potential must be a Potential"):
            deploy(other, tmp_path / "a.so")
    dipole = Potential(MACE(SPECIES, lmax=1, properties=["dipole"], **TINY), SPECIES)
    with pytest.raises(ConfigError, match="outputs must be predictions of the network"):
        deploy(dipole, tmp_path / "a.so")
    assert not list(tmp_path.iterdir()), "nothing is half-written"
    assert "H, C, O, Cu" in repr(native)
    assert eqlayers.deploy is deploy


def test_bad_calls_of_c(folder: Path) -> None:
    native = NativePotential(folder / "nequip.so")
    z, vectors, ends = edges_of(native, molecule("CH4"))
    energies, slopes, rows = torch.zeros(5, dtype=torch.float64), torch.zeros_like(vectors), torch.zeros(1).long()
    pointers = [t.data_ptr() for t in (z, vectors, ends, vectors, energies, slopes)]
    library, handle, workspace = native._library, native._handle, native._workspace().handle
    assert library.eqlayers_evaluate(handle, workspace, -1, 0, *pointers) == 10
    assert library.eqlayers_evaluate(handle, workspace, 1 << 31, 0, *pointers) == 10
    stages = library.eqlayers_stages(handle)
    one_by_one = [(0, 5, 0), (1, 5, 0), (1, 5, 4), (0, 5, 0), (1, 4, 4), (1, 5, 4)]  # the same numbers, in their order
    for stage, local, status in [(-1, 5, 4), (stages, 5, 4), (0, 6, 4), (0, -1, 4), (0, 4, 2), (1, 5, 4), *one_by_one]:
        arguments = stage, local, 5, len(vectors), *pointers, rows.data_ptr()
        assert library.eqlayers_stage(handle, workspace, *arguments) == status
        assert bool(rows) == (status == 0)
    assert library.eqlayers_sentence(99) == b"unknown status"
    other = NativePotential(native.path)
    assert library.eqlayers_evaluate(handle, other._workspace().handle, 0, 0, *pointers) == 12
    assert b"made for this potential" in library.eqlayers_sentence(12)
