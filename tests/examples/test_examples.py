"""The scripts of `examples/` run, with short settings, and end with a check that passed."""

import importlib.util
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("lightning")

from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io import read, write

from eqlayers.integrations.ase import Calculator
from eqlayers.models import Potential, Structures, save_potential
from eqlayers.testing import ToyNetwork
from eqlayers.train import quiet_lightning

ROOT = Path(__file__).resolve().parents[2]


def example(name: str) -> ModuleType:
    """A script, not run."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(module: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The text that an example prints."""
    monkeypatch.setattr(sys, "argv", ["example", *words])
    threads = torch.get_num_threads()
    try:
        with quiet_lightning():
            module.main()
    finally:
        torch.set_num_threads(threads)
    text = capsys.readouterr().out
    assert text.splitlines()[-1].startswith("check passed: ")
    return text


def test_dynamics_can_be_run_again(tmp_path: Path) -> None:
    """After another training of the same name, whose folder has the trajectory of the first."""
    save_potential(Potential(ToyNetwork(3), [1, 6, 8]), tmp_path / "potential.pt")
    module = example("07_dynamics")
    module.SETTINGS = replace(module.SETTINGS, steps=20)
    first, again = (module.dynamics(tmp_path) for _ in range(2))
    assert first.shape == (3, 2)
    assert (first == again).all()


@pytest.mark.slow
def test_own_structures(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A periodic file of a user, chains with stress, in place of the molecule that the script brings."""
    monkeypatch.chdir(tmp_path)
    calculator, frames = Calculator(Potential(ToyNetwork(1, cutoff=3.5), [8]), torch.float64), []
    for seed in range(60):
        atoms = Atoms("O4", [[1.25 * number, 0, 0] for number in range(4)], cell=[5.0, 12.0, 12.0], pbc=True)
        atoms.rattle(0.05, seed=seed)
        atoms.calc = calculator
        results = {name: atoms.calc.get_property(name, atoms) for name in ("energy", "forces", "stress")}
        atoms.calc = SinglePointCalculator(atoms, **results)
        frames.append(atoms)
    write("my.xyz", frames)
    module = example("09_own_structures")
    module.STEPS.update(fit=250, dynamics=100)
    text = run(module, monkeypatch, capsys, "my.xyz")
    assert re.search(r"^(\d+) of \1 properties hold$", text, re.MULTILINE)
    metrics = json.loads((module.RUN / "metrics.json").read_text())
    assert metrics["test_stress_mae_meV_A3"] > 0
    assert len(read(module.RUN / "md.traj", ":")) == 101
    assert (module.RUN / "md.png").stat().st_size > 10_000


@pytest.mark.slow
def test_own_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    module = example("10_own_network")
    module.STEPS = 20
    run(module, monkeypatch, capsys)


@pytest.mark.slow
def test_the_compiled_network_takes_any_number_of_atoms() -> None:
    """Also three in the first call, whose number is that of coordinates, as torch's tracer notices."""
    module = example("10_own_network")
    potential = Potential(module.Network((1, 8), width=4), (1, 8)).double().eval()
    torch._dynamo.reset()
    compile_, torch.compile = torch.compile, lambda f, **options: compile_(f, backend="aot_eager", **options)
    try:
        compiled = module.compiled(potential)
    finally:
        torch.compile = compile_
    made = torch.Generator().manual_seed(0)

    def compared(count: int) -> None:
        pairs = torch.tensor([[i, j] for i in range(count) for j in range(count) if i != j]).T
        pos = 2 * torch.rand(count, 3, generator=made, dtype=torch.float64)
        structures = Structures(torch.tensor([8, 1, 1, 8, 1, 8, 1])[:count], pos, pairs)
        expected = potential(structures)
        energy, forces = compiled(structures)
        torch.testing.assert_close(energy.detach(), expected["energy"].sum(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(forces.detach(), expected["forces"], rtol=1e-11, atol=1e-11)

    compared(3)
    compared(5)
    with torch.compiler.set_stance("fail_on_recompile"):
        compared(4)
        compared(7)


@pytest.mark.long
def test_mace_from_layers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module = example("11_mace_from_layers")
    monkeypatch.setattr(module.Network.__init__, "__defaults__", (module.SPECIES, 4, 2, 4.0, 8.0))
    assert "forces [9, 3]" in run(module, monkeypatch, capsys)


def test_vibrations(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A potential that was never trained: its minimum is another molecule, with the same laws."""
    path = tmp_path / "potential.pt"
    save_potential(Potential(ToyNetwork(3), [1, 6, 8]), path)
    text = run(example("12_vibrations"), monkeypatch, capsys, str(path))
    assert "Zero-point energy" in text
    assert (tmp_path / "vibrations.png").stat().st_size > 10_000
    with pytest.raises(SystemExit, match=r"there is no none\.pt; train it first: python examples/09"):
        run(example("12_vibrations"), monkeypatch, capsys, "none.pt")


def test_own_product(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "one formula: cpu runs" in run(example("14_own_product"), monkeypatch, capsys)


def test_attention(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "mlp: features [9, 52]" in run(example("15_attention"), monkeypatch, capsys)


def test_so2_convolution(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--degrees", "2", "--channels", "2", "--nodes", "5", "--edges", "12"]
    lines = run(example("13_so2_convolution"), monkeypatch, capsys, *sizes).splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:] == ["2"]
