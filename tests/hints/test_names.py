"""Names that people guess: those that work, and the hint that the others get."""

import ast
import importlib
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

import eqlayers
from eqlayers.errors import ConfigError, EqlayersError, UnknownImportError, UnknownNameError
from eqlayers.hints import names
from tests.each import each
from tests.fresh import fresh

ROOT = Path(__file__).resolve().parents[2]
WORKS = "works"

#: What the answer names, without `eqlayers.` -> names that users of e3nn, NequIP, MACE and SchNetPack ask for.
ANSWERS = {
    "works": (
        "Irreps Irrep Calculator Potential load_potential save_potential paths models.MACE data.radius_graph "
        "simulate.relax train.PotentialModule testing.check_equivariance o3.wigner_3j o3.Irreps "
        "o3.rand_matrix nn.Gate nn.BatchNorm nn.Linear functional.spherical_harmonics"
    ),
    "eqlayers.data.radius_graph": (
        "radius_graph nn.radius_graph functional.radius_graph nn.radius_grph data.radius_grpah"
    ),
    "eqlayers.atoms.periodic.neighbor_list": "neighbor_list data.neighbor_list",
    "eqlayers.functional.spherical_harmonics": "spherical_harmonics functional.spherical_harmonic",
    "eqlayers.nn.SphericalHarmonics": "SphericalHarmonics",
    "eqlayers.nn.Gate": "Gate o3.Gate",
    "eqlayers.nn.Activation": "Activation",
    "eqlayers.nn.BatchNorm": "BatchNorm",
    "eqlayers.nn.Norm": "Norm",
    "eqlayers.models.MACE": "MACE ScaleShiftMACE SchNet nn.MACE",
    "eqlayers.models.NequIP": "NequIP Nequip models.SO3net models.NequPI",
    "eqlayers.Calculator": (
        "MACECalculator NequIPCalculator SpkCalculator models.Calculator integrations.Calculator simulate.Calculator"
    ),
    "eqlayers.load_potential": "load_model load models.load_model",
    "eqlayers.save_potential": "save",
    "eqlayers.o3.wigner_3j": "wigner_3j",
    "eqlayers.explain": "backends",
    "eqlayers.functional.wigner_D": "wigner_D",
    "eqlayers.o3.rand_matrix": "rand_matrix",
    "eqlayers.testing.check_equivariance": "check_equivariance assert_equivariant testing.assert_equivariant",
    "eqlayers.nn.RadialNetwork": "FullyConnectedNet MLP nn.FullyConnectedNet o3.FullyConnectedNet",
    "eqlayers.nn.BesselBasis": "BesselBasis",
    "eqlayers.nn.SymmetricContraction": "SymmetricContraction nn.EquivariantProductBasisBlock nn.SymetricContraction",
    "eqlayers.nn.Interaction": "Interaction",
    "eqlayers.paths": "ChannelWiseTensorProduct tp_out_irreps_with_instructions",
    "eqlayers.TensorProductConv": "MessagePassing",
    "eqlayers.models.Structures": "AtomicData",
    "eqlayers.data.StructureDataModule": "DataModule data.AtomsDataModule",
    "eqlayers.data.load_qm9": "QM9",
    "eqlayers fit": "Trainer",
    "eqlayers.simulate.relax": "relax",
    "eqlayers.simulate.run_dynamics": "md",
    "eqlayers.accelerate": "run_e3nn_to_cueq accelarate",
    "eqlayers.integrations.from_mace": "from_mace integrations.mace_mp",
    "e3nn.io": "io",
    "eqlayers.Irreps": "nn.Irreps",
    "eqlayers.nn.GaussianBasis": "nn.GaussianRBF",
    "eqlayers.nn.SO3Linear": "nn.so3_linear_",
    "eqlayers.Linear": "functional.Linear",
    "eqlayers.functional.radial_basis": "functional.soft_one_hot_linspace",
    "eqlayers.data.read_structures": "data.read",
    "eqlayers.TensorProduct": "TensorProdct",
    "eqlayers.nn.Linear": "nn.Linaer",
    "eqlayers.nn.SO2Convolution": "nn.SO2Conv nn.eSCNConv",
    "torch.nn.Sequential": "nn.Sequential",
    "torch.nn.ModuleList": "nn.ModuleList",
    "eqlayers.o3.TensorProduct": "o3.TensorProdct",
    "eqlayers.o3.spherical_harmonics": "o3.spherical_harmonic",
    "eqlayers.models.load_potential": "models.load_potental",
    "eqlayers.train.PotentialModule": "train.AtomisticTask",
}
GUESSES = {f"eqlayers.{name}": answer for answer, text in ANSWERS.items() for name in text.split()}


