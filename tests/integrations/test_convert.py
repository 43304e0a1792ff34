"""`eqlayers convert` without the other packages: endings, outputs that are there, and what is missing."""

import shlex
from pathlib import Path

import pytest
import torch

from eqlayers.cli.main import main
from eqlayers.errors import ConfigError, DataError
from eqlayers.integrations.convert import convert
from eqlayers.models import Potential, load_potential, read_potential, save_potential
from eqlayers.testing import ToyNetwork
from tests.each import each


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Potential:
    monkeypatch.chdir(tmp_path)
    potential = Potential(ToyNetwork(2), [1, 8], {8: -432.0})
    save_potential(potential, "toy.pt", {"units": "eV, Angstrom", "data": "none"})
    return potential


def test_a_potential_keeps_weights_and_facts(toy: Potential, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("convert toy.pt -o other.pt")) == 0
    assert "wrote other.pt: ToyNetwork" in capsys.readouterr().out
    again = load_potential("other.pt")
    for name, value in toy.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], value, rtol=0, atol=0)
    facts = read_potential("other.pt").facts
    assert (facts["data"], facts["converted from"]) == ("none", "toy.pt")


@each(
    "words, message",
    [
        ("toy.pt -o toy.txt", r"OUTPUT must end in \.pt, \.model, \.ckpt"),
        ("toy.pt -o toy.pt", "OUTPUT must be a new file"),
        ("toy.xyz -o new.pt", r"MODEL must end in \.pt, .*\.nequip\.zip.*--from mace"),
        ("none.pt -o new.pt", "MODEL must be a file, got nothing at none.pt"),
        ("toy.pt -o new.pt --head a", "head must be left out"),
        ("toy.pt -o new.model", r"potential\.network must be eqlayers\.models\.MACE"),
        ("toy.pt -o new.ckpt", r"potential\.network must be eqlayers\.models\.NequIP"),
        ("toy.pt -o new.pt --from nequip", "Install nequip"),
    ],
)
def test_what_cannot_be_converted_is_said_and_nothing_is_written(toy: Potential, words: str, message: str) -> None:
    before = {path.name: path.read_bytes() for path in Path().iterdir()}
    source, _, output, *rest = words.split()
    options = dict(zip(("head", "read_as")[rest[:1] == ["--from"] :], rest[1:], strict=False))
    if rest and "nequip" in rest and _has_nequip():
        message = "a checkpoint or a package of nequip"
    with pytest.raises(ConfigError, match=message):
        convert(source, output, **options)
    assert {path.name: path.read_bytes() for path in Path().iterdir()} == before


def _has_nequip() -> bool:
    from importlib.util import find_spec

    return find_spec("nequip") is not None


def test_a_checkpoint_of_another_package_needs_its_name(toy: Potential) -> None:
    """Such a file can run code, so the format is never tried in place of ours."""
    torch.save({"state_dict": {}, "hyper_parameters": {"info_dict": {}}}, "foreign.ckpt")
    with pytest.raises(DataError, match="describes no potential"):
        convert("foreign.ckpt", "new.pt")
