"""Recorded potentials: the results of the potential itself, for other atoms in the memory of one recording.

In the interpreter's turn a call stands for the replay on a CPU, so that the padding is known to be right.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("ase")
pytest.importorskip("vesin")

from ase import Atoms
from ase.build import bulk, molecule

from eqlayers.errors import ConfigError, DeviceError
from eqlayers.integrations.ase import Calculator
from eqlayers.models import MACE, NequIP, Potential, Recorded, recording
from eqlayers.models.recording import Results
from eqlayers.models.structures import NeighborLists, Structures, collate

OUTPUTS = ("energy", "energies", "forces", "virials")


@pytest.fixture
def recordings(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The calls that were recorded."""
    made: list[object] = []
    real = recording.record

    def record(call: Callable[[], Results]) -> tuple[Results, Callable[[], object]]:
        made.append(call)
        if device.type == "cuda":
            return real(call)
        results = call()

        def replay() -> None:
            for name, value in call().items():
                results[name].copy_(value)

        return results, replay

    monkeypatch.setattr(recording, "record", record)
    monkeypatch.setattr(recording, "DEVICE", device.type)
    return made


def potential_on(device: torch.device, name: str) -> Potential:
    torch.manual_seed(0)
    options = {"lmax": 1, "layers": 2, "cutoff": 4.0, "num_basis": 4, "radial_hidden": (8,)}
    network = (
        MACE([8, 13], "4x0e + 4x1o", correlation=2, **options)
        if name == "MACE"
        else NequIP([8, 13], "4x0e + 4x1o", **options)
    )
    return Potential(network, [8, 13]).to(device, torch.float64).eval().requires_grad_(False)


def of_atoms(potential: Potential, several: list[Atoms]) -> Structures:
    lists = NeighborLists(potential.cutoff)
    return collate(potential, several, [lists(atoms) for atoms in several])


def shaken(atoms: Atoms, seed: int) -> Atoms:
    """Moved atoms, of species in another order."""
    atoms.rattle(0.1, seed=seed)
    atoms.numbers[:] = np.random.default_rng(seed).permutation([8, 13] * len(atoms))[: len(atoms)]
    return atoms


def crystal(seed: int, stretch: float = 1.0) -> Atoms:
    return shaken(bulk("Al", cubic=True, a=4.05 * stretch), seed)


def cluster(seed: int) -> Atoms:
    return shaken(molecule("O3"), seed)


def assert_same(got: Results, want: Results) -> None:
    assert got.keys() == want.keys()
    for name, value in want.items():
        torch.testing.assert_close(got[name], value, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", ["MACE", "NequIP"])
@pytest.mark.parametrize("kind", [crystal, cluster])
def test_results_are_those_of_the_potential(
    kind: Callable[[int], Atoms], name: str, device: torch.device, recordings: list[object]
) -> None:
    potential = potential_on(device, name)
    recorded = Recorded(potential)
    for seeds in ([1, 2], [3, 4], [5, 6]):
        given = of_atoms(potential, [kind(seed) for seed in seeds])
        got = recorded(given, OUTPUTS)
        assert_same(got, potential(given, OUTPUTS))
    assert len(recordings) == 1
    assert got["forces"].any()


def test_what_does_not_fit_is_recorded_again(device: torch.device, recordings: list[object]) -> None:
    potential = potential_on(device, "NequIP")
    recorded = Recorded(potential)
    steps = [  # atoms, outputs, recordings so far
        ([crystal(0)], OUTPUTS, 1),
        ([crystal(1, 1.1)], OUTPUTS, 1),  # fewer edges
        ([crystal(2, 0.7)], OUTPUTS, 2),  # more than there is room for
        ([crystal(3)], OUTPUTS, 2),
        ([crystal(4)], ("energy",), 3),
        ([crystal(5), crystal(6)], ("energy",), 4),
        ([cluster(7)], None, 5),
    ]
    for atoms, outputs, count in steps:
        given = of_atoms(potential, atoms)
        assert_same(recorded(given, outputs), potential(given, outputs))
        assert len(recordings) == count


def test_results_are_not_overwritten_by_the_next_call(device: torch.device, recordings: list[object]) -> None:
    potential = potential_on(device, "MACE")
    recorded = Recorded(potential)
    first = recorded(of_atoms(potential, [crystal(0)]))
    before = {name: value.clone() for name, value in first.items()}
    recorded(of_atoms(potential, [crystal(1)]))
    assert_same(first, before)


def test_a_calculator_records(device: torch.device, recordings: list[object]) -> None:
    potential = potential_on(device, "MACE")
    plain, fast = Calculator(potential), Calculator(potential, record=True)
    for seed in range(3):
        atoms = crystal(seed)
        for name in ("forces", "stress", "energy"):
            np.testing.assert_allclose(fast.get_property(name, atoms), plain.get_property(name, atoms), atol=1e-10)
    assert len(recordings) == 1


def test_what_cannot_be_recorded_is_refused(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "DEVICE", device.type)
    potential = potential_on(device, "NequIP")
    with pytest.raises(ConfigError, match="must be in evaluation mode to be recorded, got training mode"):
        Recorded(potential_on(device, "NequIP").train())
    with pytest.raises(ConfigError, match=r"record must .*got 2 members"):
        Calculator([potential, potential_on(device, "NequIP")], record=True)

    def waits(call: Callable[[], Results]) -> tuple[Results, Callable[[], object]]:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(recording, "record", waits)
    with pytest.raises(ConfigError, match=r"network must not synchronise .*got an operator that does"):
        Recorded(potential)(of_atoms(potential, [crystal(0)]))
    given = of_atoms(potential, [crystal(0)])
    with pytest.raises(DeviceError, match="structures must"):
        Recorded(potential)(given._replace(pos=given.pos.to("meta")))
    monkeypatch.setattr(recording, "DEVICE", "tpu")
    with pytest.raises(DeviceError, match="must be on a CUDA device to be recorded, got"):
        Recorded(potential)