def found(guess: str) -> object:
    """The object that ``import`` and attributes give for a dotted name."""
    module, _, name = guess.rpartition(".")
    return getattr(importlib.import_module(module), name)


@each("guess", GUESSES)
def test_a_guess_works_or_is_answered(guess: str) -> None:
    answer = GUESSES[guess]
    if answer == WORKS:
        assert found(guess) is not None
        return
    module, _, name = guess.rpartition(".")
    with pytest.raises(
        UnknownNameError, match=rf"^a name of {module} must be one that it has, got '{name}'\. Use "
    ) as e:
        found(guess)
    assert answer in str(e.value)
    assert not hasattr(importlib.import_module(module), name)
    with pytest.raises(UnknownImportError, match=f"got '{name}'") as e:
        exec(f"from {module} import {name}")
    assert answer in str(e.value)
    assert isinstance(e.value, ImportError)
    assert isinstance(e.value, EqlayersError)


#: Words of hints that look like names and are none.
COMMANDS = {"eqlayers fit", "eqlayers md", "eqlayers predict"}


@each("name", names.HINTS)
def test_hints_name_what_there_is(name: str) -> None:
    for dotted in re.findall(r"\b(?:eqlayers|torch|e3nn)(?:\.\w+)+", names.HINTS[name]):
        found_ = importlib.import_module(dotted.split(".")[0])
        for depth, part in enumerate(dotted.split(".")[1:], start=2):
            if isinstance(found_, ModuleType) and not hasattr(found_, part):
                found_ = importlib.import_module(".".join(dotted.split(".")[:depth]))
            else:
                found_ = getattr(found_, part)
    assert re.search(r"\.\w|`eqlayers \w+`|argument backend", names.HINTS[name])


def test_hints_are_of_names_that_no_part_exports() -> None:
    """One that a part exports is found without a row. The calculator needs one, as it is not in `__all__`."""
    exported = {name for part in names.PARTS for name in names.exported(part)}
    assert sorted(exported & names.HINTS.keys()) == []


def test_exported_names_are_read_as_python_reads_them() -> None:
    for part in names.PARTS:
        assert list(names.exported(part)) == importlib.import_module(part).__all__, part
    assert names.exported("eqlayers.nothing") == ()
    assert names.exported("eqlayers.o3") == ()  # put together when it is imported


def test_unknown_names_get_pythons_own_error() -> None:
    for module in (eqlayers, eqlayers.nn, eqlayers.o3, eqlayers.functional):
        for name in ("quux_of_nothing", "prod", "nor", "_private", "__wrapped__"):
            with pytest.raises(AttributeError, match=f"module '{module.__name__}' has no attribute '{name}'") as e:
                getattr(module, name)
            assert not isinstance(e.value, EqlayersError)
    with pytest.raises(ImportError, match="cannot import name 'quux_of_nothing'"):
        exec("from eqlayers import quux_of_nothing")


def test_a_class_answers_names_as_modules_do() -> None:
    with pytest.raises(UnknownNameError, match=r"name of Potential must .* got 'load'\. Use eqlayers\.load_potential"):
        eqlayers.Potential.load("potential.pt")
    assert not hasattr(eqlayers.Potential, "no_such_name_at_all")


