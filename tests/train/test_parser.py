"""The parser of the training commands: one page of help by task; behind it every option, and pages of sections."""

from pathlib import Path

import pytest

from eqlayers.cli.main import main
from eqlayers.train.parser import shown_default
from tests.each import each

pytestmark = pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)")
LINES, COLUMNS = 60, 100


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
            ("data.target", "trainer.enable_model_summary"),
        ),
        (
            ("fit", "--task=property", "-h"),
            ("data.target", "data.cutoff", "model.learning_rate", "trainer.max_epochs", "ema.decay", "ckpt_path"),
            ("data.e0s", "model.forces_weight"),
        ),
        (("test", "--task", "potential", "--help"), ("data.test_path", "trainer.devices"), ("model.loss", "resume")),
    ],
)
def test_the_help_of_a_task_is_one_page(
    words: tuple[str, ...], options: tuple[str, ...], others: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(capsys, *words)
    assert len(text.splitlines()) <= LINES
    assert max(map(len, text.splitlines())) <= COLUMNS
    for option in options:
        assert f"--{option}" in text
    for option in others:
        assert f"--{option}" not in text


def test_the_help_follows_the_configuration(
    capsys: pytest.CaptureFixture[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_behind_it_is_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    words = " ".join(shown(capsys, "fit", "--task", "property", "--help-all").split())
    for option in ("hidden", "lmax", "layers", "species", "num_basis", "radial_hidden", "readout", "pooling"):
        assert f"--model.model.init_args.{option} " in words
    assert "Irreps of the node features" in words
    for option in ("data.target", "model.weight_decay", "trainer.max_epochs", "ema.decay", "ckpt_path", "trainer.help"):
        assert f"--{option} " in words
    for text in ("known subclasses", "torch.nn.", "trainer.enable_model_summary"):
        assert text not in words


def test_pages_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option, expected in (
        ("--trainer.help", "--trainer.enable_model_summary"),
        ("--early_stopping.help", "--early_stopping.stopping_threshold"),
    ):
        assert expected in shown(capsys, "fit", option)
    text = shown(capsys, "fit", "--model.model.help", "eqlayers.models.MoleculeNetwork")
    assert "Largest degree of the spherical harmonics" in text


@each(
    "value, text",
    [(None, ""), (False, ""), ("", ""), (True, "true"), (0, "0"), (1e-3, "0.001"), ((0.9, 0.999), "[0.9, 0.999]")],
)
def test_defaults_are_shown_where_there_is_one(value: object, text: str) -> None:
    assert shown_default(value) == text
