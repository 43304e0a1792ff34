"""Archives: every flipped bit is refused or changes nothing, and the damaged member is named."""

import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from eqlayers.core.files.archives import open_arrays, read_tensors
from eqlayers.errors import DataError

CONTENT = {"a": torch.arange(4.0), "b": {"c": [1, 2.5, "x"], "d": torch.tensor([7])}}
ARRAYS = {"long": np.arange(11), "table": np.ones((2, 3))}
REFUSED = (DataError, zipfile.BadZipFile)


def tensors() -> bytes:
    torch.save(CONTENT, buffer := io.BytesIO())
    return buffer.getvalue()


def arrays(save: Any = np.savez) -> bytes:
    save(buffer := io.BytesIO(), **ARRAYS)
    return buffer.getvalue()


def same(value: Any, content: Any = CONTENT) -> bool:
    if isinstance(content, dict):
        return value.keys() == content.keys() and all(same(value[name], content[name]) for name in content)
    if isinstance(content, (torch.Tensor, np.ndarray)):
        return value.dtype == content.dtype and value.shape == content.shape and bool((value == content).all())
    return type(value) is type(content) and value == content


def read(path: Path) -> Any:
    return read_tensors(path)


def read_npz(path: Path) -> Any:
    with path.open("rb") as file, open_arrays(file) as archive:
        return {name: archive[name] for name in archive.files}


READERS = {"tensors": (tensors, read, CONTENT), "arrays": (arrays, read_npz, ARRAYS)}
READERS["packed"] = (lambda: arrays(np.savez_compressed), read_npz, ARRAYS)


def of_members(whole: bytes) -> dict[str, range]:
    """The bytes of each member, as they are stored."""
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        places = {}
        for member in archive.infolist():
            names, extra = (int.from_bytes(whole[member.header_offset + at :][:2], "little") for at in (26, 28))
            start = member.header_offset + 30 + names + extra
            places[member.filename] = range(start, start + member.compress_size)
    return places


@pytest.mark.parametrize("kind", ["tensors", "arrays"])
def test_every_byte_of_every_member(kind: str, tmp_path: Path) -> None:
    make, reader, content = READERS[kind]
    whole, path = make(), tmp_path / "file"
    path.write_bytes(whole)
    assert same(reader(path), content)
    members = of_members(whole)
    assert len(members) >= 2
    for name, place in members.items():
        for at in place:
            flipped = bytearray(whole)
            flipped[at] ^= 1 << at % 8
            path.write_bytes(flipped)
            with pytest.raises(REFUSED, match=f"^its member '{name}' is damaged$"):
                reader(path)


def last_records(whole: bytes) -> range:
    """Records of the directory: of a small one all, of a file of torch the last that is of a tensor, and the end."""
    tensor = whole.rfind(b"data/1")
    start = whole.find(b"PK\1\2") if tensor < 0 else whole.rfind(b"PK\1\2", 0, tensor)
    return range(start, len(whole))


