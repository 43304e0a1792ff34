"""The parser of the training commands: a short help by task and network, and a help with every option."""

import re
from pathlib import Path

import pytest

from eqlayers.cli.main import main

pytestmark = pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)")
LINES, COLUMNS = 85, 100


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The text that a command prints before it ends."""
    with pytest.raises(SystemExit, match="0"):
        main(words)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "options", "others"),
    [
        (
            ("fit", "--task", "potential", "--help"),
            ("data.path", "data.e0s", "model.forces_weight", "model.model.init_args.hidden", "resume", "start_from"),
            ("data.target", "trainer.enable_model_summary", "report"),
        ),
        (
            ("fit", "--task=property", "-h"),
            ("data.target", "data.cutoff", "model.learning_rate", "trainer.max_epochs", "ema.decay", "ckpt_path"),
            ("data.e0s", "model.forces_weight"),
        ),
        (("test", "--task", "potential", "--help"), ("data.test_path", "trainer.devices"), ("model.loss", "resume")),
    ],
)
def test_the_help_of_a_task_is_short(
    words: tuple[str, ...], options: tuple[str, ...], others: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, *words)
    assert text.startswith(f"usage: eqlayers {words[0]} ")
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= COLUMNS
    for option in options:
        assert f"--{option}" in text
    for option in others:
        assert f"--{option}" not in text


def test_the_help_follows_the_configuration(capsys, tmp_path, monkeypatch) -> None:
    """A file gives task and network; structures are of potentials, and are not read."""
    monkeypatch.chdir(str(tmp_path))
    Path("my.yaml").write_text("data: {path: no.xyz}\nmodel: {model: {class_path: eqlayers.models.Equiformer}}\n")
    text = shown(capsys, "fit", "my.yaml", "--help")
    assert "network, here Equiformer" in text
    assert "--model.model.init_args.heads" in text
    assert "--data.e0s" in text
    text = shown(capsys, "fit", "no.xyz", "--help")
    assert "--data.e0s" in text
    assert "network, here MACE" in text


def test_every_option_is_in_the_long_help(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(shown(capsys, "fit", "--task", "property", "--help-all").split())
    for option in ("hidden", "lmax", "layers", "species", "num_basis", "radial_hidden", "readout", "pooling"):
        assert f"--model.model.init_args.{option} " in words
    assert "Irreps of the node features" in words
    for option in ("data.target", "model.weight_decay", "trainer.enable_model_summary", "ema.decay", "ckpt_path"):
        assert f"--{option} " in words
    for text in ("known subclasses", "torch.nn.", "--model VALUE"):
        assert text not in words


def test_the_help_of_another_network(capsys: pytest.CaptureFixture[str]) -> None:
    text = shown(capsys, "fit", "--model.model.help", "eqlayers.models.MoleculeNetwork")
    assert "Largest degree of the spherical harmonics" in text


def test_a_line_has_the_first_sentence_and_the_default(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(capsys, "fit", "--task", "potential", "--help")
    for line in (
        "--threads N +CPU threads of torch \\(1\\)",
        r"--data\.batch_size N +Most structures in a training batch \(8\)",
    ):
        assert re.search(rf"^ +{line}$", text, re.MULTILINE)
