"""Classes in files: known ones and those that the caller names, and nothing else is imported."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers import models
from eqlayers.errors import ConfigError
from eqlayers.models import Potential, build_potential, describe_potential, load_potential, save_potential
from eqlayers.models.classes import PUBLIC, build_part, check_part, describe_part, named_classes
from eqlayers.nn import ZBL
from eqlayers.testing import ToyNetwork
from tests.each import each

OWN = """
    import os
    from eqlayers.testing import ToyNetwork

    os.mkdir("imported")  # beside the working directory of the test

    class Network(ToyNetwork):
        pass

    class Repulsion(ToyNetwork):
        pass

    def function(**options):
        os.mkdir("called")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported, and leaves a trace where it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_network.py").write_text(textwrap.dedent(OWN))
    monkeypatch.delitem(sys.modules, "my_network", raising=False)
    return "my_network"


def described(path: Any, **options: Any) -> dict[str, Any]:
    toy = {"class_path": "eqlayers.testing.ToyNetwork", "init_args": {"num_species": 1}}
    part = {"class_path": path, "init_args": options}
    rest = {"species": [1], "repulsion": None, "subtract_isolated": True}
    return {"network": toy, **rest} | {"network": part}


def write(path: Path, description: dict[str, Any]) -> Path:
    state = Potential(ToyNetwork(1), [1]).state_dict()
    content = {"format": "eqlayers.potential", "version": 1, "potential": description, "state_dict": state}
    torch.save(content | {"facts": {}}, path)
    return path


def test_public_names_are_those_of_files() -> None:
    """A name in a file must lead to its class for as long as the format is read."""
    for name in PUBLIC:
        home, _, last = name.rpartition(".")
        __import__(home)
        assert isinstance(getattr(sys.modules[home], last), type), name
    networks = {name for name in models.__all__ if name in ("MACE", "NequIP", "Equiformer", "TFN", "MoleculeNetwork")}
    assert {name.rpartition(".")[2] for name in PUBLIC} == networks | {"ZBL", "ToyNetwork"}
    potential = Potential(models.NequIP([1], hidden="2x0e", lmax=0, layers=1, cutoff=5.0), [1], repulsion=ZBL(p=5))
    assert describe_part("x", potential.network)["class_path"] == "eqlayers.models.NequIP"
    described = describe_potential(potential)
    assert described["repulsion"]["class_path"] == "eqlayers.nn.ZBL"
    assert isinstance(build_potential(described).repulsion, ZBL)


FOREIGN = ["my_network.Network", "my_network.function", "os.system", "torch.nn.Linear", "torch.nn.Sequential"]
FOREIGN += ["eqlayers.models.Potential", "eqlayers.testing.networks.ToyNetwork", "eqlayers.nn.zbl", "Found", ".x", ""]


@each("part, path", [(part, path) for part in ("network", "repulsion") for path in FOREIGN])
def test_a_class_that_was_not_named_is_not_imported(module: str, tmp_path: Path, path: str, part: str) -> None:
    description = described("eqlayers.testing.ToyNetwork", num_species=1)
    description[part] = {"class_path": path, "init_args": {}}
    file = write(tmp_path / "a.pt", description)
    with pytest.raises(ConfigError, match=rf"the {part} must be of a class of eqlayers.models, .*nothing was imported"):
        load_potential(file)
    assert not (tmp_path / "imported").exists()
    assert module not in sys.modules


def test_layers_of_torch_geometric_are_not_made(tmp_path: Path) -> None:
    """Its Sequential compiles a text of its arguments."""
    text = f"x -> __import__('os').mkdir({str(tmp_path / 'run')!r})"
    hostile = described("torch_geometric.nn.Sequential", input_args=text, modules=[])
    with pytest.raises(ConfigError, match=r"got 'torch_geometric\.nn\.Sequential' from a file"):
        load_potential(write(tmp_path / "a.pt", hostile))
    assert not (tmp_path / "run").exists()


