"""Every kind of damage that a checkpoint can have: an error that says what must be, and no code is run."""

import functools
import operator
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers.cli.main import main
from eqlayers.errors import ConfigError, DataError, EqlayersError
from eqlayers.train import PropertyModule, checkpoint_path, read_checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated, use .isinstance")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration and the checkpoints of a short run."""
    folder = tmp_path_factory.mktemp("good")
    (folder / "c.yaml").write_text(
        f"""\
name: good
runs: {folder}/runs
data: {{limit_train: 16, batch_size: 8, cutoff: 3.0, cache_dir: {folder}/cache}}
model:
  model:
    class_path: eqlayers.models.MoleculeNetwork
    init_args: {{hidden: 2x0e + 2x1o, layers: 1, radial_hidden: [4]}}
trainer: {{accelerator: cpu, max_epochs: 1, limit_val_batches: 1, limit_test_batches: 1}}
"""
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EQLAYERS_CACHE_DIR", str(folder / "kernels"))
        assert main(["fit", "-c", str(folder / "c.yaml"), "--test_after_fit", "false"]) == 0
    return folder


def weight(checkpoint: dict[str, Any]) -> str:
    return next(name for name, value in checkpoint["state_dict"].items() if value.is_floating_point() and value.ndim)


def parent(content: Any, path: tuple[Any, ...]) -> Any:
    """The dictionary or list that holds the last key of a path."""
    return functools.reduce(operator.getitem, path[:-1], content)


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    """A change of one value in the nested content."""
    return lambda checkpoint: operator.setitem(parent(checkpoint, path), path[-1], value)


def drop(*path: Any) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: operator.delitem(parent(checkpoint, path), path[-1])


def nan(part: str) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: checkpoint[part][weight(checkpoint)].view(-1)[0].fill_(float("nan"))


def wide(part: str) -> Callable[[dict[str, Any]], None]:
    return lambda checkpoint: checkpoint[part].update({weight(checkpoint): torch.zeros(3, 5, 7)})


DAMAGE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no weights": (drop("state_dict"), "it has no 'state_dict'"),
    "no version": (drop("pytorch-lightning_version"), "it has no 'pytorch-lightning_version'"),
    "strange version": (put("pytorch-lightning_version", value="new"), "'pytorch-lightning_version' is no version"),
    "version as number": (put("pytorch-lightning_version", value=2), "must be a str, it is a int"),
    "weights as list": (put("state_dict", value=[1]), "its 'state_dict' must be a dict, it is a list"),
    "weight as text": (put("state_dict", "x", value="y"), "'state_dict' must hold tensors, 'x' is a str"),
    "nan": (nan("state_dict"), "its 'state_dict' must hold finite numbers, some are NaN or infinite"),
    "nan in raw weights": (nan("current_model_state"), "its 'current_model_state' must hold finite numbers"),
    "infinite moments": (
        lambda c: c["optimizer_states"][0]["state"][0]["exp_avg"].fill_(float("inf")),
        "its 'optimizer_states' must hold finite numbers",
    ),
    "facts as list": (put("eqlayers_data", value=[1]), "its 'eqlayers_data' must be a dict, it is a list"),
    "no facts": (put("eqlayers_data", value={}), "its 'eqlayers_data' must have a text for target"),
    "fact missing": (drop("eqlayers_data", "target"), "its 'eqlayers_data' must have a text for target"),
    "fact too many": (put("eqlayers_data", "more", value="x"), "its 'eqlayers_data' must have a text for target"),
    "fact as number": (put("eqlayers_data", "target", value=3), "its 'eqlayers_data' must have a text for target"),
    "structures as list": (put("eqlayers_structures", value=[1]), "its 'eqlayers_structures' must be a dict"),
    "structures as numbers": (put("eqlayers_structures", "train", value=3), "'eqlayers_structures' must hold tensors"),
    "another target": (put("eqlayers_data", "target", value="U"), "the checkpoint predicts U, got data.target U0"),
    "another function": (
        put("hyper_parameters", "_instantiator", value="os.system"),
        "name a function or class to be called that is not Lightning's own",
    ),
    "another class": (
        put("hyper_parameters", "_class_path", value="os.system"),
        "name a function or class to be called that is not Lightning's own",
    ),
    "hyper-parameters as text": (put("hyper_parameters", value="x"), "'hyper_parameters' must be a dict, it is a str"),
    "another shape": (
        wide("state_dict"),
        "must hold the weights of PropertyModule around MoleculeNetwork, got 1 of ano",
    ),
    "weight missing": (lambda c: c["state_dict"].pop(weight(c)), "got 1 missing"),
    "weight too many": (put("state_dict", "model.more", value=torch.ones(1)), r"got 1 unknown \(model.more\)"),
    "weights of integers": (
        lambda c: c["state_dict"].update({weight(c): c["state_dict"][weight(c)].long()}),
        "got 1 of another dtype",
    ),
    "another network": (
        put("hyper_parameters", "model", value=5),
        r"they differ \(saved -> configured\): model.model: 5",
    ),
}
# found where a fit goes on, not where weights are tested
OF_FIT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no optimizer": (put("optimizer_states", value=[]), "must hold the state of one soap optimizer"),
    "strange optimizer": (put("optimizer_states", value=[3]), "must hold the state of one soap optimizer"),
    "moments of another shape": (
        lambda c: c["optimizer_states"][0]["state"][0].update(exp_avg=torch.zeros(9), exp_avg_sq=torch.zeros(9)),
        r"must hold the state of soap of \d+ parameters",
    ),
    "second moments of another shape": (
        put("optimizer_states", 0, "state", 0, "exp_avg_sq", value=torch.zeros(9)),
        r"must hold the state of soap of \d+ parameters",
    ),
    "raw weights of another shape": (wide("current_model_state"), "got 1 of another shape"),
    "no loops": (drop("loops"), "must hold the state of a training, got one without 'loops'"),
    "strange loops": (put("loops", "fit_loop", value=3), "got one that cannot be restored"),
    "strange schedule": (put("lr_schedulers", value=[3]), "got one that cannot be restored"),
    "strange history": (
        lambda c: c["callbacks"].update(
            {key: {"rows": [{"epoch": "x"}]} for key in c["callbacks"] if key.startswith("History")}
        ),
        "the history of a run must be a list of epochs with the numbers epoch, step",
    ),
}


