"""NequIP's compiled models: `nequip-compile` with the modifier, and its training-time `compile_mode`."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.build
import numpy as np
import pytest
import torch
from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict
from nequip.model import NequIPGNNModel
from nequip.model.modify_utils import modify
from nequip.scripts._compile_utils import COMPILE_TARGET_DICT
from nequip.utils.global_state import set_global_state

from eqlayers.errors import ConfigError

ENABLE = {"modifier": "enable_eqlayers"}
QUIET = {**os.environ, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
OPTIONS = {
    "seed": 1,
    "model_dtype": "float64",
    "type_names": ["Cu"],
    "r_max": 4.0,
    "l_max": 1,
    "parity": False,  # a smaller graph to compile
    "num_layers": 2,
    "num_features": 4,
    "radial_mlp_width": 8,
    "avg_num_neighbors": 12.0,
    "per_type_energy_shifts": {"Cu": 0.1},
    "per_type_energy_scales": {"Cu": 1.0},
}
ROUNDING = 1e4 * np.finfo(float).eps  # of sums over some dozen edges, channels and layers


@pytest.fixture(autouse=True)
def double() -> object:
    """NequIP works with float64 as the default dtype."""
    before = torch.get_default_dtype()
    set_global_state()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def crystal(shake: float) -> ase.Atoms:
    atoms = ase.build.bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(shake, seed=4)
    return atoms


def data(*shakes: float) -> AtomicDataDict.Type:
    frames = []
    for shake in shakes:
        atoms = crystal(shake)
        frame = {"pos": atoms.positions, "cell": atoms.cell.array, "pbc": True, "atom_types": np.zeros(len(atoms), int)}
        frames.append(compute_neighborlist_(from_dict(frame), r_max=4.0))
    return AtomicDataDict.batched_from_list(frames)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")  # torch's own
def test_training_time_compilation() -> None:
    plain = NequIPGNNModel(**OPTIONS)
    fast = NequIPGNNModel(**OPTIONS, compile_mode="compile")
    modify(fast, [ENABLE])
    batch = data(0.1, 0.2)
    for model in (plain, fast):
        model.train()
    expected, compiled = plain(dict(batch)), fast(dict(batch))
    for key in ("total_energy", "forces"):
        torch.testing.assert_close(
            compiled[key], expected[key], rtol=0, atol=ROUNDING * float(expected[key].abs().max())
        )
    for out in (expected, compiled):
        out["forces"].square().mean().backward()
    theirs = dict(plain.named_parameters())
    largest = max(float(p.grad.abs().max()) for p in theirs.values() if p.grad is not None)
    for name, parameter in fast.named_parameters():
        if theirs[name].grad is None:
            assert parameter.grad is None or not parameter.grad.any()
        else:
            torch.testing.assert_close(parameter.grad, theirs[name].grad, rtol=0, atol=ROUNDING * largest)
    # another number of atoms and edges, with what was compiled
    other = data(0.05, 0.3, 0.2)
    torch.testing.assert_close(fast(dict(other))["forces"], plain(dict(other))["forces"], rtol=0, atol=ROUNDING)


LOAD = """
import ase.io, numpy, sys
from nequip.integrations.ase import NequIPCalculator

calculator = NequIPCalculator.from_compiled_model("fast.nequip.pt2", chemical_species_to_atom_type_map=True)
found = {}
for name in ("a", "b"):
    atoms = ase.io.read(name + ".xyz")
    atoms.calc = calculator
    found |= {name + "_energy": atoms.get_potential_energy(), name + "_forces": atoms.get_forces()}
    found[name + "_stress"] = atoms.get_stress()