def test_the_option_is_in_the_sentence_and_works(module: str, tmp_path: Path) -> None:
    file = write(tmp_path / "a.pt", described("my_network.Network", num_species=1))
    with pytest.raises(ConfigError, match=r"name it: --classes my_network\.Network, in Python classes=\['my_net.*'\]"):
        load_potential(file)
    with pytest.raises(ConfigError, match="nothing was imported"):
        load_potential(file, classes=["my_network.Repulsion", "other.Network"])
    assert module not in sys.modules
    network = load_potential(file, classes="other.Thing, my_network.Network").network
    assert (type(network).__module__, type(network).__name__) == ("my_network", "Network")
    again = load_potential(file, classes=[type(network)])
    assert type(again.network) is type(network)
    save_potential(again, tmp_path / "b.pt")
    assert type(load_potential(tmp_path / "b.pt", classes=type(network)).network) is type(network)


def test_a_name_in_a_text_for_the_terminal() -> None:
    with pytest.raises(ConfigError, match=r"--classes my_network\.Network,"):
        check_part("the network", {"class_path": "x.y\n; rm -r .", "init_args": {}})


CLASSES = [
    ("nowhere.to.be.Found", {}, "must be of a class that can be imported, got 'nowhere.to.be.Found': No module"),
    ("eqlayers.testing.Missing", {}, "must be of a class of torch.nn.Module, got 'eqlayers.testing.Missing'"),
    ("os.system", {"command": "exit 1"}, "must be of a class of torch.nn.Module, got 'os.system'"),
    ("subprocess.Popen", {"args": "exit"}, "must be of a class of torch.nn.Module"),
    ("eqlayers.testing.ToyNetwork", {"depth": 3}, "must take the arguments of the file, got TypeError"),
    ("eqlayers.models.NequIP", {"species": [1], "r_max": 3}, "must take the arguments of the file, got TypeError"),
    ("eqlayers.models.NequIP", {}, "must take the arguments of the file, got TypeError: missing .*'species'"),
    ("eqlayers.testing.ToyNetwork", {"num_species": 0}, "num_species must be an integer, at least 1, got 0"),
]


@each("path, options, message", CLASSES)
def test_classes_that_were_named_and_cannot_be_used(path: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_potential(described(path, **options), classes=path)


def cyclic() -> list[Any]:
    inner: list[Any] = []
    inner.append(inner)
    return inner


PARTS = [
    (None, "must be given by class_path and init_args"),
    ({"class_path": None, "init_args": {}}, "must be given by class_path and init_args"),
    ({"class_path": "eqlayers.nn.ZBL", "init_args": [5]}, "must be given by class_path and init_args"),
    ({"class_path": "eqlayers.nn.ZBL", "init_args": {"p": torch.zeros(2)}}, r"\['p'\] must be of numbers.*a tensor"),
    ({"class_path": "eqlayers.nn.ZBL", "init_args": {"p": [{"class_path": "os.x"}]}}, "got another class_path in them"),
    ({"class_path": "eqlayers.nn.ZBL", "init_args": {"p": cyclic()}}, "must be plain, got a list in itself"),
    ({"class_path": "eqlayers.nn.ZBL", "init_args": {3: 1}}, "must take the arguments of the file, got TypeError"),
]


@each("part, message", PARTS, ids=lambda row: row[1])
def test_parts_that_are_not_plain(part: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_part("the network", part)


def test_a_class_is_the_object_that_the_caller_gave() -> None:
    """Also where no import finds it."""

    class Network(ToyNetwork):
        pass

    part = {"class_path": f"{Network.__module__}.{Network.__qualname__}", "init_args": {"num_species": 1}}
    assert type(build_part("the network", part, [Network])) is Network


def test_what_names_classes() -> None:
    assert named_classes(None) == named_classes([]) == {}
    paths = {"eqlayers.layers.radial.by_species.ZBL": ZBL, "eqlayers.nn.ZBL": ZBL}
    assert named_classes([ZBL, "a.B,c.D"]) == {**paths, "a.B": None, "c.D": None}
    for wrong in (3, "Network", ["a.B", 3], int, ["a b.C"], ["a.B c"], {"a.B": 1}):
        with pytest.raises(ConfigError, match="classes must"):
            named_classes(wrong)  # type: ignore[arg-type]
