"""Read structures from files through ASE: patterns of files, slices of files, and errors with frame and line."""

from __future__ import annotations

import re
import tempfile
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from glob import glob, has_magic
from io import StringIO, TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from ..core.checks import check_path
from ..core.errors import DataError, EqlayersError, EqlayersWarning, MissingPackageError, needs_packages
from .database import database_structures

with needs_packages("eqlayers.atoms.structure_files", "train"):
    from ase import Atoms
    from ase.io import iread
    from ase.io.extxyz import key_val_str_to_dict, read_xyz
    from ase.io.formats import filetype, open_with_compression
    from ase.stress import voigt_6_to_full_3x3_stress
    from ase.utils import string2index

#: An index or a slice.
Which = int | slice
T = TypeVar("T")
_ENDINGS = re.compile(r"^[^.].*\.(xyz|extxyz|traj)(\.gz|\.bz2|\.xz|\.zst)?$")  # files of structures in a folder
_PART = re.compile(r"(.+)@(-?\d+|-?\d*:-?\d*(?::(?!-?0+$)-?\d*)?)")
#: Masses of deuterium and tritium in u; both are read as hydrogen.
_ISOTOPES = {"D": 2.014101778, "T": 3.016049281}
_ISOTOPE = re.compile(r"(?m)^(\s*)([DT])(?=\s)")
_ASYMMETRY, _NOISE = 0.1, 1e-6  # tolerances relative to the largest entry, the second if one triangle is 0
_MATRIX = re.compile(r"(?<!\S)(stress|virial)=")
_COLUMNS = re.compile(r"(?<!\S)Properties=\"?([^\s\"]+)")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|\{[^}]*\}|\[[^\]]*\]")
#: Pattern in an error message and its line -> advice.
_ADVICE = (
    (re.compile(r"\*\*"), "Such a number was too long for its column: write the frame again, with more digits"),
    (re.compile(r"[\d.][dD][+-]?\d"), r"Write exponents with E: sed -E 's/([0-9.])[dD]([-+]?[0-9])/\1E\2/g'"),
    (re.compile(r"'[A-Z][a-z]?\W?\d+' is no element"), "Write the symbol of the element without a number"),
    (re.compile("no text in UTF-8"), "Convert the file: iconv -f latin1 -t utf-8, or from utf-16"),
    (re.compile("atoms and has|begin with"), "Correct the number, or complete the frame"),
    (re.compile("assign tuple of length"), "Complete the columns that the header names"),
    (re.compile("columns, and the header"), "Name all columns in Properties"),
)


class AtomsFrame(NamedTuple):
    """A structure of a file, the number of its frame from 0, and its name in messages (frame and line)."""

    atoms: Atoms
    frame: int
    name: str


def is_asymmetric(matrix: Any) -> bool:
    """Whether a matrix is not symmetric, by more than rounding; such as if only one triangle was stored."""
    single = any(not half.any() for half in (np.triu(matrix, 1), np.tril(matrix, -1)))
    return bool(np.abs(matrix - matrix.T).max() > (_NOISE if single else _ASYMMETRY) * np.abs(matrix).max())


def remedy(text: str) -> str | None:
    """Advice for an error message and its line, or None."""
    return next((advice for shown, advice in _ADVICE if shown.search(text)), None)


def files_of(path: str | Path) -> tuple[list[Path], Which]:
    """Files named by a path, folder or pattern (``runs/*.xyz``), and the slice of structures in ``a.xyz@0:100``."""
    target, which = Path(check_path("path", path, "a file of structures")), cast(Any, slice(None))
    if not target.exists() and (part := _PART.fullmatch(str(target))):
        target, which = Path(part[1]), string2index(part[2])
    if target.is_file() or not (target.is_dir() or has_magic(str(target))):
        return [target] if target.is_file() else [], which
    names = target.iterdir() if target.is_dir() else map(Path, glob(str(target), recursive=True))
    files = sorted(file for file in names if file.is_file())
    return [file for file in files if not target.is_dir() or _ENDINGS.search(file.name)], which


def structures_of(
    file: Path, which: Which = slice(None), twice: dict[str, list[str]] | None = None
) -> Iterator[AtomsFrame | str]:
    """Iterate over structures of a file; for a frame that cannot be read, a sentence with line, reason and advice.

    ``which`` selects structures; ``twice`` collects keys that occur twice in a header, with the names of their frames.
    """
    try:
        with _unpacked(file) as plain:
            if file.suffix != ".db" and filetype(str(plain)) == "extxyz":
                with TextIOWrapper(open_with_compression(str(plain), "rb"), "utf-8-sig", "surrogateescape") as lines:
                    for chunk in selected(_chunks(lines, file), which):
                        yield _structure(*chunk, {} if twice is None else twice)
                return
            index, which = (which, slice(None)) if isinstance(which, int) else (None, which)
            others = iread(str(plain), slice(None) if index is None else index, do_not_split_by_at_sign=True)
            every = database_structures(file, index) if file.suffix == ".db" else others
            for frame, atoms in selected(enumerate(every, index or 0), which):
                yield AtomsFrame(atoms, frame, f"row {frame}")
    except EqlayersError:
        raise
    except Exception as error:  # readers of other formats raise many classes
        raise DataError(
            f"{file} must be whole and of a format that ASE reads, got {type(error).__name__}: "
            f"{' '.join(str(error).split())}. Make or fetch it again, or convert it to extended XYZ."
        ) from error


def selected(items: Iterable[T], which: Which) -> Iterable[T]:
    """Select items of an iterator by index or slice; for the last item, only one is in memory at a time."""
    if which == -1:
        return deque(items, 1)
    if isinstance(which, int):
        which = slice(which, which + 1 or None)
    forward = min(which.start or 0, which.stop or 0, which.step or 1) >= 0
    return islice(items, which.start, which.stop, which.step) if forward else list(items)[which]