def damaged(good: Path, tmp_path: Path, change: Callable[[dict[str, Any]], Any]) -> str:
    checkpoint = read_checkpoint(checkpoint_path(good / "runs" / "good", "last"))
    change(checkpoint)
    torch.save(checkpoint, tmp_path / "bad.ckpt")
    return str(tmp_path / "bad.ckpt")


def refused(capsys: pytest.CaptureFixture[str], good: Path, command: str, path: str) -> str:
    before = {file: file.stat().st_mtime_ns for file in (good / "runs").rglob("*") if file.is_file()}
    more = ["--name", "another"] if command == "fit" else []
    assert main([command, "-c", str(good / "c.yaml"), "--ckpt_path", path, *more]) == 2
    error = capsys.readouterr().err
    assert error.count("eqlayers: error: ") == 1
    message = error.split("eqlayers: error: ")[1]
    assert message.count("\n") == 1
    assert "Traceback" not in error
    assert "weights_only" not in error
    after = {file: file.stat().st_mtime_ns for file in (good / "runs").rglob("*") if file.is_file()}
    assert after == before
    return message


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_content(kind: str, good: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, message = DAMAGE[kind]
    assert re.search(message, refused(capsys, good, "test", damaged(good, tmp_path, change)))


@pytest.mark.parametrize("kind", OF_FIT)
def test_damage_that_a_resumed_fit_meets(kind: str, good: Path, tmp_path, capsys) -> None:
    change, message = OF_FIT[kind]
    assert re.search(message, refused(capsys, good, "fit", damaged(good, tmp_path, change)))


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def flipped(path: Path, whole: bytes) -> None:
    """One bit of the largest weight is another."""
    path.write_bytes(whole)
    weights = [value for value in read_checkpoint(path)["state_dict"].values() if value.is_floating_point()]
    at = whole.index(max(weights, key=torch.Tensor.numel).numpy().tobytes()) + 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 64]) + whole[at + 1 :])