@each(
    "model, use",
    [("MACECalculator", "calculator.models[0]"), ("NequIPCalculator", "calculator.model"), ("str", "torch.load(path")],
)
def test_what_is_no_model_is_answered_by_what_to_accelerate(model: str, use: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Use eqlayers.accelerate({use}")):
        eqlayers.accelerate("my.model" if model == "str" else type(model, (), {})())
    with pytest.raises(ConfigError, match="Pass a layer or a model"):
        eqlayers.accelerate(3)


def test_a_module_that_is_not_imported_yet_is_named() -> None:
    code = (
        "import eqlayers.integrations as i\n"
        "try:\n    i.torch_geometric\nexcept AttributeError as error:\n    print(error)\n"
        "from eqlayers.integrations import torch_geometric"
    )
    done = fresh(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("Import it first: import eqlayers.integrations.torch_geometric.")


def test_dir_shows_the_public_names_only() -> None:
    assert dir(eqlayers) == sorted({*eqlayers.__all__, "Calculator", "data", "simulate", "train"})
    assert [name for name in dir(eqlayers) if getattr(eqlayers, name, None) is None] == []


def test_type_checkers_see_the_names_that_python_finds() -> None:
    tree = ast.parse((ROOT / "eqlayers" / "__init__.py").read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name))
    declared = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        home = ".".join(filter(None, ("eqlayers" if node.level else "", node.module)))
        for alias in node.names:
            assert alias.asname in (None, alias.name)
            declared[alias.name] = f"{home}.{alias.name}"
    assert sorted(declared) == dir(eqlayers)
    for name, home in declared.items():
        module, _, last = home.rpartition(".")
        value = (
            importlib.import_module(home) if module == "eqlayers" else getattr(importlib.import_module(module), last)
        )
        assert getattr(eqlayers, name) is value, name


def test_names_are_the_very_objects() -> None:
    assert eqlayers.Linear is eqlayers.nn.Linear
    assert eqlayers.load_potential is eqlayers.models.load_potential
    layer = pickle.loads(pickle.dumps(eqlayers.Linear("2x0e", "3x0e")))
    torch.testing.assert_close(layer(torch.ones(1, 2)).shape, torch.Size([1, 3]))
    assert pickle.loads(pickle.dumps(eqlayers.load_potential)) is eqlayers.load_potential


def test_one_name_is_one_class_of_the_layers_below() -> None:
    """A reader who looks for a class by its name finds one."""
    homes: dict[str, list[str]] = {}
    for folder in ("eqlayers/core", "eqlayers/sparse", "kernels/eqlayers_kernels"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    homes.setdefault(node.name, []).append(path.relative_to(ROOT).as_posix())
    assert len(homes) > 100
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert not twice, f"a class name must stand for one class, got {twice}: name what each class holds"


ALONE = """
import json, sys
import eqlayers
alone = sorted(m for m in sys.modules if m.split(".")[0] in ("eqlayers", "eqlayers_kernels", "torch", "e3nn", "numpy"))
eqlayers.errors.EqlayersError
some = sorted(m for m in sys.modules if m.split(".")[0] in ("eqlayers", "eqlayers_kernels", "torch", "e3nn", "numpy"))
print(json.dumps([alone, some]))
"""
LAZY = """
import json, sys
import eqlayers
eqlayers.nn.Linear
for name in ("radius_graph", "StructureDataModule", "relax", "PotentialModule", "quux"):
    assert not hasattr(eqlayers, name)
heavy = [m for m in ("lightning", "ase", "vesin", "torch_geometric", "eqlayers.models") if m in sys.modules]
from eqlayers import *
star = [m for m in ("lightning", "ase", "torch_geometric") if m in sys.modules]
print(json.dumps([heavy, star, Linear is eqlayers.nn.Linear]))
"""


def test_importing_the_package_imports_nothing_and_hints_no_extra() -> None:
    alone = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True)
    assert alone.returncode == 0, alone.stderr
    done = fresh(LAZY)
    assert done.returncode == 0, done.stderr
    errors = ["eqlayers", "eqlayers.core", "eqlayers.core.errors", "eqlayers.errors"]
    assert json.loads(alone.stdout) == [["eqlayers"], errors]
    assert json.loads(done.stdout) == [[], [], True]
