"""Commands that cannot be carried out: each ends with status 2 and one line that says what must be, what came, the fix.

Everything runs in this process, and no kernel is compiled: what is wrong is told before the work begins.
"""

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from eqlayers.cli.main import main
from eqlayers.train.cli import TrainingCLI  # here: Lightning's log keeps the standard error of its import
from eqlayers.train.configuration import Command

ROOT = Path(__file__).resolve().parents[1]
SECRET = "hunter2"

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is deprecated, use .isinstance"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)"),
]

FILES = {
    "null.yaml": "data: {}\nema: null\n",
    "good.yaml": """\
name: good
data: {limit_train: 16, batch_size: 8}
model:
  model: {class_path: eqlayers.models.MoleculeNetwork, init_args: {hidden: 2x0e + 2x1o, layers: 1}}
trainer: {accelerator: cpu, max_epochs: 1}
""",
    "empty.yaml": "",
    "comment.yaml": "# nothing\n",
    "list.yaml": f"- {SECRET}\n- 2\n",
    "text.yaml": f"root:x:{SECRET}\nbin:x:{SECRET}\n",
    "shadow.yaml": f"root:*:{SECRET}:1:\n",
    "keys.yaml": f"{SECRET}: 1\npassword: {SECRET}\n",
    "broken.yaml": f"name: x\nmodel: [{SECRET}\n",
    "twice.yaml": f"name: {SECRET}\nname: b\n",
    "suite.yaml": "device: cpu\ncases: {}\n",
    "graphs.yaml": "graphs: {}\n",
    "unknown.yaml": "name: x\nmodel:\n  los: l1\n",
    "wrong.yaml": "name: x\nmodel:\n  learning_rate: fast\n",
    "section.yaml": "data: text.yaml\nname: x\n",
    "away.yaml": "name: ../../out\nmodel: {model: eqlayers.models.MoleculeNetwork}\n",
    "number.yaml": "name: 3\nmodel: {model: eqlayers.models.MoleculeNetwork}\n",
    "cutoff.yaml": """\
name: x
data: {cutoff: 4.0}
model: {model: {class_path: eqlayers.models.MoleculeNetwork, init_args: {cutoff: 5.0}}}
""",
    "x.json": "{",
    "list.json": f'["{SECRET}"]',
    "half.json": json.dumps({"kind": "run", "format": 1, "cases": [{}], "suite": SECRET}),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with all these files, and something outside it that must stay."""
    inside = tmp_path / "inside" / "deep"
    inside.mkdir(parents=True)
    for name, text in FILES.items():
        (inside / name).write_text(text)
    (inside / "binary.yaml").write_bytes(b"name: \xd0\xff\n" + SECRET.encode())
    (inside / "folder.yaml").mkdir()
    (tmp_path / "out" / "checkpoints").mkdir(parents=True)
    (tmp_path / "out" / "checkpoints" / "best.ckpt").write_text("kept")
    (tmp_path / "out" / "metrics.json").write_text("kept")
    monkeypatch.chdir(inside)
    return inside


# files as configurations -> message
CONFIGS = {
    "none.yaml": r"a configuration must be a file, got 'none\.yaml', which does not exist\. There is .*good\.yaml",
    "folder.yaml": r"a configuration must be a file, got 'folder\.yaml', which is a folder",
    "/dev/zero": r"a configuration must be a file, got '/dev/zero', which is a device",
    "empty.yaml": r"must be sections such as model, data and trainer .*, got nothing in empty\.yaml",
    "comment.yaml": r"must be sections such as model, data and trainer .*, got nothing in comment\.yaml",
    "list.yaml": r"must be sections such as model, data and trainer .*, got a list in list\.yaml",
    "text.yaml": r"must be sections such as model, data and trainer .*, got text in text\.yaml",
    "shadow.yaml": r"a key in shadow\.yaml, line 1 must be a known one, got one that is no name",
    "keys.yaml": r"keys\.yaml must be a configuration of training .*, got a mapping with none of them",
    "binary.yaml": r"must be text in UTF-8, got other bytes in binary\.yaml, line 1",
    "broken.yaml": r"must be YAML, got in broken\.yaml, line \d: expected ',' or ']', but got '<stream end>'",
    "twice.yaml": r"must be YAML, got in twice\.yaml, line 2: a key for the second time",
    "suite.yaml": r"got one of benchmarks\. Type `eqlayers bench run suite\.yaml`, or name another",
    "graphs.yaml": r"got one of benchmarks\. Type `eqlayers bench --help`",
    "unknown.yaml": r"a key in unknown\.yaml, line 3 must be a known one, got 'model\.los'\. Did you mean",
    "wrong.yaml": r"model\.learning_rate must be a number, got text\. Correct wrong\.yaml, line 3",
    "section.yaml": r"got text in text\.yaml",
    "away.yaml": r"name must be one plain folder name, got '\.\./\.\./out'\. Change --name",
    "null.yaml": r"ema must be a section of settings, got null in null\.yaml, line 2\. Set ema\.decay to 0",
    "number.yaml": r"name must be text, got a number\. Correct number\.yaml, line 1",
    "cutoff.yaml": r"init_args\.cutoff must be left out, or be data\.cutoff \(4\.0\), got 5\.0\. Set data\.cutoff",
    str(ROOT / "configs" / "bench" / "smoke.yaml"): r"got one of benchmarks\. Type `eqlayers bench run .*smoke\.yaml`",
}

# options after `fit -c good.yaml` -> message; what constructors refuse is in tests/test_bad_calls*.py, here one of each
OPTIONS = {
    "--name ../../out": r"name must be one plain folder name, got '\.\./\.\./out'",
    "--name ..": r"name must be one plain folder name, got '\.\.'",
    "--name a/b": r"name must be one plain folder name, got 'a/b'",
    "--name=": r"name must be one plain folder name, got ''",
    "--name": r"--name must have a value after it, got nothing\. Type `--name VALUE`",
    "--runs=": r"runs must be a folder, got ''",
    "--runs good.yaml": r"runs and name must make a folder, got 'good\.yaml/good'",
    "--threads 1.5": r"threads must be an integer, got '1\.5'\. Correct the option --threads",
    "--threads 1000000": r"threads must be a number of threads, at most \d+, got 1000000\. Use the cores",
    "--threads -1": r"threads must be a number of threads, at least 0, got -1",
    "--seed_everything -1": r"seed_everything must be an integer, at least 0, got -1",
    "--seed_everything 4294967296": r"seed_everything must be an integer, at most 4294967295, got 4294967296",
    "--seed_everything x": r"seed_everything must be true or false or an integer, got 'x'",
    "--test_after_fit maybe": r"test_after_fit must be true or false, got 'maybe'",
    "--ema.decay 1": r"the decay of the average must be in \[0, 1\), got 1\.0\. Set ema\.decay",
    "--ema.decay x": r"ema\.decay must be a number, got 'x'",
    "--ema null": r"ema must be a section of settings, got null\. Set ema\.decay to 0",
    "--ema=false": r"ema must be a section of settings, got false\. Set ema\.decay to 0",
    "--early_stopping null": r"early_stopping must be a section of settings, got null\. Set early_stopping\.patience",
    "--trainer.logger MLFlowLogger": r"loggers\.MLFlowLogger must find its package, got no mlflow\. Type: pip install",
    "--early_stopping.monitor loss": r"early_stopping\.monitor must be one of val/mae, .*, got 'loss'",
    "--checkpoint.monitor loss": r"checkpoint\.monitor must be one of val/mae, .*, got 'loss'",
    "--early_stopping.patience -1": r"early_stopping\.patience must be an integer, at least 0, got -1",
    "--early_stopping.mode up": r"options of trainer must fit together, got: `mode` can be min, max, got up\. Change",
    "--data.dataset qm8": r"data\.dataset must be one of mini, qm9, got 'qm8'",
    "--data.dataset qm9": r"root must be a folder for dataset=\"qm9\".*, got None\. Set for example",
    "--data.target energy": r"target must be one of mu, alpha, .*, got 'energy'",
    "--data.split standard": r"split \(dataset='mini'\) must be one of random, size, got 'standard'",
    "--data.cutoff 0": r"cutoff must be a positive number of Angstrom, got 0\.0\. Use a value such as 5",
    "--data.batch_size 0": r"batch_size must be an integer, at least 1, got 0",
    "--data.batch_size 2.5": r"data\.batch_size must be an integer, got '2\.5'",
    "--data.limit_train 5000": r"limit_train must be at most the 2228 of the training part, got 5000",
    "--data.offline x": r"data\.offline must be true or false, got 'x'",
    "--data.shifts none": r"data\.shifts must be one of regression, atomref, got 'none'",
    "--data.root nowhere": r"root: expected a folder with mini_qm9_xtb\.npz; nowhere/.* does not exist",
    "--data text.yaml": r"got text in text\.yaml",
    "--data=none.yaml": r"a configuration must be a file, got 'none\.yaml', which does not exist",
    "--trainer broken.yaml": r"must be YAML, got in broken\.yaml, line \d",
    "--model binary.yaml": r"must be text in UTF-8, got other bytes in binary\.yaml",
    "--model.model text.yaml": r"model\.model must be a value that its type takes, got one .*: .*text\.yaml",
    "--model.model nowhere.Net": r"No module named 'nowhere'",
    "--model.model eqlayers.models.Molecule": r"module 'eqlayers\.models' has no attribute 'Molecule'",
    "--model.model eqlayers.errors.ConfigError": r"ConfigError does not correspond to a subclass of Module",
    "--model.loss l3": r"model\.loss must be one of l1, huber, mse, got 'l3'",
    "--model.learning_rate 0": r"model\.learning_rate must be a positive number, got 0\.0",
    "--model.learning_rate nan": r"model\.learning_rate must be a (positive )?number, got '?nan",
    "--model.betas [1,2]": r"model\.betas must be a decay rate below 1, got 1\.0",
    "--model.betas 3": r"model\.betas must be a list or null, got '3'",
    "--model.lerning_rate 1": r"must be a known one, got 'model\.lerning_rate'\. Did you mean 'model\.learning_rate'",
    "--model.model.init_args.layer 1": r"key of eqlayers\.models\.MoleculeNetwork .* got 'layer'\. Did you mean",
    "--model.model.init_args.lmax x": r"model\.model\.init_args\.lmax must be an integer, got 'x'",
    "--model.model.init_args.lmax -1": r"lmax must be an integer, at least 0, got -1",
    "--model.model.init_args.hidden 3x1o": r"hidden must hold even scalars \(0e\), got 3x1o",
    "--model.model.init_args.backend cuda": r"backend must be one of .* or None, got 'cuda'",
    "--model.model.init_args.species [1,1]": r"species must be different elements.*, got H more than once",
    "--model.model.init_args.cutoff 3": r"init_args\.cutoff must be left out, or be data\.cutoff \(5\.0\), got 3\.",
    "--trainer.max_epochs many": r"trainer\.max_epochs must be an integer or null, got 'many'",
    "--trainer.max_time soon": r"options of trainer must fit together, got: .*is not a valid duration",
    "--trainer.accelerator xpu": r"options of trainer must fit together, got: .*accelerator='xpu'",
    "--trainer.devices -3": r"options of trainer must fit together, got: .*devices.* should be an int > 0",
    "--trainer.strategy foo": r"options of trainer must fit together, got: .*strategy='foo'",
    "--trainer.precision 12": r"trainer\.precision must be one of 64, 32, 16, .*, got '12'",
    "--trainer.gradient_clip_val -1": r"trainer\.gradient_clip_val must be a finite number of at least 0, got -1",
    "--trainer.default_root_dir x": r"trainer\.default_root_dir must be left out, .*, got 'x'\. Set --runs and --name",
    "--trainer.callbacks text.yaml": r"trainer\.callbacks must be a list or null, got 'text\.yaml'",
    "--trainer.logger text.yaml": r"trainer\.logger must be .*, got 'text\.yaml'",
    "--trainer.plugins text.yaml": r"trainer\.plugins must be .*, got 'text\.yaml'",
    "--trainer.profiler x": r"options of trainer must fit together, got: .*profiler",
    "--ckpt_path none.ckpt": r"a checkpoint must be a file, got nothing at none\.ckpt\. Run `eqlayers fit` first",
    "--ckpt_path .": r"a checkpoint must be a file, got a folder at",
    "--ckpt_path text.yaml": r"got text\.yaml \(\d+ bytes\): it is no whole archive",
    "--xyzzy 1": r"a key must be a known one, got 'xyzzy'\. `eqlayers fit FILE --help-all` lists them",
    "stray": r"an option must begin with --, got 'stray'\. Type `eqlayers fit -c FILE --key value`",
    "-c": r"-c/--config must have a value after it, got nothing",
}

# whole command lines -> message
LINES = {
    "fit": r"fit must have a configuration that names a network \(model\.model\), got none\. Type `eqlayers",
    "test": r"test must have a configuration that names a network .*\. Type `eqlayers test -c FILE`",
    "validate": r"validate must have a configuration that names a network",
    "predict": r"predict must have a configuration that names a network",
    "fit -c": r"-c/--config must have a value after it, got nothing",
    "fit -cnone.yaml": r"a configuration must be a file, got 'none\.yaml'",
    "fit --config=none.yaml": r"a configuration must be a file, got 'none\.yaml'",
    "test -c good.yaml": r"a checkpoint must be a file, got nothing at runs/good/checkpoints/best\.ckpt",
    "test -c good.yaml --name ../../out": r"name must be one plain folder name",
    "predict -c suite.yaml": r"got one of benchmarks",
    "validate -c text.yaml": r"got text in text\.yaml",
    "fitt": r"command must be one of .*, got 'fitt'\. Did you mean 'fit'",
    "--versio": r"eqlayers must have options that it knows, got '--versio'",
    "cache": r"eqlayers cache must have action after it, got nothing",
    "cache empty": r"action must be one of info, clear, got 'empty'",
    "info x": r"a potential must be a file, got nothing at x\.",
    "bench": r"eqlayers bench must have command after it, got nothing",
    "bench runn": r"command must be one of run, .*, got 'runn'\. Did you mean 'run'",
    "bench run": r"eqlayers bench run must have suite after it, got nothing",
    "bench run smoky": r"must be a file, got .*smoky\.yaml', which does not exist\. There is .*smoke\.yaml",
    "bench run ./text.yaml": r"text\.yaml must be a mapping, got a str",
    "bench run ./list.yaml": r"list\.yaml must be a mapping, got a list",
    "bench run ./empty.yaml": r"empty\.yaml must be a mapping, got nothing",
    "bench run ./keys.yaml": r"keys\.yaml must have keys among device, .*, got none of them",
    "bench run ./broken.yaml": r"must be YAML, got in broken\.yaml, line \d",
    "bench run ./binary.yaml": r"must be text in UTF-8, got other bytes in binary\.yaml",
    "bench run ./folder.yaml": r"which is a folder",
    "bench run ./good.yaml": r"must be a configuration of benchmarks, got one of training\. Type `eqlayers fit",
    "bench run ./suite.yaml": r"expected the key 'threads', got device, cases\. Add it",
    "bench run smoke --threads 0": r"--threads must be a positive integer, got '0'",
    "bench run smoke --threads x": r"--threads must be a positive integer, got 'x'",
    "bench run smoke --threads 1000000": r"threads must be a number of threads, at most \d+, got",
    "bench run smoke --peers e3n": r"got 'e3n'\. Did you mean 'e3nn'",
    "bench run smoke --backend fast": r"backend must be one of .*, got 'fast'",
    "bench run smoke --only nothing": r"--only must match a case of smoke, got 'nothing'",
    "bench run smoke --json .": r"--json must be a file that can be written, got '\.'",
    "bench run smoke --csv good.yaml/x": r"--csv must be a file that can be written, got 'good\.yaml/x'",
    "bench run smoke --json x --csv x": r"--json and --csv must be two files, got 'x' for both",
    "bench run smoke --thread 1": r"must have options that it knows, got '--thread'",
    "bench step --config ./text.yaml": r"text\.yaml must be a mapping",
    "bench step --config none/x": r"a configuration must be a file, got 'none/x', which does not exist",
    "bench cold": r"command must be one of run, .*, got 'cold'",
    "bench overhead --config ./keys.yaml": r"got none of them",
    "bench overhead --config ./list.yaml": r"list\.yaml must be a mapping",
    "bench accelerate": r"must have network after it, got nothing",
    "bench accelerate schnet": r"network must be one of .*, got 'schnet'",
    "bench report": r"must have file after it, got nothing",
    "bench report none.json": r"a result must be a file, got 'none\.json', which does not exist",
    "bench report x.json": r"a result must be JSON, got in x\.json, line 1",
    "bench report list.json": r"a result must be one of format 1, got another content",
    "bench report text.yaml": r"a result must be JSON, got in text\.yaml, line 1",
    "bench report binary.yaml": r"a result must be text in UTF-8, got other bytes",
    "bench report half.json": r"a result must have all that `eqlayers bench` writes, got one in 'half\.json'",
}

EVERY = [
    *((f"fit -c {name}", message) for name, message in CONFIGS.items()),
    *((f"fit -c good.yaml {options}", message) for options, message in OPTIONS.items()),
    *LINES.items(),
]


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that must be refused."""
    assert main(line.split(" ")) == 2
    captured = capsys.readouterr()
    lines = [text for text in captured.err.splitlines() if "eqlayers: error: " in text]
    assert len(lines) == 1
    assert "Traceback" not in captured.err
    assert SECRET not in captured.out + captured.err
    assert re.search(r"must |expected ", lines[0]), "what must be"
    assert re.search(r"got|does not exist", lines[0]), "what came"
    return lines[0]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("line", "message"), EVERY, ids=[line.replace(f"{ROOT}/", "") for line, _ in EVERY])
