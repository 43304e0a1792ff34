"""Checkpoints of a property: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eqlayers.errors import ConfigError, DataError
from eqlayers.models import MoleculeNetwork, Structures, load_potential
from eqlayers.models.classes import describe_part
from eqlayers.models.molecule_property import MoleculeProperty, load_property
from tests.each import each

PAIR = torch.tensor([[0, 1], [1, 0]])
MOLECULE = Structures(torch.tensor([1, 1]), torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 0.74]]), PAIR)


def network(**options: Any) -> MoleculeNetwork:
    torch.manual_seed(0)
    made = MoleculeNetwork(["H"], hidden="4x0e + 4x1o", layers=2, cutoff=3.0, pooling="mean", **options)
    made.set_statistics({"H": 2.0}, 3.0, 1.5)
    return made


def written(path: Path, made: torch.nn.Module, **described: Any) -> Path:
    part = describe_part("the network", made) | described.pop("part", {})
    saved = {"network": part, "name": "gap", "unit": "eV"} | described
    state = {f"model.{name}": t for name, t in made.state_dict().items()} | {"loss_scale": torch.ones(())}
    torch.save({"state_dict": state, "hyper_parameters": {"property": saved}}, path)
    return path


@each(
    "readout, dtype",
    [(readout, dtype) for readout in ("scalar", "vector", "extent") for dtype in (torch.float32, torch.float64)],
)
def test_a_checkpoint_predicts_what_its_network_does(tmp_path: Path, readout: str, dtype: torch.dtype) -> None:
    made = network(readout=readout).to(dtype)
    learned = load_property(written(tmp_path / "a.ckpt", made))
    assert isinstance(learned, MoleculeProperty)
    assert (learned.name, learned.unit, learned.species, learned.cutoff) == ("gap", "eV", (1,), 3.0)
    assert (learned.dtype, learned.training) == (dtype, False)
    molecules = MOLECULE._replace(pos=MOLECULE.pos.to(dtype))
    assert torch.equal(learned(molecules), made(*molecules[:5]))


def test_its_dtype_can_be_chosen(tmp_path: Path) -> None:
    learned = load_property(written(tmp_path / "a.ckpt", network()), torch.float64)
    assert learned is not None
    assert learned.dtype == torch.float64


def test_the_random_state_is_kept(tmp_path: Path) -> None:
    path, before = written(tmp_path / "a.ckpt", network()), torch.get_rng_state()
    load_property(path)
    assert torch.equal(torch.get_rng_state(), before)


@each(
    "described, error, message",
    [
        ({"name": 3}, DataError, "name and unit of its property are no texts"),
        ({"unit": None}, DataError, "name and unit of its property are no texts"),
        ({"part": {"class_path": "os.system"}}, ConfigError, "the network must be of a class of eqlayers.models"),
        ({"part": {"init_args": {"species": [1]}}}, DataError, "its weights do not fit MoleculeNetwork"),
        ({"network": None}, ConfigError, "class_path and init_args"),
    ],
)
def test_files_that_are_refused(tmp_path, described: dict[str, Any], error: type[Exception], message: str) -> None:
    path = written(tmp_path / "a.ckpt", network(), **described)
    with pytest.raises(error, match=message):
        load_property(path)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    made = network()
    made.embedding.weight.data[0, 0] = float("nan")
    with pytest.raises(DataError, match="not finite"):
        load_property(written(tmp_path / "a.ckpt", made))


def test_a_property_is_no_potential(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"predicts gap \(eV\), not energies"):
        load_potential(written(tmp_path / "a.ckpt", network()))


def test_other_files_hold_no_property(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "a.pt")
    assert load_property(tmp_path / "a.pt") is None
    with pytest.raises(ConfigError, match="must be a file"):
        load_property(tmp_path / "none.pt")


def test_a_flipped_bit(tmp_path: Path) -> None:
    path = written(tmp_path / "a.ckpt", network())
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError):
        load_property(path)