FOREIGN = {"state_dict": {"weight": torch.ones(2)}, "pytorch-lightning_version": "2.6.0", "hyper_parameters": {}}
NO_ARCHIVE = "it is no whole archive"
#: How a file is made of a path and of a whole checkpoint, and the message.
FILES: dict[str, tuple[Callable[[Path, bytes], Any], str]] = {
    "folder": (lambda path, whole: path.mkdir(), "a checkpoint must be a file, got a folder at"),
    "hostile": (
        lambda path, whole: torch.save({"state_dict": {}, "x": Hostile(path.parent / "executed")}, path),
        r"it asks for \w+\.mkdir, which is no tensor and no plain value; nothing of it was run",
    ),
    **{
        f"hostile pickle {n}": (
            lambda path, whole, n=n: path.write_bytes(pickle.dumps(Hostile(path.parent / "executed"), n)),
            NO_ARCHIVE,
        )
        for n in (2, 5)
    },
    "flipped": (flipped, r"its member 'archive/data/\d+' is damaged"),
    "another module": (
        lambda path, whole: torch.save(FOREIGN, path),
        "must hold the weights of PropertyModule around MoleculeNetwork, got .* missing .*; 1 unknown",
    ),
    "list": (lambda path, whole: torch.save([1, 2], path), "it holds a list, not a dictionary"),
    "tensor": (lambda path, whole: torch.save(torch.ones(3), path), "it holds a Tensor, not a dictionary"),
    "empty": (lambda path, whole: path.touch(), "0 bytes.: it is empty"),
    "text": (lambda path, whole: path.write_bytes(b"not a checkpoint"), NO_ARCHIVE),
    **{
        f"whole[:{end}]": (lambda path, whole, end=end: path.write_bytes(whole[:end]), NO_ARCHIVE)
        for end in (1, 100, 10_000, -1)
    },
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", FILES)
def test_files_that_are_no_checkpoints(kind: str, good: Path, tmp_path, capsys) -> None:
    path = tmp_path / "bad.ckpt"
    make, message = FILES[kind]
    make(path, checkpoint_path(good / "runs" / "good", "last").read_bytes())
    for command in ("test", "fit"):
        assert re.search(message, refused(capsys, good, command, str(path)))
    with pytest.raises(EqlayersError) as caught:
        PropertyModule.load_from_checkpoint(path)
    assert "weights_only" not in str(caught.value)
    assert not (tmp_path / "executed").exists(), "code of a checkpoint was run"


ARGUMENTS = ("hyper_parameters", "model", "init_args")


def test_load_from_checkpoint_says_what_is_wrong(good: Path, tmp_path: Path) -> None:
    load = PropertyModule.load_from_checkpoint
    assert load(checkpoint_path(good / "runs" / "good")).model.cutoff == 3.0
    with pytest.raises(ConfigError, match=r"weights_only must be True, .* got False\. Leave it out"):
        load(checkpoint_path(good / "runs" / "good"), weights_only=False)
    more = put("state_dict", "model.more", value=torch.ones(1))
    for change, error, message in (
        (drop("hyper_parameters", "model"), ConfigError, r"the checkpoint must .*got none in .* Pass it"),
        (put(*ARGUMENTS, "lmax", value="many"), ConfigError, "lmax must be an integer, at least 0, got 'many'"),
        (put(*ARGUMENTS, "lmax", value=-1), ConfigError, "lmax must be an integer, at least 0, got -1"),
        (
            put("hyper_parameters", "learning_rate", value="high"),
            DataError,
            "must hold arguments of PropertyModule",
        ),
        (more, DataError, "got 1 unknown"),
    ):
        with pytest.raises(error, match=message):
            load(damaged(good, tmp_path, change))
    with pytest.warns(UserWarning, match=r"not in the model state dict but in the checkpoint: \['model\.more'\]"):
        assert load(damaged(good, tmp_path, more), strict=False)
    with pytest.raises(DataError, match="got 1 of another shape"):
        load(damaged(good, tmp_path, wide("state_dict")), strict=False)
    for path in (None, 3, "", "no/such.ckpt"):
        with pytest.raises(ConfigError, match="a checkpoint must"):
            load(path)


@pytest.mark.parametrize("name", ["model", "repulsion"])
def test_a_checkpoint_makes_no_class_of_others(name: str, good: Path, tmp_path: Path) -> None:
    """Lightning would make any class that is installed, and some run code that is in their arguments."""
    text = f"x -> __import__('os').mkdir({str(tmp_path / 'executed')!r})"
    hostile = {"class_path": "torch_geometric.nn.Sequential", "init_args": {"input_args": text, "modules": []}}
    file = damaged(good, tmp_path, put("hyper_parameters", name, value=hostile))
    with pytest.raises(ConfigError, match=r"got 'torch_geometric\.nn\.Sequential' from a file; nothing was imported"):
        PropertyModule.load_from_checkpoint(file)
    assert not (tmp_path / "executed").exists()