def test_command_that_cannot_be_carried_out(
    line: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert re.search(message, refused(line, capsys))
    out = place.parents[1] / "out"
    assert (out / "checkpoints" / "best.ckpt").read_text() == (out / "metrics.json").read_text() == "kept"
    assert not list(place.rglob("*.ckpt")), "nothing was trained"


def test_there_are_enough_of_them() -> None:
    assert len(EVERY) >= 120


@pytest.mark.parametrize("link", [".", "checkpoints", "csv", "tensorboard"])
def test_links_out_of_the_runs(link: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, out = place / "runs" / "good", place.parents[1] / "out"
    run.parent.mkdir()
    if link != ".":
        run.mkdir()
    (run / link if link != "." else run).symlink_to(out if link == "." else out / "checkpoints")
    for command in ("fit", "test"):
        message = refused(f"{command} -c good.yaml", capsys)
        assert re.search(r"must be a folder inside .*, got a symbolic link to .*\. Remove the link", message)
    assert {file.name: file.read_text() for file in out.rglob("*") if file.is_file()} == {
        "best.ckpt": "kept",
        "metrics.json": "kept",
    }


@pytest.mark.slow
def test_no_option_prints_the_file_that_it_is_given(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every key, with a file where its value belongs: the file's text never comes back."""
    keys: list[str] = []

    class Stop(Exception):
        pass

    class Keys(TrainingCLI):
        def parse_arguments(self, parser, args):
            keys.extend(str(key) for key, _ in parser.get_defaults(skip_validation=True).items())
            raise Stop

    with pytest.raises(Stop):
        Keys(Command.of(["fit"]))
    keys += ["trainer", "model", "data", "ema", "early_stopping", "model.model.init_args.hidden", "config"]
    assert len(keys) > 60
    for key, file in zip(keys, itertools.cycle(("text.yaml", "list.yaml", "keys.yaml", "broken.yaml")), strict=False):
        assert main(["fit", "-c", "good.yaml", f"--{key}", file, "--ckpt_path", "none.ckpt"]) == 2, key
        captured = capsys.readouterr()
        assert SECRET not in captured.out + captured.err, key


def test_a_result_that_would_write_elsewhere(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored = sorted((ROOT / "tests" / "bench" / "stored").rglob("*.json"))
    result = next(content for content in (json.loads(path.read_text()) for path in stored) if content["kind"] == "run")
    for change in (
        {"suite": "../../../out/x"},
        {"suite": "x", "cases": [c | {"group": "../g"} for c in result["cases"]]},
    ):
        (place / "r.json").write_text(json.dumps(result | change))
        assert main(["bench", "report", "r.json", "--out", "report"]) == 2
        error = capsys.readouterr().err
        assert re.search(r"must be one plain file name, got .*\. Rename the suite, its groups and problems\.", error)
        assert not (place / "report").exists()
        assert not list((place.parents[1] / "out").glob("x*"))


@pytest.mark.parametrize(
    "line",
    ["fitt", *(pytest.param(line, marks=pytest.mark.slow) for line in ("fit -c text.yaml", "bench run ./text.yaml"))],
)
def test_a_process_ends_with_one_line(line: str, place: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "eqlayers", *line.split()], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("eqlayers: error: ")
    assert done.stderr.count("\n") == 1
    assert SECRET not in done.stderr + done.stdout
