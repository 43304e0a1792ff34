"""Archives of tensors and of arrays: each member is compared with its checksum before anything of the file is used."""

from __future__ import annotations

import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from ..errors import DataError

_END = 22  # bytes of the last record of an archive
MOST_VALUES = 1_000_000  # of a file of tensors: a few shared lists can stand for billions
_FOLDER = 0x10  # in the attributes of a member, of which torch then reads nothing


def check_whole(file: IO[bytes]) -> None:
    """Raise :class:`zipfile.BadZipFile` unless all members of an archive are as they were written.

    The message is the second half of a sentence, and names the damaged member. ``ZipFile.testzip`` sees no bit in the
    directory of an archive that hides a member, or calls it a folder.
    """
    try:
        file.seek(-_END, os.SEEK_END)
        listed = int.from_bytes(file.read(_END)[10:12], "little")  # in the last record, if no comment is behind it
        archive = zipfile.ZipFile(file)
        if len(archive.infolist()) != listed < 0xFFFF and not archive.comment:
            raise ValueError("a directory of other members")
    except Exception:  # of a directory that is damaged, in many kinds
        raise zipfile.BadZipFile("it is no whole archive, as if it was cut or is of another kind") from None
    for member in archive.infolist():
        try:
            with archive.open(member) as content:
                while content.read(2**20):
                    pass
            if member.external_attr & _FOLDER:
                raise ValueError("a folder")
        except Exception:  # of the checksum, the header, or what they say of size, compression and encryption
            raise zipfile.BadZipFile(f"its member {member.filename!r} is damaged") from None
    file.seek(0)


def read_tensors(path: Path, map_location: Any = "cpu") -> Any:
    """The content of a file of ``torch.save``, which must be tensors and plain values: no code of the file runs.

    DataError if it is cut, damaged, or has other objects or tensors that are not dense; the message is the second half
    of a sentence.
    """
    if path.stat().st_size == 0:
        raise DataError("it is empty")
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about kinds of pickles, which the errors below are about
            check_whole(file)
            content = torch.load(file, map_location=map_location, weights_only=True)
        if any(one.layout != torch.strided or one.is_quantized or one.is_meta for one in tensors_of(content)):
            raise zipfile.BadZipFile("it has a tensor that is sparse, quantized, or without values")
        return content
    except zipfile.BadZipFile as error:
        raise DataError(str(error)) from None
    except Exception as error:  # torch raises many kinds, and advises to run the code of a hostile file
        asked = re.search(r"(?:GLOBAL|global|class|function) ([\w.]+\.[\w.]+)", str(error))
        problem = f"it cannot be read ({type(error).__name__}), as if it was changed or of another kind"
        if asked and isinstance(error, pickle.UnpicklingError):
            problem = f"it asks for {asked.group(1)}, which is no tensor and no plain value; nothing of it was run"
        raise DataError(problem) from None


def tensors_of(content: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested lists and dictionaries; BadZipFile for lists that are endless written out, or nearly so."""
    values, number = [content], 0
    while values:
        number += 1
        if number + len(values) > MOST_VALUES:
            raise zipfile.BadZipFile(f"it has more than {MOST_VALUES:,} values, lists that stand twice written out")
        value = values.pop()
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (Mapping, list, tuple)):
            values.extend(value.values() if isinstance(value, Mapping) else value)


@contextmanager
def open_arrays(file: IO[bytes]) -> Iterator[Any]:
    """The arrays of an npz archive by name; all members are checked first, as NumPy checks only what is read whole."""
    check_whole(file)
    with np.load(file, allow_pickle=False) as arrays:
        yield arrays