@contextmanager
def _unpacked(file: Path) -> Iterator[Path]:
    """Context manager: the file, or for ``.zst``, which ASE does not read, a decompressed temporary copy."""
    if file.suffix != ".zst":
        yield file
        return
    try:
        import zstandard  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingPackageError(
            f"{file} must be unpacked by zstandard, which is not installed. Type: pip install zstandard."
        ) from error
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:
        plain = Path(folder) / file.stem
        unpack = zstandard.ZstdDecompressor().decompressobj()  # zstandard.open does not detect truncated files
        with file.open("rb") as packed, plain.open("wb") as unpacked:
            while part := unpack.unused_data or packed.read(2**20):
                unpack = zstandard.ZstdDecompressor().decompressobj() if unpack.eof else unpack
                unpacked.write(unpack.decompress(part))
        if not unpack.eof:
            raise EOFError("an end before its content ends")
        yield plain


# ---- extended XYZ -------------------------------------------------------------------------------------------------


def _chunks(lines: Iterable[str], file: Path) -> Iterator[tuple[int, int, list[str]]]:
    """Split lines into frames (number, first line, lines); a frame ends before an empty line or a number alone."""
    frame, first, line = 0, 0, "\n"
    chunk: list[str] = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if len(chunk) != 1 and (not text or text.isdigit()):
            if chunk:
                yield frame, first, chunk
                frame += 1
            chunk = []
        if text or chunk:
            first = first if chunk else number
            chunk.append(line)
    if chunk:
        yield frame, first, chunk
    if not line.endswith("\n"):
        text = "does not end with a line break: the last number may be cut off. Compare its size with the original's"
        warnings.warn(f"{file} {text}", EqlayersWarning, stacklevel=2)


def _structure(frame: int, first: int, lines: list[str], twice: dict[str, list[str]]) -> AtomsFrame | str:
    """Parse a frame; a sentence with line, reason and advice if it cannot be read."""
    number = len(lines) - 2 - sum(line.lstrip().startswith("VEC") for line in lines[-3:])
    bad, count, name = 0, lines[0].strip(), f"frame {frame}, line "
    try:
        (text := "".join(lines)).encode()
        if not count.isdigit():
            words = f"a frame must begin with the number of its atoms, got {count!r:.60}"
        elif int(count) != number:
            words = f"the frame says {count} atoms and has {max(number, 0)} lines of atoms"
            if int(count) < number:
                words += f", the first too many in line {first + int(count) + 2}: {lines[int(count) + 2].strip()!r:.60}"
        else:
            keys = re.findall(r"(?:^|\s)([^\s=]+)=", _QUOTED.sub("", lines[1]))
            for key in {key for key in keys if keys.count(key) > 1}:
                twice.setdefault(key, []).append(f"{name}{first}")
            return AtomsFrame(_parsed(lines), frame, f"{name}{first}")
    except UnicodeEncodeError as error:
        bad, words = text.count("\n", 0, error.start), "the line is no text in UTF-8"
    except Exception as error:  # ASE raises many classes
        bad, problem = _first_bad_line(lines, error)
        words = f"{problem} is no element" if isinstance(problem, KeyError) else " ".join(str(problem).split())
    advice = remedy(f"{words} {lines[bad]}") or "Repair the frame"
    return f"{name}{first + bad}: {words.rstrip('.')}. {advice}"


def _parsed(lines: list[str]) -> Atoms:
    """Parse the lines of a frame; D and T become hydrogen with their isotope's mass."""
    head, body = "".join(lines[:2]), "".join(lines[2:])
    if (named := _COLUMNS.search(lines[1])) and "VEC" not in lines[-1]:  # lines of VEC are not counted by the header
        columns = sum(map(int, named[1].split(":")[2::3]))
        if len(body.split()) > columns * (len(lines) - 2):
            raise ValueError(f"the line has {len(lines[-1].split())} columns, and the header names {columns}")
    if _ISOTOPE.search(body) is None:
        return next(read_xyz(StringIO(head + body), 0, _header))
    atoms = next(read_xyz(StringIO(head + _ISOTOPE.sub(r"\1H", body)), 0, _header))
    if not atoms.has("masses"):
        isotopes = [isotope[2] if (isotope := _ISOTOPE.match(line)) else "" for line in lines[2:]]
        atoms.set_masses([_ISOTOPES.get(*pair) for pair in zip(isotopes, atoms.get_masses(), strict=False)])
    return atoms


def _header(text: str) -> dict[str, Any]:
    """Parse key-value pairs of a header by ASE; stress and virial may be a matrix or six numbers in Voigt order."""
    values: dict[str, Any] = key_val_str_to_dict(_MATRIX.sub(r"any_\1=", text))
    for name in ("stress", "virial"):
        if f"any_{name}" in values:
            numbers = np.asarray(values.pop(f"any_{name}"))
            full = voigt_6_to_full_3x3_stress(numbers) if numbers.size == 6 else numbers
            symmetric = full.size == 9 and not is_asymmetric(full := full.reshape(3, 3))
            values[name] = 0.5 * (full + full.T) if symmetric else numbers
    return values


def _first_bad_line(lines: list[str], error: Exception) -> tuple[int, Exception]:
    """Index of the first line of a frame that cannot be parsed by itself, and its error."""
    for index in range(1, len(lines)):
        try:
            _parsed([f"{min(index - 1, 1)}\n", lines[1], *lines[index : index + 1][: index - 1]])
        except Exception as problem:
            return index, problem
    return 0, error
