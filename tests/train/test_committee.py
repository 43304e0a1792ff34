"""`eqlayers fit --committee`: members, their test together, and a folder in which nothing is lost."""

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from eqlayers.cli.main import main
from eqlayers.models import load_committee
from eqlayers.models.committee import MARK
from eqlayers.train.potential import PotentialModule
from tests.train.test_resume import CONFIG, RUN, content, write_inputs

FIT = ["fit", "-c", "run.yaml", "--name", "own", "--trainer.max_epochs", "1"]
TWO = [*FIT, "--committee", "2"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a committee of two, and what the training printed."""
    place, before, text = tmp_path_factory.mktemp("committee"), Path.cwd(), io.StringIO()
    os.chdir(place)
    try:
        write_inputs(place)
        with contextlib.redirect_stdout(text):
            assert main(TWO) == 0
    finally:
        os.chdir(before)
    return place, text.getvalue()


@pytest.fixture
def place(trained: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working directory with a copy of it."""
    shutil.copytree(trained[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_inputs(tmp_path)


def metrics(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "metrics.json").read_text())


def state(member: int) -> dict[str, torch.Tensor]:
    return torch.load(RUN / f"member-{member}" / "potential.pt", weights_only=True)["state_dict"]


@pytest.mark.usefixtures("place")
def test_what_a_committee_leaves(trained: tuple[Path, str]) -> None:
    """Two runs that differ in their seeds alone, and the test of their mean."""
    configs = [yaml.safe_load((RUN / f"member-{n}" / "config.yaml").read_text()) for n in (1, 2)]
    assert [config["seed_everything"] for config in configs] == [2026, 2027]
    assert [config["data"].pop("seed") for config in configs] == [2026, 2027]
    assert configs[0]["data"] == configs[1]["data"]
    assert configs[0]["committee"] is None
    committee = load_committee(RUN)
    assert not torch.equal(*(next(one.network.parameters()) for one in committee.potentials))
    each, together = [metrics(RUN / f"member-{n}") for n in (1, 2)], metrics(RUN)
    name = "test_forces_mae_meV_A"
    assert together[name] < np.mean([one[name] for one in each])  # of a mean, always
    assert together["test_forces_deviation_meV_A"] > 0
    assert -1 <= together["test_forces_deviation_correlation"] <= 1
    assert together["num_test"] == each[0]["num_test"] == 3
    text = trained[1]
    assert all(f"member {n} of 2" in text for n in (1, 2))
    assert "deviation of forces: mean" in text
    table = text.partition("test errors (MAE)")[2]
    assert [word for word in ("member-1", "member-2", "mean of the members", "committee") if word not in table] == []
    assert not (RUN / "potential.pt").exists()


@pytest.mark.usefixtures("place")
def test_the_errors_are_those_of_the_mean() -> None:
    """By the predictions of a folder of a committee for the structures of the test part."""
    import ase

    from eqlayers.data import StructureDataModule
    from eqlayers.integrations.ase import predict

    data = StructureDataModule(**CONFIG["data"])
    data.setup()
    parts = [data.test_set[n] for n in range(3)]
    true = [one.forces.numpy() for one in parts]
    frames = [ase.Atoms(numbers=one.z.numpy(), positions=one.pos.numpy()) for one in parts]
    results = list(predict(str(RUN), frames))
    errors = np.concatenate([result["forces"] - label for result, label in zip(results, true, strict=True)])
    deviations = np.concatenate([result["forces_deviation"] for result in results])
    assert metrics(RUN)["test_forces_mae_meV_A"] == pytest.approx(1000 * np.abs(errors).mean(), rel=1e-4)
    assert metrics(RUN)["test_forces_deviation_meV_A"] == pytest.approx(1000 * deviations.mean(), rel=1e-3)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (TWO, ["--resume", "--name", "move or remove the folder", "got runs/own with committee.json, "]),
        (FIT, ["without results, got runs/own with committee.json, "]),
        ([*FIT, "--resume"], ["with a committee of 2 members", "Pass --committee 2 as well"]),
        ([*FIT, "--committee", "1"], ["committee must be", "got 1"]),
        ([*FIT, "--committee", "x"], ["committee must be", "got 'x'"]),
        ([*TWO, "--committee_share", "1.5"], ["committee_share must be", "got 1.5"]),
        ([*TWO, "--resume", "--committee_share", "0.5", "--data.limit_train", "3"], ["data.limit_train must be left"]),
        ([*TWO, "--ckpt_path", "x.ckpt"], ["ckpt_path must be left out with --committee, got x.ckpt"]),
        ([*TWO, "--task", "property"], ["committee must be of the task potential, got property"]),
        ([*TWO, "--resume", "--model.loss", "l3"], ["model.loss"]),
        ([*TWO, "--resume", "--data.cutof", "3"], ["data.cutof"]),
        ([*TWO, "--name", "../out"], ["name must be"]),
    ],
)
def test_nothing_is_lost(typed: list[str], said: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Also by options that cannot be."""
    before = content()
    assert main(typed) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert [words for words in said if words not in error] == [], error
    assert content() == before


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of a copy
@pytest.mark.usefixtures("place")
def test_a_committee_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """Members that were trained keep their weights, also with --verbose; fewer than there are cannot go on."""
    weights = [state(1), state(2)]
    before = {name: value for name, value in content(RUN / "member-1").items() if name.endswith("ckpt")}
    assert main([*FIT, "--committee", "3", "--resume", "--verbose"]) == 0
    text = capsys.readouterr().out
    assert text.count("the run has 1 epochs, and trainer.max_epochs is 1; it is tested again") == 2
    assert {name: value for name, value in content(RUN / "member-1").items() if name in before} == before
    for number, mine in enumerate(weights, start=1):
        assert all(torch.equal(mine[name], value) for name, value in state(number).items())
    assert metrics(RUN)["committee"] == len(load_committee(RUN)) == 3
    assert main([*TWO, "--resume"]) == 2
    assert "committee must be 3 or more" in capsys.readouterr().err


def test_a_single_run_is_not_resumed_as_a_committee(empty: None, capsys: pytest.CaptureFixture[str]) -> None:
    RUN.mkdir(parents=True)
    (RUN / "potential.pt").write_text("a result")
    assert main([*TWO, "--resume"]) == 2
    assert "--resume must go on with a committee, got runs/own with potential.pt" in capsys.readouterr().err
    assert [*content()] == [str(RUN / "potential.pt")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of a copy
@pytest.mark.usefixtures("place")
def test_a_committee_is_tested_again() -> None:
    before = metrics(RUN)
    (RUN / "metrics.json").unlink()
    assert main(["test", "-c", str(RUN / "config.yaml"), "--report", "true"]) == 0
    titles = ["What was run", "Data", "Errors", "Predictions", "Largest errors"]
    assert re.findall("<h2>(.*)</h2>", (RUN / "report.html").read_text()) == titles
    again = metrics(RUN)
    assert {name: again[name] for name in before if name.startswith("test_")} == {
        name: value for name, value in before.items() if name.startswith("test_")
    }


def test_an_interrupted_committee_goes_on_at_its_member(
    empty: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, trained: tuple[Path, str]
) -> None:
    """By the line that Ctrl-C prints; the weights equal the weights of a committee that was not interrupted."""
    step = PotentialModule.training_step
    stop_at: Callable[[Any], bool] = lambda self: "member-2" in str(self.trainer.default_root_dir)  # noqa: E731

    def stopping(self: Any, *args: Any) -> Any:
        if stop_at(self):
            raise KeyboardInterrupt
        return step(self, *args)

    monkeypatch.setattr(PotentialModule, "training_step", stopping)
    with pytest.raises(SystemExit) as caught:
        main(TWO)
    assert caught.value.code == 130
    line = re.search(r"to go on: eqlayers (.*)", capsys.readouterr().err)[1]
    assert line == shlex.join([*TWO, "--resume"])
    assert json.loads((RUN / MARK).read_text()) == {"members": 2}
    assert main(["predict", "no.xyz", "-m", str(RUN), "-o", "out.xyz"]) == 2
    assert "1 of 2 members lack a potential.pt (member-2)" in capsys.readouterr().err
    monkeypatch.setattr(PotentialModule, "training_step", step)
    assert main(shlex.split(line)) == 0
    assert "resume: runs/own/member-1/checkpoints/last.ckpt" in capsys.readouterr().out
    for number in (1, 2):
        mine = state(number)
        kept = torch.load(trained[0] / RUN / f"member-{number}" / "potential.pt", weights_only=True)["state_dict"]
        assert all(torch.equal(mine[name], kept[name]) for name in kept)


def test_members_of_other_parts_of_the_data(empty: None) -> None:
    assert main([*FIT, "--committee", "2", "--committee_share", "0.5", "--test_after_fit", "false"]) == 0
    assert not (RUN / "metrics.json").exists()
    assert not (RUN / "member-1" / "potential.pt").exists()
    configs = [yaml.safe_load((RUN / f"member-{n}" / "config.yaml").read_text())["data"] for n in (1, 2)]
    assert [config["limit_train"] for config in configs] == [0.5, 0.5]
    assert configs[1]["limit_seed"] == configs[0]["limit_seed"] + 1
    summaries = [json.loads((RUN / f"member-{n}" / "summary.json").read_text()) for n in (1, 2)]
    assert [summary["num_train"] for summary in summaries] == [3, 3]


@pytest.mark.slow
def test_a_dry_run_writes_nothing(empty: None) -> None:
    assert main([*TWO, "--trainer.fast_dev_run", "1"]) == 0
    assert not RUN.exists()


@pytest.mark.long
def test_two_processes_train_a_committee(empty: None) -> None:
    """Each waits for the files of the other."""
    more = ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-m", "eqlayers", *TWO, *more], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert metrics(RUN)["committee"] == len(load_committee(RUN)) == 2
