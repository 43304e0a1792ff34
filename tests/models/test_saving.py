"""Potentials in files: what comes back, and what damaged, foreign and hostile files are answered; their classes."""

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers import models
from eqlayers.errors import ConfigError, DataError, DTypeError
from eqlayers.models import (
    MACE,
    Potential,
    Structures,
    build_potential,
    describe_potential,
    load_potential,
    read_potential,
    save_potential,
)
from eqlayers.models.saving import PUBLIC, build_part, check_part, describe_part, named_classes
from eqlayers.nn import ZBL
from eqlayers.testing import ToyNetwork, networks
from tests.each import each, refused

TOY = {"class_path": "eqlayers.testing.ToyNetwork", "init_args": {"num_species": 2}}


def make(dtype: torch.dtype = torch.float64, **options: Any) -> Potential:
    network = ToyNetwork(2, cutoff=3.5, seed=3)
    potential = Potential(network, [1, 8], {1: -13.6, 8: -432.1}, {1: 0.5, 8: 2.0}, **options).to(dtype).eval()
    with torch.no_grad():
        for weight in potential.parameters():
            weight.div_(3)  # no number of float32 any more
    return potential


def structure(dtype: torch.dtype) -> Structures:
    pos = torch.tensor([[0.0, 0.0, 0.0], [0.9, 0.1, 0.0], [-0.2, 1.0, 0.3]], dtype=dtype)
    return Structures(torch.tensor([8, 1, 1]), pos, torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]]))


