"""The help of the training commands: short, complete about this package's own options, and with pages for the rest."""

import pytest

from eqlayers.cli import main

pytestmark = pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)")


def test_help_of_training_is_short_and_has_all_of_our_options(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    for command in ("fit", "test"):
        with pytest.raises(SystemExit, match="0"):
            main([command, "--help"])
        text = capsys.readouterr().out
        assert len(text.splitlines()) <= 155
        words = " ".join(text.split())
        for option in ("hidden", "lmax", "layers", "species", "num_basis", "radial_hidden", "readout", "pooling"):
            assert f"--model.model.init_args.{option} " in words
        assert "Irreps of the node features" in words
        assert "Largest degree of the spherical harmonics" in words
        for option in (
            "data.target",
            "data.cutoff",
            "model.learning_rate",
            "trainer.max_epochs",
            "ema.decay",
            "ckpt_path",
        ):
            assert f"--{option} " in words
        assert "--trainer.help" in words
        assert "known subclasses" not in words
        assert "torch.nn." not in words
    assert "trainer.enable_model_summary" not in words


def test_pages_of_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for option, expected in (
        ("--trainer.help", "--trainer.enable_model_summary"),
        ("--early_stopping.help", "--early_stopping.stopping_threshold"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main(["fit", option])
        assert expected in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["fit", "--model.model.help", "eqlayers.models.MoleculeNetwork"])
    assert "Largest degree of the spherical harmonics" in capsys.readouterr().out
