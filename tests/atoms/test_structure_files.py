"""Files of structures: frames that are wrong are named by frame and line, and several files or a part are read."""

import gzip
import sys
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ase import Atoms
from ase.io import read, write

from eqlayers.atoms.structure_files import AtomsFrame, files_of, structures_of
from eqlayers.data.readers import read_structures
from eqlayers.errors import DataError, EqlayersWarning, MissingPackageError
from eqlayers.simulate.frames import frames, last_frame
from tests.each import each

HEADER = "Properties=species:S:1:pos:R:3:forces:R:3 energy={}"


def frame(energy: float, number: int = 3) -> list[str]:
    atoms = [f"{'OHH'[k]} {k}.0 {0.1 * k:.1f} 0.0 0.1 0.2 -0.3" for k in range(3)]
    return [str(number), HEADER.format(energy), *atoms]


def text(*changed: tuple[int, str]) -> str:
    """Four frames of three atoms: frame 2 has lines 11 to 15, of which some are others."""
    lines = [line for row in range(4) for line in frame(-row)]
    for place, line in changed:
        lines[place - 1] = line
    return "".join(f"{line}\n" for line in lines)


#: Lines that replace lines of the text, the frames that are left, and words of the message.
WRONG = {
    "a number too many": ([(11, "4")], [0, -1, -3], r"frame 2, line 11: the frame says 4 atoms and has 3 lines"),
    "a number too few": ([(11, "2")], [0, -1, -3], r"frame 2, line 11: the frame says 2 atoms and has 3 lines"),
    "no number": ([(11, "three")], [0, -3], r"frame 1, line 6: .* has 8 lines of atoms, the first .* line 11: 'three'"),
    "no number at the start": ([(1, "three")], [-1, -2, -3], "frame 0, line 1: .* begin with the number .* 'three'"),
    "a column without a name": ([(14, "H 1 0 0 1.008 0 0 0")], [0, -1, -3], "line 14: the line has 8 .* names 7"),
    "stars": ([(14, "H 1.0 0.1 ******** 0 0 0")], [0, -1, -3], r"frame 2, line 14: .*'\*{8}'\. .* with more digits"),
    "a missing column": ([(15, "H 2.0 0.2 0.0 0.1")], [0, -1, -3], "line 15: .*length 5 .* with 7 .*Complete the"),
    "glued numbers": ([(13, "O 0.0-1.0 0.0 0 0 0")], [0, -1, -3], "frame 2, line 13: .*'0.0-1.0'. Repair"),
    "a name with a number": ([(14, "Si1 1 0 0 0 0 0")], [0, -1, -3], "line 14: 'Si1' is no element. Write the symbol"),
    "Fortran": ([(15, "H 2 0 1.0D-05 0 0 0")], [0, -1, -3], r"line 15: .*'1.0D-05'\. Write exponents with E: sed"),
    "a broken header": (
        [(12, HEADER.format(-2) + ' Lattice="1 0 0 0 *** 0 0 0 1"')], [0, -1, -3], "frame 2, line 12: .*Lattice.*digits"
    ),
    "a label in stars": ([(12, HEADER.format("*******"))], [0, -1, -3], "frame 2, line 11 of .* digits.*skip_bad true"),
    "a label of Fortran": ([(12, HEADER.format("-2.0D+00"))], [0, -1, -3], "frame 2, line 11 .* with E: sed"),
    "a label that is NaN": ([(12, HEADER.format("nan"))], [0, -1, -3], "finite energy.* frame 2, line 11"),
    "a place that is NaN": ([(14, "H nan 0 0 0 0 0")], [0, -1, -3], "finite positions"),
}  # fmt: skip


@each("kind", WRONG)
def test_a_wrong_frame_is_named_or_left_out(tmp_path: Path, kind: str) -> None:
    changed, left, message = WRONG[kind]
    file = tmp_path / "set.xyz"
    file.write_text(text(*changed))
    with pytest.raises(DataError, match=message):
        read_structures(file)
    arrays, report = read_structures(file, skip_bad=True)
    assert arrays.energy.tolist() == left
    if kind != "no number":  # two frames are one then
        assert arrays.idx.tolist() == [-energy for energy in left], "rows of the file"
    assert any(line.startswith("left out: frame") and "rows 0" not in line for line in report)
    assert report[-2 if "not used" in report[-1] else -1] == "left out: 1 frames in all"


def test_a_cut_file(tmp_path: Path) -> None:
    file = tmp_path / "set.xyz"
    file.write_text(text()[:-40])
    with pytest.raises(
        DataError, match=r"frame 3, line 16: the frame says 3 atoms and has 2 lines of atoms\. Correct the number, or"
    ):
        read_structures(file)
    with pytest.warns(EqlayersWarning, match="does not end with a line break"):
        assert len(read_structures(file, skip_bad=True)[0]) == 3


def test_all_frames_behind_an_empty_line_are_read(tmp_path: Path) -> None:
    """ASE ends there without a word."""
    file = tmp_path / "set.xyz"
    file.write_text("\n".join(["\n".join(frame(-row)) + "\n" for row in range(3)]) + "\n\n")
    assert len(read(file, ":")) == 1
    assert read_structures(file)[0].energy.tolist() == [0, -1, -2]


