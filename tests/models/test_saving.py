"""Potentials in files: what comes back, and what damaged, foreign and hostile files are answered."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eqlayers.errors import ConfigError, DataError, DTypeError
from eqlayers.models import (
    MACE,
    Potential,
    Structures,
    describe_potential,
    load_potential,
    read_potential,
    save_potential,
)
from eqlayers.testing import ToyNetwork, networks

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
