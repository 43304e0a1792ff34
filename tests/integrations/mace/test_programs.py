"""`eqlayers mace`: training as mace_run_train does, files that load without this package, and the file for LAMMPS."""

import logging
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ase
import ase.io
import numpy as np
import pytest
import torch
from mace.calculators import MACECalculator
from mace.cli import run_train
from mace.tools import build_default_arg_parser
from mace.tools.scripts_utils import extract_config_mace_model

from eqlayers.cli.main import main
from eqlayers.errors import ConfigError
from eqlayers.integrations import Report, accelerate
from eqlayers.integrations import mace as programs
from eqlayers.integrations.kinds.harmonics import RebuiltWarning
from eqlayers.integrations.replacement import Replacement
from tests.integrations import guests

pytestmark = pytest.mark.filterwarnings("ignore")  # MACE's own; ours are asked for by name
OPTIONS = "--E0s average --valid_fraction 0.25 --hidden_irreps 4x0e+4x1o --MLP_irreps 4x0e --r_max 4"
OPTIONS += (
    " --num_radial_basis 4 --max_ell 2 --correlation 2 --batch_size 3 --default_dtype float64 --device cpu --seed 5"
)
OPTIONS += " --energy_key REF_energy --forces_key REF_forces --error_table PerAtomRMSE --eval_interval 1"
STAGES = "--max_num_epochs 3 --swa --start_swa 2 --ema"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight molecules with labels of a random number generator."""
    rng, path = np.random.default_rng(0), tmp_path_factory.mktemp("data") / "water.xyz"
    frames = []
    for _ in range(8):
        frame = ase.Atoms("OH2", positions=[[0, 0, 0], [0.8, 0.6, 0], [-0.8, 0.6, 0]] + 0.1 * rng.normal(size=(3, 3)))
        frame.info["REF_energy"], frame.arrays["REF_forces"] = rng.normal(), rng.normal(size=(3, 3))
        frames.append(frame)
    ase.io.write(path, frames)
    return path


def arguments(data: Path, folder: Path, extra: str) -> list[str]:
    return [*f"--name water --train_file {data} --work_dir {folder} {OPTIONS} {extra}".split()]


def alone() -> None:
    """MACE's loggers of earlier runs in this process would write what this one says."""
    for handler in [*logging.getLogger().handlers]:
        if type(handler) in (logging.FileHandler, logging.StreamHandler):
            logging.getLogger().removeHandler(handler)


def ours(args: list[str]) -> Report:
    alone()
    return programs.train(args)


def plain(args: list[str]) -> None:
    alone()
    run_train.run(build_default_arg_parser().parse_args(args))


def printed(folder: Path) -> list[str]:
    """Errors in the log: of every epoch, and the tables at the end."""
    (log,) = (path for path in folder.glob("logs/*.log") if "debug" not in path.name)
    lines = [line.split("INFO:")[-1].strip() for line in log.read_text().splitlines()]
    return [line for line in lines if re.search(r"Epoch \d+: |Initial: |^\| +\w+", line)]


