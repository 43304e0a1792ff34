"""Whole commands, in this process where Lightning is needed. Bad input: tests/test_bad_commands.py."""

import csv
import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import lightning.pytorch  # noqa: F401 -- logs go to the stream of its first import, which must not be a test's
import pytest
import torch
import yaml

from eqlayers.cli.main import main, molecules
from eqlayers.errors import ConfigError
from eqlayers.models import NequIP, Potential, save_potential
from eqlayers_kernels.c.build import cache as disk
from tests.fresh import fresh

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
DOWNLOADED = ("rmd17", "3bpa")  # tests/train/test_published_sets.py runs them on made-up files; rmd17 is slow

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval"),
    pytest.mark.filterwarnings("ignore:.*is deprecated, use .isinstance"),
    pytest.mark.filterwarnings("ignore:.*GPU available but not used"),
    pytest.mark.filterwarnings(r"ignore:[\s\S]*(was deprecated in v|JsonargparseDeprec)"),
]

TINY = """
name: tiny
threads: 1
data: {limit_train: 48, batch_size: 16, cutoff: 4.0}
model:
  learning_rate: 0.01
  warmup_steps: 2
  model:
    class_path: eqlayers.models.MoleculeNetwork
    init_args: {hidden: 4x0e + 4x1o, layers: 1, num_basis: 4, radial_hidden: [8]}
trainer: {accelerator: cpu, max_epochs: 2, log_every_n_steps: 1}
ema: {decay: 0.9}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    settings = yaml.safe_load(TINY)
    settings["runs"] = str(folder / "runs")
    settings["data"]["cache_dir"] = str(folder / "cache")
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    return folder


@pytest.fixture(scope="module")
def fitted(place: Path) -> Path:
    assert main(["fit", "-c", str(place / "tiny.yaml")]) == 0
    return place


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """The message of a command that must be refused, in one line."""
    assert main(args) == 2
    error = capsys.readouterr().err
    assert error.count("eqlayers: error: ") == 1
    assert "Traceback" not in error
    return error.split("eqlayers: error: ")[1].strip()


def test_fit_tests_the_best_weights_and_reports(fitted: Path) -> None:
    run = fitted / "runs" / "tiny"
    files = {path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file()}
    expected = "config.yaml metrics.json parity.png learning_curve.png checkpoints/best.ckpt checkpoints/last.ckpt"
    assert set(expected.split()) <= files
    metrics = json.loads((run / "metrics.json").read_text())
    assert (metrics["steps"], metrics["seed"], metrics["threads"], metrics["name"]) == (6, 2026, 1, "tiny")


def test_verbose_prints_the_table_of_layers(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--name", "verbose", "--trainer.fast_dev_run=true", "--test_after_fit=false"]
    assert main(["fit", "-c", str(place / "tiny.yaml"), *options]) == 0
    assert "network: MoleculeNetwork on cpu, " in capsys.readouterr().out
    assert main(["fit", "-c", str(place / "tiny.yaml"), *options, "--verbose"]) == 0
    assert "irreps in" in capsys.readouterr().out


def test_commands_after_fit_use_the_best_weights_and_the_saved_configuration(fitted: Path, capsys) -> None:
    run = fitted / "runs" / "tiny"
    before = json.loads((run / "metrics.json").read_text())
    assert main(["test", "-c", str(run / "config.yaml")]) == 0
    after = json.loads((run / "metrics.json").read_text())
    assert after["test_U0_mae_meV"] == before["test_U0_mae_meV"]
    assert after["train_time_s"] == before["train_time_s"]
    assert main(["validate", "-c", str(fitted / "tiny.yaml")]) == 0
    assert "checkpoints/best.ckpt" in capsys.readouterr().out.replace("\n", "")
    assert main(["predict", "-c", str(fitted / "tiny.yaml")]) == 0
    with (run / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == before["num_test"]
    mean = sum(abs(float(row["true"]) - float(row["predicted"])) for row in rows) / len(rows) * 1000
    assert mean == pytest.approx(before["test_U0_mae_meV"], rel=1e-11)


def test_checkpoint_alone_rebuilds_the_module(fitted: Path) -> None:
    from eqlayers.train import PropertyModule

    path = fitted / "runs" / "tiny" / "checkpoints" / "best.ckpt"
    module = PropertyModule.load_from_checkpoint(path)
    assert module.model.cutoff == 4.0
    saved = torch.load(path, weights_only=True)["state_dict"]
    assert all(torch.equal(value, saved[name]) for name, value in module.state_dict().items())


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # the copy is another folder
def test_resume_goes_on_and_options_count(fitted: Path) -> None:
    copy = fitted / "runs" / "longer"
    shutil.copytree(fitted / "runs" / "tiny", copy)
    last = str(copy / "checkpoints" / "last.ckpt")
    options = ["--name", "longer", "--trainer.max_epochs", "3", "--model.weight_decay", "0.25", "--resume"]
    options += ["--threads", "2"]
    assert main(["fit", "-c", str(fitted / "tiny.yaml"), *options, "--test_after_fit", "false"]) == 0
    rows = json.loads((copy / "history.json").read_text())
    assert [row["step"] for row in rows] == [3, 6, 9]
    assert torch.get_num_threads() == 2
    assert "weight_decay: 0.25" in (copy / "config.yaml").read_text()
    assert torch.load(last, weights_only=True)["hyper_parameters"]["weight_decay"] == 0.25


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ema:", "emma:", "got 'emma.decay'. Did you mean 'ema.decay'"),
        (
            "MoleculeNetwork",
            "MoleculeNet",
            "got one that it refuses: 'MoleculeNet'. Use eqlayers.models.MoleculeNetwork.",
        ),
        ("max_epochs: 2", "max_epochs: -1", "Set trainer.max_epochs"),
    ],
)
def test_bad_files(old: str, new: str, message: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (place / "tiny.yaml").read_text()
    assert old in text
    (place / "bad.yaml").write_text(text.replace(old, new))
    assert message in fails(capsys, "fit", "-c", str(place / "bad.yaml"), "--name", "bad")


def test_checkpoint_of_another_network(fitted: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = (fitted / "runs" / "tiny" / "config.yaml").read_text()
    options = ["--model.model.init_args.num_basis", "5", "--resume"]
    message = fails(capsys, "fit", "-c", str(fitted / "tiny.yaml"), *options)
    assert "model.model.init_args.num_basis: 4 -> 5" in message
    assert (fitted / "runs" / "tiny" / "config.yaml").read_text() == kept


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_line_of_a_configuration_is_explained(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line.strip() and not line.startswith("#")]
    sections = ("data:", "model:", "trainer:", "ema:", "early_stopping:", "init_args:", "class_path:")
    bare = [line for line in lines if "#" not in line and not line.strip().startswith(sections)]
    assert bare == []


@pytest.mark.filterwarnings("ignore:this split was published for")  # the fixture is smaller
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.slow] * (path.stem == "ethanol_equiformer"))
        for path in CONFIGS
        if path.stem not in DOWNLOADED
    ],
    ids=lambda path: path.stem,
)
def test_every_configuration_runs(path: Path, tmp_path: Path) -> None:
    options = ["--runs", str(tmp_path), "--trainer.fast_dev_run=true", "--data.cache_dir", str(tmp_path), "--threads=1"]
    options += ["--data.batch_size=4", "--data.eval_batch_size=4"]
    if path.stem == "qm9":
        fixture = tmp_path / "qm9"
        shutil.copytree(ROOT / "tests" / "fixtures" / "qm9", fixture)
        options += ["--data.root", str(fixture), "--data.num_workers=0", "--trainer.accelerator=cpu"]
        options += ["--model.model.init_args.hidden", "8x0e + 8x1o + 8x2e"]
    if path.stem == "fine_tuning":
        start = tmp_path / "potential.pt"
        network = NequIP([1, 6, 8], "4x0e + 4x1o", lmax=1, layers=2, cutoff=4.0)
        save_potential(Potential(network, network.species), start)
        options += ["--start_from", str(start)]
    assert main(["fit", "-c", str(path), *options]) == 0


def test_help_version_and_info_do_not_import_lightning() -> None:
    probe = (
        "import sys; from eqlayers.cli.main import main; main(['--version']); main(['info']); main([]); "
        "assert not {'lightning', 'jsonargparse', 'rich', 'matplotlib', 'eqlayers.bench'} & set(sys.modules)"
    )
    done = fresh(probe, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "    triton: " in done.stdout, "the verdict of every backend belongs to the information"
    assert "eqlayers fit configs/qm9_mini.yaml" in done.stdout


@pytest.mark.parametrize(
    ("package", "command", "extra"), [("lightning", ["fit"], "train"), ("torch_geometric", ["bench", "step"], "train")]
)
def test_a_command_without_its_extra_names_the_extra(package: str, command: list[str], extra: str) -> None:
    probe = (
        f"import sys; sys.modules[{package!r}] = None; from eqlayers.cli.main import main; sys.exit(main({command!r}))"
    )
    done = fresh(probe, cwd=ROOT)
    assert done.returncode == 2, done.stderr
    assert f"pip install 'eqlayers[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_step_takes_real_molecules(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(place / "cache"))
    batch = molecules({"dataset": "mini", "target": "U0", "cutoff": 4.0, "batch_size": 8})
    assert (batch.num_graphs, len(batch.y)) == (8, 8)
    assert int(batch.edge_index.max()) < len(batch.z) == len(batch.pos) == len(batch.batch)
    assert set(batch.z.tolist()) <= set(batch.shifts)
    with pytest.raises(ConfigError, match="expected options of MoleculeDataModule"):
        molecules({"cutof": 4.0})


def kernels_in(folder: Path, monkeypatch: pytest.MonkeyPatch, payloads: list[bytes]) -> Path:
    """A cache folder with kernels of these contents; returns where they lie."""
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(folder))
    for number, payload in enumerate(payloads):
        disk.store(f"kernel-{number:064x}", payload)
    return folder / "kernels"


def test_cache_info_and_clear(tmp_path, monkeypatch, capsys) -> None:
    folder = kernels_in(tmp_path, monkeypatch, [b"x" * 3 * 2**19, b"y" * 2**20])
    (folder / "notes.txt").write_text("of another user")
    assert main(["cache", "info"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["folder", str(folder)],
        ["kernels", "2"],
        ["size", "2.5 MiB of at most 512 MiB"],
        ["problem", "none"],
    ]
    for removed in ("2 kernels", "0 kernels"):
        assert main(["cache", "clear"]) == 0
        assert capsys.readouterr().out == f"removed {removed} from {folder}\n"
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]
    kernels_in(tmp_path, monkeypatch, [b"z"])
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("removed 1 kernel from ")


def test_cache_before_anything_was_compiled(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "new"))
    assert main(["cache", "info"]) == 0
    assert "kernels  0\nsize     0.0 MiB" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 0
    assert capsys.readouterr().out.startswith("removed 0 kernels")
    assert not (tmp_path / "new").exists(), "a command that only looks makes no folder"


def test_cache_that_others_can_write(tmp_path, monkeypatch, capsys) -> None:
    folder = kernels_in(tmp_path, monkeypatch, [b"x"])
    folder.chmod(0o777)
    assert main(["cache", "info"]) == 0
    assert "problem  expected a folder that only its owner can write, its mode is 777" in capsys.readouterr().out
    message = fails(capsys, "cache", "clear")
    assert "must be yours to empty, got: expected a folder that only its owner can write, its mode is 777" in message
    assert "set EQLAYERS_CACHE_DIR" in message
    assert len(list(folder.iterdir())) == 1


def test_cache_whose_place_is_a_file(tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("EQLAYERS_CACHE_DIR", str(tmp_path / "file"))
    assert main(["cache", "info"]) == 0
    assert "Not a directory" in capsys.readouterr().out
    assert "Not a directory" in fails(capsys, "cache", "clear")


@pytest.mark.parametrize("command", ["fit", "bench"])
def test_ctrl_c_ends_in_one_line(command, monkeypatch, capsys):
    """Also while packages are imported, when nothing was compiled."""

    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"eqlayers.cli.main.{'train' if command == 'fit' else 'bench'}", interrupted)
    assert main([command, "anything"]) == 130
    assert capsys.readouterr().err == "eqlayers: interrupted\n"


@pytest.mark.parametrize("module", ["eqlayers", "eqlayers.cli.main"])
def test_both_modules_are_the_command(module: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys.modules["eqlayers.cli"], "main", sys.modules["eqlayers.cli.main"])  # put back in the end
    for name in ("eqlayers.cli.main", "eqlayers.__main__"):  # else runpy warns that it was imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    for words, status, out in ((["--version"], 0, "eqlayers "), (["fitt"], 2, "")):
        monkeypatch.setattr(sys, "argv", [module, *words])
        with pytest.raises(SystemExit) as ended:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        assert ended.value.code == status
        assert capsys.readouterr().out.startswith(out)


def test_programs_of_mace_say_what_they_need(monkeypatch, capsys) -> None:
    monkeypatch.setattr("eqlayers.integrations.mace.find_spec", lambda name: None)
    assert main(["mace", "train"]) == 2
    assert "pip install mace-torch" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["cache", "--help"], []], ids=str)
def test_what_needs_no_torch_imports_none(words: list[str]) -> None:
    """A help is there at once: modules are counted, as seconds are those of a machine."""
    code = (
        f"import sys; from eqlayers.cli.main import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout
    loaded = {name.split(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "numpy", "e3nn", "lightning", "triton", "ase"}
    assert len(done.stderr.split()) < 250
