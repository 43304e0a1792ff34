"""`eqlayers warmup` compiles all that a later `fit` needs, writes no run, and says what it cannot do."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers.cli.main import main
from eqlayers.nn import WarmupReport
from eqlayers.train import warmup

ROOT = Path(__file__).resolve().parents[2]
TINY = """
name: tiny
data: {limit_train: 32, batch_size: 8, eval_batch_size: 8, cutoff: 4.0}
model:
  model:
    class_path: eqlayers.models.MoleculeNetwork
    init_args: {hidden: 3x0e + 2x1o, layers: 2, num_basis: 4, radial_hidden: [8]}
trainer: {accelerator: cpu, max_epochs: 2, deterministic: true}
"""
COMPILER = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
exec cc "$@"
"""

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated, use .isinstance"),
    pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)"),
]


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "tiny.yaml").write_text(f"{TINY}\nruns: {tmp_path / 'runs'}\n")
    return str(tmp_path / "tiny.yaml")


def in_process(tmp_path: Path, *args: str) -> tuple[str, list[str]]:
    """The text that a command prints, and the calls of the compiler that it makes to compile."""
    (tmp_path / "cc").write_text(COMPILER)
    (tmp_path / "cc").chmod(0o755)
    environment = {
        **os.environ,
        "CC": str(tmp_path / "cc"),
        "EQLAYERS_CACHE_DIR": str(tmp_path / "eqlayers"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "OMP_NUM_THREADS": "1",
    }
    (tmp_path / "calls").write_text("")
    command = [sys.executable, "-m", "eqlayers", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    return done.stdout, [call for call in calls if call != "--version"]


@pytest.mark.slow
def test_a_fit_after_a_warm_up_calls_no_compiler(config: str, tmp_path: Path, cache: Path) -> None:
    options = ["--data.cache_dir", str(cache), "--data.root", str(ROOT / "examples" / "data")]
    said, compiled = in_process(tmp_path, "warmup", config, *options)
    assert compiled
    lines = [line.split("  ")[0] for line in said.splitlines() if " compiled" in line]
    assert {"interactions.0.product", "interactions.1.product"} <= set(lines)
    assert "fast_dev_run" not in said
    assert not (tmp_path / "runs").exists()
    before = sorted((tmp_path / "eqlayers" / "kernels").iterdir())
    fitted, compiled = in_process(tmp_path, "fit", "-c", config, *options, "--trainer.max_epochs", "1")
    assert compiled == []
    assert sorted((tmp_path / "eqlayers" / "kernels").iterdir()) == before
    assert "network: MoleculeNetwork on cpu, " in fitted
    assert (tmp_path / "runs" / "tiny" / "metrics.json").exists()


def seen_by(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Arguments that the command hands over, instead of a step and compiling."""
    seen: dict[str, Any] = {}

    def fake(step: Callable[[], object], targets: list[str], model: torch.nn.Module, progress: Any) -> WarmupReport:
        seen.update(step=step, targets=targets, model=model, shown=list(progress([1, 2], "two")))
        return WarmupReport((), 0, {})

    monkeypatch.setattr(warmup, "warmup", fake)
    return seen


def test_targets_run_the_step_on_the_cpu(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = seen_by(monkeypatch)
    options = ["--target", "sm_90", "--trainer.accelerator", "gpu", "--target=gfx942", "--model.learning_rate", "0.5"]
    assert main(["warmup", config, *options]) == 0
    assert seen["targets"] == ["sm_90", "gfx942"]
    assert type(seen["model"]).__name__ == "MoleculeNetwork"
    assert seen["shown"] == [1, 2]
    assert "the step called no layer" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="the accelerator is there")
def test_without_a_target_the_configured_accelerator_counts(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "-c", config, "--trainer.accelerator", "gpu"]) == 2
    assert "the options of trainer must fit together" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "a configuration file was expected as the first argument, got none"),
        (["none.yaml"], "a configuration must be a file, got 'none.yaml', which does not exist"),
        (["CONFIG", "--thread", "1"], "a key must be a known one, got 'thread'. Did you mean 'threads'?"),
        (["CONFIG", "--target", "sm_90", "--trainer.precision", "16-mixed"], "got '16-mixed'. Run `eqlayers warmup`"),
    ],
)
def test_bad_options(options: list[str], message: str, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", *(config if option == "CONFIG" else option for option in options)]) == 2
    assert message in capsys.readouterr().err


def test_unknown_targets_and_help(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", config, "--target", "sm_1"]) == 2
    assert "--target must be one of sm_80, sm_90, sm_100, gfx942, got 'sm_1'" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="0"):
        main(["warmup", "--help"])
    assert "sm_80, sm_90, sm_100, gfx942" in " ".join(capsys.readouterr().out.split())