@pytest.mark.parametrize("part", [last_records, pytest.param(lambda whole: range(len(whole)), marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", READERS)
def test_no_bit_of_the_file_changes_a_number_in_silence(kind: str, part: Any, tmp_path: Path) -> None:
    """Bits of names, headers, the directory and the gaps between members as well."""
    make, reader, content = READERS[kind]
    whole, path = make(), tmp_path / "file"
    members = {at for place in of_members(whole).values() for at in place}
    refused = 0
    for at in set(part(whole)) - members:
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            path.write_bytes(flipped)
            try:
                value = reader(path)
            except REFUSED:
                refused += 1
                continue
            assert same(value, content), f"byte {at}, bit {bit}"
    assert refused > 100


def test_a_member_that_the_directory_calls_empty_is_damaged(tmp_path: Path) -> None:
    whole, path = bytearray(arrays()), tmp_path / "a.npz"
    size = whole.index(b"PK\1\2") + 24
    whole[size : size + 4] = bytes(4)
    path.write_bytes(whole)
    with pytest.raises(zipfile.BadZipFile, match=r"its member 'long\.npy' is damaged"):
        read_npz(path)


def test_archives_with_a_comment_and_of_many_members_are_whole(tmp_path: Path) -> None:
    path, many = tmp_path / "a.npz", {f"a{n}": np.array(n) for n in range(300)}
    np.savez(path, **many)
    assert same(read_npz(path), many)
    with zipfile.ZipFile(path, "a") as archive:
        archive.comment = b"of 2026"
    assert same(read_npz(path), many)


def test_zeros_in_place_of_a_block(tmp_path: Path) -> None:
    torch.save({"weight": torch.rand(4000)}, path := tmp_path / "a.pt")
    whole = path.read_bytes()
    for start in range(0, len(whole) - 512, 512):
        path.write_bytes(whole[:start] + bytes(512) + whole[start + 512 :])
        with pytest.raises(DataError, match=r"is damaged|no whole archive"):
            read_tensors(path)


def test_a_shorter_array_in_the_header_is_seen(tmp_path: Path) -> None:
    """NumPy reads as many numbers as the header says, and compares checksums at the end of a member alone."""
    np.savez(path := tmp_path / "a.npz", long=np.arange(3000))
    path.write_bytes(path.read_bytes().replace(b"'shape': (3000,)", b"'shape': (2000,)"))  # one bit
    with np.load(path) as archive:
        assert len(archive["long"]) == 2000
    with pytest.raises(zipfile.BadZipFile, match=r"its member 'long\.npy' is damaged"):
        read_npz(path)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_files_that_are_no_archives_of_tensors(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    torch.save({"x": Hostile(tmp_path / "run")}, path)
    with pytest.raises(DataError, match=r"^it asks for \w+\.mkdir, .*; nothing of it was run$"):
        read_tensors(path)
    torch.save(CONTENT, path, _use_new_zipfile_serialization=False)  # without checksums
    with pytest.raises(DataError, match=r"^it is no whole archive, as if it was cut or is of another kind$"):
        read_tensors(path)
    path.write_bytes(pickle.dumps(Hostile(tmp_path / "run")))
    with pytest.raises(DataError, match="it is no whole archive"):
        read_tensors(path)
    path.write_bytes(b"")
    with pytest.raises(DataError, match=r"^it is empty$"):
        read_tensors(path)
    path.write_bytes(arrays())
    with pytest.raises(DataError, match=r"^it cannot be read \(\w+\), as if it was changed or of another kind$"):
        read_tensors(path)
    assert not (tmp_path / "run").exists()


OTHER_TENSORS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "without values": lambda: torch.zeros(2, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
}


@pytest.mark.filterwarnings("ignore")  # of torch, about tensors that are rare
def test_tensors_of_other_kinds_are_refused(tmp_path: Path, subtests: Any) -> None:
    path = tmp_path / "file"
    for kind, make in OTHER_TENSORS.items():
        with subtests.test(kind):
            torch.save({"a": [{"b": make()}]}, path)
            with pytest.raises(DataError, match=r"^it (has a tensor that is sparse|asks for torch\.nested\.)"):
                read_tensors(path)


@pytest.mark.parametrize("kind", ["in itself", "twice in each of many"])
def test_lists_that_are_endless_are_refused(kind: str, tmp_path: Path) -> None:
    """A few bytes may stand for billions of values, which a check of each would never end."""
    content: list[Any] = [torch.ones(1)]
    if kind == "in itself":
        content.append(content)
    for _ in range(60 if kind != "in itself" else 0):
        content = [content, content]
    torch.save(content, tmp_path / "file")
    with pytest.raises(DataError, match=r"^it has more than 1,000,000 values"):
        read_tensors(tmp_path / "file")


def test_a_file_has_at_most_a_million_values(tmp_path: Path) -> None:
    torch.save([0] * 999_000, tmp_path / "file")
    assert len(read_tensors(tmp_path / "file")) == 999_000
    torch.save([0] * 1_000_000, tmp_path / "file")  # and the list itself
    with pytest.raises(DataError, match=r"^it has more than 1,000,000 values"):
        read_tensors(tmp_path / "file")