def models(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.model"))


def our_layers(model: torch.nn.Module) -> int:
    return sum(isinstance(module, Replacement) for module in model.modules())


@pytest.fixture(scope="module")
def foundation(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model to start from."""
    folder = tmp_path_factory.mktemp("foundation")
    plain(arguments(data, folder, "--max_num_epochs 1"))
    return folder / "water.model"


@pytest.mark.parametrize("kind", ["stages", "lora"])
def test_training_prints_the_errors_of_mace_and_writes_files_without_ours(
    kind: str, data: Path, foundation: Path, tmp_path: Path
) -> None:
    extra = STAGES
    if kind == "lora":
        extra = f"--max_num_epochs 2 --foundation_model {foundation} --multiheads_finetuning False --lora True"
    folders = [tmp_path / "plain", tmp_path / "ours"]
    plain(arguments(data, folders[0], extra))
    before = run_train.deepcopy, run_train.jit, run_train.get_params_options
    report = ours(arguments(data, folders[1], extra))
    assert (run_train.deepcopy, run_train.jit, run_train.get_params_options) == before
    errors = printed(folders[0])
    assert len(errors) > 4
    assert printed(folders[1]) == errors
    paths = [row.path for row in report.replaced]
    assert "interactions.0.conv_tp" in paths
    assert kind == "stages" or {"interactions.0.linear_up.lora_A", "interactions.0.linear_up.base"} <= set(paths)
    (log,) = (path for path in folders[1].glob("logs/*.log") if "debug" not in path.name)
    assert report.summary() in log.read_text()
    assert models(folders[1]) == models(folders[0])
    code = (
        "import sys, torch; sys.modules['eqlayers'] = None; sys.modules['eqlayers_kernels'] = None\n"
        "for path in sys.argv[1:]: (torch.jit.load if 'compiled' in path else torch.load)(path)"
    )
    files = [str(path) for path in (*folders[1].glob("*.model"), *folders[1].glob("checkpoints/*"))]
    subprocess.run([sys.executable, "-c", code, *files], check=True)
    one, two = (torch.load(folder / "water.model", weights_only=False) for folder in folders)
    assert not our_layers(two)
    assert list(one.state_dict()) == list(two.state_dict())
    for key, value in one.state_dict().items():
        torch.testing.assert_close(two.state_dict()[key], value, rtol=1e-9, atol=1e-9)


def test_tables_in_training_are_not_in_its_files(data: Path, tmp_path: Path) -> None:
    report = ours(arguments(data, tmp_path, "--max_num_epochs 1 --eqlayers_radial table --eqlayers_tolerance 1e-3"))
    assert [row.path for row in report.replaced if row.target == "radial"]
    assert not our_layers(torch.load(tmp_path / "water.model", weights_only=False))


def test_a_training_goes_on_from_the_checkpoint_of_the_other_program(data: Path, tmp_path: Path) -> None:
    begin, on = "--max_num_epochs 1", "--max_num_epochs 2 --restart_latest"
    results = []
    for first, second in ((plain, plain), (plain, ours), (ours, plain)):
        folder = tmp_path / str(len(results))
        first(arguments(data, folder, begin))
        second(arguments(data, folder, on))
        results.append(printed(folder))
    assert any("Epoch 1: " in line for line in results[0])
    assert results[1] == results[0]
    assert results[2] == results[0]


def test_a_compiled_file_that_is_not_written_is_said(monkeypatch, caplog) -> None:
    def fail(model: Any) -> None:
        raise RuntimeError("no such operator\nmore")

    monkeypatch.setattr("e3nn.util.jit.compile", fail)
    with pytest.raises(RuntimeError):  # MACE passes over it
        programs._scripted(torch.nn.Identity())
    assert "the _compiled.model is not written: RuntimeError: no such operator" in caplog.text


@pytest.mark.parametrize("option", ["--enable_cueq True", "--enable_oeq True", "--only_cueq True"])
def test_layers_of_others_are_refused(option: str, data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=option.split()[0]):
        programs.train(arguments(data, tmp_path, option))


def test_another_mace_is_refused(monkeypatch: pytest.MonkeyPatch, data: Path, tmp_path: Path) -> None:
    monkeypatch.delattr(run_train, "get_params_options")
    with pytest.raises(ConfigError, match="get_params_options"):
        programs.train(arguments(data, tmp_path, ""))


def model() -> torch.nn.Module:
    return guests.mace(hidden="4x0e + 4x1o", correlation=2, sizes=(7, 1)).make(torch.float64)


def test_a_model_that_is_built_anew_without_our_layers_is_said() -> None:
    fast = model()
    extract_config_mace_model(fast)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RebuiltWarning)
        accelerate(fast)
        accelerate(fast)
        MACECalculator(models=[fast], default_dtype="float64")
        extract_config_mace_model(model())
    with pytest.warns(RebuiltWarning, match="compile_mode"):
        MACECalculator(models=[fast], default_dtype="float64", compile_mode="default")


class Lammps:
    """Operands of MACE in `pair_style mliap`: real atoms, ghosts that are images of them, pairs with lengths."""

    def __init__(self, atoms: ase.Atoms, cutoff: float, kinds: list[int]) -> None:
        positions, cell = atoms.positions, atoms.cell.array
        owners = list(range(len(atoms)))
        where = list(positions)
        reach = range(-2, 3)
        for shift in ((a, b, c) for a in reach for b in reach for c in reach if (a, b, c) != (0, 0, 0)):
            for atom, position in enumerate(positions + np.array(shift) @ cell):
                if np.linalg.norm(position - positions, axis=1).min() < cutoff:
                    owners.append(atom)
                    where.append(position)
        away = np.array(where)[None] - positions[:, None]
        lengths = np.linalg.norm(away, axis=2)
        self.pair_i, self.pair_j = np.nonzero((lengths < cutoff) & (lengths > 1e-6))
        self.rij = away[self.pair_i, self.pair_j]
        self.nlocal, self.ntotal, self.npairs = len(atoms), len(owners), len(self.pair_i)
        self.owners = torch.tensor(owners)
        self.elems = np.array([kinds.index(number) for number in atoms.numbers])[owners]
        self.eatoms = np.zeros(self.nlocal)
        self.energy = 0.0
        self.exchanges = 0

    def forward_exchange(self, features: torch.Tensor, out: torch.Tensor, width: int) -> None:
        """Ghosts get the rows of their owners."""
        self.exchanges += 1
        out.copy_(features[self.owners])

    def reverse_exchange(self, gradient: torch.Tensor, out: torch.Tensor, width: int) -> None:
        """Owners get the sum over their ghosts."""
        out.zero_().index_add_(0, self.owners, gradient)

    def update_pair_forces_gpu(self, pairs: torch.Tensor) -> None:
        forces = np.zeros((self.ntotal, 3))
        np.add.at(forces, self.pair_i, pairs.detach().numpy())
        np.add.at(forces, self.pair_j, -pairs.detach().numpy())
        self.forces = np.zeros((self.nlocal, 3))
        np.add.at(self.forces, self.owners.numpy(), forces)


def crystal(numbers: list[int]) -> ase.Atoms:
    rng = np.random.default_rng(3)
    return ase.Atoms(numbers=rng.choice(numbers, 6), positions=rng.random((6, 3)) * 4, cell=[4.6, 5.1, 5.6], pbc=True)


@pytest.mark.parametrize("accelerated", [False, True])
def test_the_file_for_lammps_with_ghosts_and_exchange(accelerated: bool, tmp_path, capsys) -> None:
    network = model()
    kinds = network.atomic_numbers.tolist()
    atoms = crystal(kinds)
    atoms.calc = MACECalculator(models=[network], default_dtype="float64")
    energies, forces = atoms.calc.get_property("node_energy", atoms), atoms.get_forces()
    energy = atoms.get_potential_energy()
    if accelerated:
        accelerate(network)
    torch.save(network, tmp_path / "my.model")
    assert main(["mace", "lammps", str(tmp_path / "my.model"), str(tmp_path / "my-mliap.pt")]) == 0
    assert "modules replaced" in capsys.readouterr().out
    interface: Any = torch.load(tmp_path / "my-mliap.pt", weights_only=False)
    assert our_layers(interface.model) > 5
    lammps = Lammps(atoms, float(network.r_max), kinds)
    interface.compute_forces(lammps)
    assert lammps.ntotal > lammps.nlocal
    assert lammps.exchanges == 1  # before the second of two layers
    np.testing.assert_allclose(lammps.energy, energy, rtol=1e-12)
    assert np.ptp(energies) > 0
    np.testing.assert_allclose(lammps.forces, forces, rtol=0, atol=1e-12 * np.abs(forces).max())


def test_the_file_for_lammps_with_tables(tmp_path: Path) -> None:
    network = model()
    energies = []
    for radial in (None, "table"):
        programs.write_lammps(network, tmp_path / "my.pt", radial=radial)
        assert not our_layers(network)
        lammps = Lammps(crystal(network.atomic_numbers.tolist()), float(network.r_max), network.atomic_numbers.tolist())
        interface: Any = torch.load(tmp_path / "my.pt", weights_only=False)
        interface.compute_forces(lammps)
        energies.append(lammps.forces)
    scale = np.abs(energies[0]).max()
    assert 0 < np.abs(energies[1] - energies[0]).max() < 1e-2 * scale  # tables were made for 1e-4 of the weights


def test_bad_models_for_lammps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.pt"
    with pytest.raises(ConfigError, match="MACE of mace-torch"):
        programs.write_lammps(torch.nn.Identity(), target)
    network = model()
    network.heads = ["pbe", "scan"]
    with pytest.raises(ConfigError, match="head must"):
        programs.write_lammps(network, target)
    with pytest.raises(ConfigError, match="head must"):
        programs.write_lammps(network, target, head="r2scan")
    (tmp_path / "text.model").write_text("no model")
    assert main(["mace", "lammps", str(tmp_path / "text.model"), str(target)]) == 2
    assert main(["mace", "lammps", str(tmp_path / "none.model"), str(target)]) == 2
    assert main(["mace", "dance"]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not target.exists()