def test_bytes_that_are_no_utf8_and_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "set.xyz"
    file.write_bytes(text((12, HEADER.format(-2) + " author=Müller")).encode("latin-1"))
    with pytest.raises(DataError, match=r"frame 2, line 12: the line is no text in UTF-8\. .*iconv -f latin1 -t utf-8"):
        read_structures(file)
    assert read_structures(file, skip_bad=True)[0].energy.tolist() == [0, -1, -3]
    file.write_bytes(text((12, HEADER.format(-2) + " author=Müller")).encode("utf-8-sig"))
    assert read_structures(file)[0].energy.tolist() == [0, -1, -2, -3]
    file.write_bytes(text().replace("\n", "\r\n").encode())
    assert read_structures(file)[0].energy.tolist() == [0, -1, -2, -3]


def test_deuterium_and_tritium_are_hydrogen_of_another_mass(tmp_path: Path) -> None:
    file = tmp_path / "set.xyz"
    file.write_text(text((14, "D 1 0 0 0 0 0"), (15, "T 2 0 0 0 0 0")))
    arrays, _ = read_structures(file)
    assert arrays.z.tolist() == [8, 1, 1] * 4
    masses = list(frames(file))[2].get_masses()
    np.testing.assert_allclose(masses, [15.999, 2.0141, 3.0160], atol=1e-3)
    assert not list(frames(file))[1].has("masses")
    file.write_text("2\nProperties=species:S:1:pos:R:3:masses:R:1\nD 0 0 0 2.5\nH 0 0 1 1.5\n")
    assert last_frame(file).get_masses().tolist() == [2.5, 1.5], "the file's own"


def test_a_header_may_be_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1\n17\nH 0 0 0\n1\n\nO 0 0 0\n")
    assert [str(atoms.symbols) for atoms in frames(tmp_path / "a.xyz")] == ["H", "O"]


#: What a header says of the stress, and yz, xz, xy; or the reason that it is refused.
STRESS: dict[str, str | list[int]] = {
    "1 2 3 6 5 4": [6, 5, 4],
    "1 4 5 4 2 6 5 6 3": [6, 5, 4],
    "1 4 5 0 2 6 0 0 3": "must be a symmetric matrix, got .*Store both halves",
    "1 0 0 4 2 0 5 6 3": "must be a symmetric matrix",
    "1 4 5 9 2 6 5 6 3": "must be a symmetric matrix",
    "1 1e-17 0 0 2 0 0 0 3": [0, 0, 0],
    "1 2 3 6 5": r"must be numbers \[3, 3\]",
}


@each("name, numbers", [(name, numbers) for name in ("stress", "virial", "REF_stress") for numbers in STRESS])
def test_shear_is_read_or_refused(tmp_path: Path, name: str, numbers: str) -> None:
    file, wanted = tmp_path / "set.xyz", STRESS[numbers]
    file.write_text(text((2, HEADER.format(0) + f' Lattice="5 0 0 0 5 0 0 0 5" {name}="{numbers}"')))
    if isinstance(wanted, str):
        with pytest.raises(DataError, match=wanted):
            read_structures(file)
        return
    stress = read_structures(file)[0].stress[0] * (-125 if name == "virial" else 1)
    np.testing.assert_allclose([stress[1, 2], stress[0, 2], stress[0, 1]], np.array(wanted), atol=1e-12)
    np.testing.assert_allclose(stress, stress.T)
    np.testing.assert_allclose(np.diag(stress), [1, 2, 3])


def test_a_key_that_is_twice_in_a_header_is_said(tmp_path: Path) -> None:
    file = tmp_path / "set.xyz"
    file.write_text(
        text(
            (7, HEADER.format(-1) + ' energy=-9 note="energy=1 energy=2"'), (12, HEADER.format(-2) + ' note="a=1 a=2"')
        )
    )
    arrays, report = read_structures(file)
    assert arrays.energy.tolist() == [0, -9, -2, -3]
    assert "'energy' is twice in the header of 1 frames, first frame 1, line 6: the last one counts" in report