def energy(potential: Potential) -> Tensor:
    return potential(structure(potential.dtype))["energy"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_comes_back_gives_the_same_numbers(tmp_path: Path, dtype: torch.dtype) -> None:
    potential = make(dtype)
    save_potential(potential, tmp_path / "a.pt")
    back = load_potential(tmp_path / "a.pt")
    assert back.dtype == dtype
    assert not back.training
    assert torch.equal(energy(back), energy(potential))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_network_with_contractions_comes_back_in_half_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    """Coupling tensors keep the digits of float32; those that another program has rounded are read, too."""
    potential = Potential(MACE([1, 8], hidden="2x0e + 2x1o", lmax=1, correlation=2, layers=2), [1, 8]).to(dtype)
    save_potential(potential, tmp_path / "a.pt")
    back, state = load_potential(tmp_path / "a.pt"), potential.state_dict()
    assert back.dtype == dtype
    assert all(torch.equal(one, state[name]) for name, one in back.state_dict().items())
    assert {one.dtype for name, one in state.items() if "U_matrix" in name} == {torch.float32}
    back.load_state_dict({name: one.to(dtype) if "U_matrix" in name else one for name, one in state.items()})
    assert all(torch.equal(one, state[name]) for name, one in back.state_dict().items())


def test_the_default_dtype_and_random_numbers_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights in float64 are read without a stop in float32, and reading draws no number of the user's."""
    potential, basis = make(), networks.BesselBasis
    save_potential(potential, tmp_path / "a.pt")
    monkeypatch.setattr(networks, "BesselBasis", lambda *args: (torch.rand(3), basis(*args))[1])  # as most networks do
    state = torch.get_rng_state()
    back = load_potential(tmp_path / "a.pt")
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(energy(back), energy(potential))


def test_another_dtype_keeps_shifts_in_float64(tmp_path: Path) -> None:
    save_potential(make(), tmp_path / "a.pt")
    back = load_potential(tmp_path / "a.pt", dtype=torch.float32)
    assert (back.dtype, back.shifts.dtype) == (torch.float32, torch.float64)
    assert back.shifts.tolist() == [-13.6, -432.1]
    with pytest.raises(DTypeError, match="dtype must"):
        load_potential(tmp_path / "a.pt", dtype="float32")  # type: ignore[arg-type]


def test_the_repulsion_comes_back(tmp_path: Path) -> None:
    class Repulsion(ToyNetwork):
        def forward(self, kind: Tensor, edges: Any, graph: Any) -> Tensor:
            return super().forward(torch.zeros_like(kind), edges, graph)

    potential = make(repulsion=ToyNetwork(9, seed=1).double())  # its kinds are atomic numbers
    save_potential(potential, tmp_path / "a.pt")
    assert torch.equal(energy(load_potential(tmp_path / "a.pt")), energy(potential))
    assert not torch.equal(energy(make()), energy(potential))
    with pytest.raises(ConfigError, match="the repulsion must"):
        describe_potential(make(repulsion=Repulsion(2)))


def test_a_file_is_plain_and_facts_come_with_it(tmp_path: Path) -> None:
    save_potential(make(), tmp_path / "a.pt", {"units": "eV", "errors": {"energy": 0.5}})
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    assert (content["format"], content["version"]) == ("eqlayers.potential", 1)
    network = {"class_path": "eqlayers.testing.ToyNetwork"}
    network |= {"init_args": {"num_species": 2, "cutoff": 3.5, "channels": 4, "seed": 3}}  # type: ignore[dict-item]
    assert content["potential"] == {"network": network, "species": [1, 8], "repulsion": None, "subtract_isolated": True}
    facts = read_potential(tmp_path / "a.pt").facts
    assert (facts["units"], facts["errors"]) == ("eV", {"energy": 0.5})
    assert facts["versions"]["torch"] == torch.__version__
    assert [path.name for path in tmp_path.iterdir()] == ["a.pt"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path) -> None:
    save_potential(make(), tmp_path / "a.pt")
    before = (tmp_path / "a.pt").read_bytes()
    with pytest.raises(ConfigError, match=r"facts\['made'\] must be of numbers, texts, lists and dicts.*got a tensor"):
        save_potential(make(), tmp_path / "a.pt", {"made": torch.zeros(2)})
    assert (tmp_path / "a.pt").read_bytes() == before


def checkpoint(potential: Potential) -> dict[str, Any]:
    state = {f"potential.{name}": value for name, value in potential.state_dict().items()}
    state["loss.weight"] = torch.ones(1)
    options = {"potential": describe_potential(potential), "learning_rate": 0.1}
    return {"state_dict": state, "hyper_parameters": options, "epoch": 7, "pytorch-lightning_version": "2.6"}


def test_a_checkpoint_of_the_trainer_is_read(tmp_path: Path) -> None:
    potential = make()
    torch.save(checkpoint(potential), tmp_path / "best.ckpt")
    assert torch.equal(energy(load_potential(tmp_path / "best.ckpt")), energy(potential))
    assert read_potential(tmp_path / "best.ckpt").facts == {"epoch": 7}


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a potential must .*got nothing at .*no\.pt"):
        load_potential(tmp_path / "no.pt")
    with pytest.raises(ConfigError, match="got a folder"):
        load_potential(tmp_path)
    save_potential(make(), tmp_path / "a.pt")
    whole = (tmp_path / "a.pt").read_bytes()
    for size, problem in ((0, "is empty"), (100, "is no whole archive"), (len(whole) // 2, "is no whole archive")):
        (tmp_path / "half.pt").write_bytes(whole[:size])
        with pytest.raises(DataError, match=rf"half\.pt: it {problem}"):
            load_potential(tmp_path / "half.pt")


def test_a_flipped_bit_is_refused_with_the_name_of_the_member(tmp_path: Path) -> None:
    save_potential(make(), tmp_path / "a.pt")
    whole = bytearray((tmp_path / "a.pt").read_bytes())
    weight = next(make().parameters()).detach()
    at = whole.index(weight.numpy().tobytes())
    whole[at + 6] ^= 8  # an exponent: another finite number
    (tmp_path / "a.pt").write_bytes(whole)
    with pytest.raises(DataError, match=r"a\.pt: its member 'archive/data/\d+' is damaged\. Use another file"):
        load_potential(tmp_path / "a.pt")


def test_a_pickle_is_not_run_and_not_advised_to_be(tmp_path: Path) -> None:
    torch.save(make(), tmp_path / "pickle.pt")  # a whole module would run code
    with pytest.raises(DataError, match=r"it asks for eqlayers\.\S+, .*nothing of it was run") as caught:
        load_potential(tmp_path / "pickle.pt")
    assert not any(word in str(caught.value) for word in ("from_mace", "weights_only", "convert", "Convert"))


def change(**parts: Any) -> dict[str, Any]:
    potential = make()
    whole = {"format": "eqlayers.potential", "version": 1, "potential": describe_potential(potential)}
    return whole | {"state_dict": dict(potential.state_dict()), "facts": {}} | parts


STATE = make().state_dict()
FOREIGN = [
    ([1, 2], DataError, "it holds a list, not a dictionary"),
    (
        {"state_dict": {}, "hyper_parameters": {"model": {}}},
        DataError,
        "it describes no potential, but has 'state_dict'",
    ),
    (change(version=2), DataError, "its version is 2, this eqlayers reads 1"),
    (change(state_dict=None), DataError, "a description, weights or facts are missing"),
    (change(state_dict=STATE | {3: torch.ones(1)}), DataError, "a description, weights or facts are missing"),
    (change(state_dict={}), DataError, r"do not fit ToyNetwork: 6 missing \(species_index"),
    (change(state_dict=STATE | {"more": torch.ones(1)}), DataError, r"1 unknown \(more\)"),
    (change(state_dict=STATE | {"shifts": torch.ones(3)}), DataError, r"1 of another shape \(shifts\)"),
    (change(state_dict=STATE | {"shifts": torch.tensor([0.0, torch.nan])}), DataError, r"1 not finite \(shifts\)"),
    (change(state_dict=STATE | {"shifts": torch.ones(2).to_sparse()}), DataError, "it has a tensor that is sparse,"),
    (change(potential={"network": TOY}), ConfigError, "must have network, repulsion, species, subtract_isolated, got"),
]


@pytest.mark.parametrize(("content", "error", "message"), FOREIGN, ids=[message[:20] for *_, message in FOREIGN])
def test_files_of_others(tmp_path: Path, content: Any, error: type[Exception], message: str) -> None:
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(error, match=message):
        load_potential(tmp_path / "a.pt")


def test_weights_that_a_layer_refuses(tmp_path: Path) -> None:
    """Couplings that do not rotate."""
    network = MACE([1], hidden="2x0e + 2x1o", correlation=2, lmax=2)
    save_potential(Potential(network, [1]), tmp_path / "a.pt")
    content = torch.load(tmp_path / "a.pt", weights_only=True)
    next(value for name, value in content["state_dict"].items() if "U_matrix_2" in name).add_(1.0)
    torch.save(content, tmp_path / "a.pt")
    with pytest.raises(DataError, match=r"its weights do not fit MACE: .* must"):
        load_potential(tmp_path / "a.pt")


def test_networks_that_cannot_be_described() -> None:
    network = ToyNetwork(2)
    network.options = {"seed": 0, "activation": torch.tanh}
    with pytest.raises(ConfigError, match=r"options of ToyNetwork\['activation'\] must"):
        describe_potential(Potential(network, [1, 8]))
    del network.options
    with pytest.raises(ConfigError, match=r"the network must keep its arguments .* Set self.options in its __init__"):
        describe_potential(Potential(network, [1, 8]))
    with pytest.raises(ConfigError, match="potential must"):
        save_potential(network, "never.pt")  # type: ignore[arg-type]


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


FOREIGN_CLASSES = ["my_network.Network", "my_network.function", "os.system", "torch.nn.Linear", "torch.nn.Sequential"]
FOREIGN_CLASSES += [
    "eqlayers.models.Potential",
    "eqlayers.testing.networks.ToyNetwork",
    "eqlayers.nn.zbl",
    "Found",
    ".x",
    "",
]


@each("part, path", [(part, path) for part in ("network", "repulsion") for path in FOREIGN_CLASSES])
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


test_classes_that_were_named_and_cannot_be_used = refused(
    "path, options, message",
    CLASSES,
    lambda path, options: build_potential(described(path, **options), classes=path),
)


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