numpy.savez("found.npz", **found)
assert "eqlayers" in sys.modules
"""


def test_ahead_of_time_compilation(runs: dict[str, tuple[Path, object]], tmp_path: Path) -> None:
    """Compiled with the modifier, loaded by a process that names NequIP alone, compared with the eager model."""
    from nequip.integrations.ase import NequIPCalculator

    checkpoint = str(runs["plain"][0] / "last.ckpt")
    command = ["nequip.scripts.compile", checkpoint, "fast.nequip.pt2", "--mode", "aotinductor"]
    options = ["--device", "cpu", "--target", "ase", "--modifiers", "enable_eqlayers"]
    run("-m", *command, *options, cwd=tmp_path)
    structures = {"a": crystal(0.1), "b": crystal(0.2) * (1, 1, 2)}
    for name, atoms in structures.items():
        atoms.write(tmp_path / f"{name}.xyz")
    run("-c", LOAD, cwd=tmp_path)
    compiled = np.load(tmp_path / "found.npz")
    eager = NequIPCalculator._from_saved_model(checkpoint, chemical_species_to_atom_type_map=True)
    for name in structures:
        atoms = ase.io.read(tmp_path / f"{name}.xyz")
        atoms.calc = eager
        expected = [np.array(atoms.get_potential_energy()), atoms.get_forces(), atoms.get_stress()]
        for key, value in zip(("energy", "forces", "stress"), expected, strict=True):
            np.testing.assert_allclose(
                compiled[f"{name}_{key}"], value, rtol=0, atol=ROUNDING * np.abs(expected[0]).max()
            )


def run(*words: str, cwd: Path) -> None:
    done = subprocess.run([sys.executable, *words], cwd=cwd, capture_output=True, text=True, env=QUIET)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize("spelled", ["target", "fields"])
def test_a_file_for_programs_without_python_is_refused(runs: dict[str, Any], tmp_path: Path, spelled: str) -> None:
    """LAMMPS has no Python, and our operators need it; a file that fails there must not be written."""
    target = COMPILE_TARGET_DICT["pair_nequip"]
    fields = ["--input-fields", *target["input"], "--output-fields", *target["output"]]
    words = ["--target", "pair_nequip"] if spelled == "target" else fields
    command = [sys.executable, "-m", "nequip.scripts.compile", str(runs["plain"][0] / "last.ckpt"), "x.nequip.pt2"]
    options = ["--mode", "aotinductor", "--device", "cpu", *words, "--modifiers", "enable_eqlayers"]
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, env=QUIET)
    assert done.returncode != 0
    assert "the target pair_nequip or pair_allegro must be of a model whose operators run without Python" in done.stderr
    assert "--target ase" in done.stderr
    assert not list(tmp_path.glob("*.pt2"))


def test_models_without_ours_are_compiled_for_every_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check looks at the model, as one process may compile several."""
    from nequip.utils import aot

    seen: list[list[str]] = []

    def export(model: object, device: object, input_fields: object, output_fields: list[str]) -> None:
        seen.append(output_fields)

    monkeypatch.setattr(aot, "aot_export_model", export)
    plain, fast = NequIPGNNModel(**OPTIONS), NequIPGNNModel(**OPTIONS)
    modify(fast, [ENABLE])
    modify(NequIPGNNModel(**OPTIONS), [ENABLE])
    outputs = {name: COMPILE_TARGET_DICT[name]["output"] for name in ("pair_nequip", "ase", "batch")}
    for fields in outputs.values():
        aot.aot_export_model(plain, "cpu", [], output_fields=fields)
    for name in ("ase", "batch"):
        aot.aot_export_model(fast, "cpu", [], outputs[name])
    with pytest.raises(
        ConfigError, match=r"the target pair_nequip or pair_allegro must .*, got one with the operators .* Leave out"
    ):
        aot.aot_export_model(fast, "cpu", [], outputs["pair_nequip"])
    assert seen == [*outputs.values(), outputs["ase"], outputs["batch"]]


PACKAGE = """
import sys, torch, warnings

warnings.simplefilter("ignore")
from nequip.utils.global_state import set_global_state

set_global_state()
import numpy
from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict
from nequip.model import ModelFromPackage

import eqlayers

found = numpy.load("data.npz")
frame = compute_neighborlist_(from_dict({**found, "pbc": True}), r_max=4.0)
data = AtomicDataDict.batched_from_list([frame, frame])
model = ModelFromPackage(sys.argv[1])
model = model["sole_model"] if isinstance(model, torch.nn.ModuleDict) else model
plain = model(dict(data))
report = eqlayers.accelerate(model)
assert len(report.replaced) == 10 and not report.skipped, str(report)
fast = model(dict(data))
for key in ("total_energy", "forces"):
    error = float((fast[key] - plain[key]).detach().abs().max() / plain["forces"].detach().abs().max())
    assert error < 1e-12, (key, error)
"""


def test_a_packaged_model(runs: dict[str, Any], trained: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Its classes are a copy of NequIP's without the modifier, and e3nn's; `accelerate` knows them by structure.

    NequIP finds the modifier for them as well: in a training that starts from the package.
    """
    run("-m", "nequip.scripts.package", "build", str(runs["fast"][0] / "last.ckpt"), "m.nequip.zip", cwd=tmp_path)
    atoms = crystal(0.1)
    frame = {"pos": atoms.positions, "cell": atoms.cell.array, "atom_types": np.zeros(len(atoms), int)}
    np.savez(tmp_path / "data.npz", **frame)
    run("-c", PACKAGE, str(tmp_path / "m.nequip.zip"), cwd=tmp_path)
    plain = {"_target_": "nequip.model.ModelFromPackage", "package_path": str(tmp_path / "m.nequip.zip")}
    fast = {"_target_": "nequip.model.modify", "modifiers": [ENABLE], "model": plain}
    metrics = {name: trained(tmp_path / name, model) for name, model in (("plain", plain), ("fast", fast))}
    assert metrics["fast"].keys() == metrics["plain"].keys()
    for key, values in metrics["plain"].items():
        if "loss" in key or "mae" in key:
            np.testing.assert_allclose(metrics["fast"][key], values, rtol=1e-9, atol=1e-9)
    assert "modules replaced" in (tmp_path / "fast" / "train.log").read_text()