def several(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    for name, energies in {"b.xyz": (-3, -4), "a.xyz": (0, -1, -2)}.items():
        (folder / name).write_text("".join(f"{line}\n" for energy in energies for line in frame(energy)))
    (folder / "readme.txt").write_text("about\n")
    (folder / ".c.xyz").write_text("of an editor\n")
    return folder


def test_folders_patterns_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = several(tmp_path)
    for path in (folder, folder / "*.xyz", tmp_path / "**" / "*.xyz"):
        arrays, report = read_structures(path)
        assert arrays.energy.tolist() == [0, -1, -2, -3, -4]
        assert arrays.idx.tolist() == [0, 1, 2, 0, 1]
        assert any(line.startswith("2 files: ") for line in report)
        assert len(list(frames(path))) == 5
    for index, wanted in {"1:3": [-1, -2], "0": [0], "-1": [-2], "-2:": [-1, -2], "::2": [0, -2], "1:2": [-1]}.items():
        arrays, _ = read_structures(folder / f"a.xyz@{index}")
        assert arrays.energy.tolist() == wanted
        assert arrays.idx.tolist() == [-energy for energy in wanted]
        assert len(list(frames(folder / f"a.xyz@{index}"))) == len(wanted)
    assert last_frame(folder / "a.xyz@1").info == {}
    assert files_of(folder / "a.xyz@nothing") == ([], slice(None))
    assert files_of(folder / "c*.xyz")[0] == []
    monkeypatch.setenv("HOME", str(tmp_path))
    assert len(read_structures("~/runs/a.xyz")[0]) == 3
    write(tmp_path / "a.traj", [Atoms("H2", [[0, 0, 0], [0, 0, 0.7 + row]], info={"energy": row}) for row in range(4)])
    last = [one for one in structures_of(tmp_path / "a.traj", slice(-2, None)) if isinstance(one, AtomsFrame)]
    assert [(one.atoms.info["energy"], one.frame) for one in last] == [(2, 2), (3, 3)]
    back = [one for one in structures_of(tmp_path / "a.traj", slice(None, None, -1)) if isinstance(one, AtomsFrame)]
    assert [(one.atoms.info["energy"], one.name) for one in back[:2]] == [(3, "row 3"), (2, "row 2")]
    assert read_structures(tmp_path / "a.traj@-9:")[0].idx.tolist() == [0, 1, 2, 3], "there are four"
    assert files_of(folder / "a.xyz@::0") == ([], slice(None))
    odd = [one for one in structures_of(tmp_path / "a.traj", slice(1, None, 2)) if isinstance(one, AtomsFrame)]
    assert [(one.atoms.info["energy"], one.frame) for one in odd] == [(1, 1), (3, 3)]


def test_an_error_in_one_of_several_files_names_it(tmp_path: Path) -> None:
    folder = several(tmp_path)
    (folder / "b.xyz").write_text(text((14, "H x 0 0 0 0 0")))
    with pytest.raises(DataError, match=r"b\.xyz must .*got frame 2, line 14"):
        read_structures(folder)
    _, report = read_structures(folder, skip_bad=True)
    assert any(line.startswith("left out: b.xyz, frame 2, line 14: ") for line in report)
    assert [isinstance(one, str) for one in structures_of(folder / "b.xyz")] == [False, False, True, False]
    for line, words in (((14, "H nan 0 0 0 0 0"), "row 2 of .*b.xyz"), ((12, HEADER.format("nan")), "b.xyz, frame 2")):
        (folder / "b.xyz").write_text(text(line))
        with pytest.raises(DataError, match=rf"1 of 7 structures do not have that, {words}"):
            read_structures(folder)
        _, report = read_structures(folder, skip_bad=True)
        assert any("left out: b.xyz, frame 2, line 11: no finite" in line for line in report)


def test_a_file_of_which_all_frames_are_left_out_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text(text((14, "H x 0 0 0 0 0")))
    with pytest.raises(DataError, match=r"got none: 1 frames are left out, the first one as frame 2, line 14"):
        read_structures(tmp_path / "a.xyz@2", skip_bad=True)


def test_the_file_may_be_an_archive(tmp_path: Path) -> None:
    energies, forces = np.array([0.0, np.nan, -2.0]), np.zeros((3, 2, 3))
    pos = np.array([[[0, 0, 0], [0, 0, 0.7 + 0.1 * row]] for row in range(3)])
    np.savez(tmp_path / "a.npz", nuclear_charges=[1, 1], coords=pos, energies=energies, forces=forces)
    with pytest.raises(DataError, match=r"finite energy.* row 1;"):
        read_structures(tmp_path / "a.npz")
    arrays, report = read_structures(tmp_path / "a.npz", skip_bad=True)
    assert arrays.idx.tolist() == [0, 2]
    assert "left out: row 1: no finite energy" in report


def test_packed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(tmp_path / "a.xyz.gz", "wt") as file:
        file.write(text())
    assert len(read_structures(tmp_path / "a.xyz.gz")[0]) == 4
    (tmp_path / "a.xyz.zst").write_text(text())
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(MissingPackageError, match=r"a\.xyz\.zst must be unpacked by zstandard, .* pip install"):
        read_structures(tmp_path / "a.xyz.zst")
    likewise = SimpleNamespace(ZstdDecompressor=lambda: SimpleNamespace(decompressobj=zlib.decompressobj))
    monkeypatch.setitem(sys.modules, "zstandard", likewise)
    packed = zlib.compress(text().encode())
    (tmp_path / "a.xyz.zst").write_bytes(packed)
    assert read_structures(tmp_path / "a.xyz.zst@1:")[0].energy.tolist() == [-1, -2, -3]
    (tmp_path / "a.xyz.zst").write_bytes(packed + packed)  # as two files that were joined
    assert len(read_structures(tmp_path / "a.xyz.zst")[0]) == 8
    for cut in (packed[:-1], packed + packed[:-1], b""):
        (tmp_path / "a.xyz.zst").write_bytes(cut)
        with pytest.raises(DataError, match=r"EOFError: an end before|an empty file"):
            read_structures(tmp_path / "a.xyz.zst")
