"""MACE: every interaction block, its calculator, its converters, other precisions."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import ase
import numpy as np
import pytest
import torch
from e3nn import o3
from mace import modules
from mace.calculators import MACECalculator
from mace.tools.scripts_utils import extract_config_mace_model

from eqlayers.integrations import accelerate, deaccelerate
from eqlayers.integrations.kinds.convolution import AcceleratedConvolution
from eqlayers.optim import matrices_of
from tests.cases import default_dtype, quiet_warnings
from tests.integrations import guests
from tests.integrations.guests import SPECIES, mace

SIZES = (7, 1)


def model(dtype: torch.dtype = torch.float64) -> torch.nn.Module:
    return mace(hidden="4x0e + 4x1o", correlation=2, sizes=SIZES).make(dtype)


def molecule(periodic: bool = False) -> ase.Atoms:
    rng = np.random.default_rng(3)
    kinds = np.array(list(SPECIES))[rng.integers(0, 4, 6)]
    cell = {"cell": [5.0, 5.5, 6.0], "pbc": True} if periodic else {}
    return ase.Atoms(numbers=kinds, positions=rng.random((6, 3)) * 4, **cell)


def results(calculator: MACECalculator, periodic: bool = False) -> list[np.ndarray]:
    atoms = molecule(periodic)
    atoms.calc = calculator
    arrays = [np.array(atoms.get_potential_energy()), atoms.get_forces()]
    return [*arrays, atoms.get_stress()] if periodic else arrays


@pytest.mark.parametrize("interaction", modules.interaction_classes)
def test_every_interaction_block(interaction: str) -> None:
    # hidden features of one multiplicity in every block, as the blocks with gates need them
    subject = mace(hidden="4x0e + 4x1o", lmax=2, correlation=2, interaction=interaction, sizes=SIZES)
    reports = []
    errors = guests.compare(subject, lambda network: reports.append(accelerate(network)))
    assert all(share <= 1 for share in errors["of the bound"].values()), errors
    for report in reports:
        assert [row.path for row in report.replaced if row.target == "convolution"] == [
            f"interactions.{number}.conv_tp" for number in range(2)
        ]
        assert {row.kind for row in report.skipped} <= {"Activation"}  # of the read-out, torch alone
        assert {block.conv_fusion for block in report.model.interactions} == {"eqlayers"}


def test_three_kinds_of_features_and_correlation_three() -> None:
    subject = mace(
        hidden="4x0e + 4x1o + 4x2e",
        first="RealAgnosticInteractionBlock",
        interaction="RealAgnosticResidualInteractionBlock",
        sizes=SIZES,
    )
    errors = guests.compare(subject, accelerate)
    assert all(share <= 1 for share in errors["of the bound"].values()), errors


def test_the_report_has_every_layer() -> None:
    report = accelerate(model())
    layers = [
        name
        for name, module in model().named_modules()
        if isinstance(module, (o3.TensorProduct, o3.Linear, o3.SphericalHarmonics, modules.SymmetricContraction))
        and "_compiled" not in name
    ]
    assert [row.path for row in report.replaced] == layers
    assert all(row.error is not None and row.error <= 1 and row.paths > 0 and row.backend for row in report.replaced)
    assert report.saved_bytes is not None
    assert report.saved_bytes > 0
    assert "interactions.1.conv_tp" in str(report)


def test_only_convolutions() -> None:
    network = model()
    report = accelerate(network, targets="convolution")
    assert {row.target for row in report.replaced} == {"convolution"}
    assert len(report.replaced) == 2
    deaccelerate(network)
    assert not any(hasattr(block, "conv_fusion") for block in network.interactions)
    assert not any(isinstance(module, AcceleratedConvolution) for module in network.modules())


@pytest.mark.parametrize("periodic", [False, True], ids=["molecule", "crystal"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_calculator(dtype: str, periodic: bool) -> None:
    """In float64 within a thousand roundings of the largest entry; the energies of the atoms are added to others."""
    network = model()
    accelerate(network)
    expected = results(MACECalculator(models=[model()], default_dtype=dtype), periodic)
    fast = results(MACECalculator(models=[network], default_dtype=dtype), periodic)
    for a, b in zip(fast, expected, strict=True):
        scale = max(np.abs(e).max() for e in expected)
        np.testing.assert_allclose(a, b, rtol=0, atol=1e3 * np.finfo(dtype).eps * scale)


def test_a_saved_model_is_loaded_by_a_fresh_process(tmp_path: Path) -> None:
    network = model()
    accelerate(network)
    torch.save(network, tmp_path / "fast.model")
    expected = results(MACECalculator(models=[network], default_dtype="float64"))
    np.save(tmp_path / "positions.npy", molecule().positions)
    code = (
        "import ase, numpy, sys\n"
        "from mace.calculators import MACECalculator\n"
        "numbers = [int(z) for z in sys.argv[1].split()]\n"
        "atoms = ase.Atoms(numbers=numbers, positions=numpy.load('positions.npy'))\n"
        "atoms.calc = MACECalculator(model_paths='fast.model', default_dtype='float64')\n"
        "numpy.savez('found.npz', energy=atoms.get_potential_energy(), forces=atoms.get_forces())\n"
        "assert 'AcceleratedConvolution' in repr(atoms.calc.models[0])\n"
    )
    numbers = " ".join(str(z) for z in molecule().numbers)
    done = subprocess.run([sys.executable, "-c", code, numbers], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = np.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(loaded["energy"], expected[0])
    np.testing.assert_array_equal(loaded["forces"], expected[1])


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, on how MACE's constructor copies and annotates
def test_a_model_built_anew_from_the_configuration_of_an_accelerated_one() -> None:
    """MACE's converters do this; weights go there and back."""
    network = model()
    accelerate(network)
    config, reference = extract_config_mace_model(network), extract_config_mace_model(model())
    assert list(config) == list(reference)
    assert {key: str(value) for key, value in config.items()} == {k: str(v) for k, v in reference.items()}
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        rebuilt = modules.ScaleShiftMACE(**config)
    finally:
        torch.set_default_dtype(default)
    rebuilt.load_state_dict(network.state_dict())
    subject = mace(hidden="4x0e + 4x1o", correlation=2, sizes=SIZES)
    plain = guests.outcome(subject, model())
    errors = guests.errors(guests.outcome(subject, rebuilt), plain)
    assert errors == dict.fromkeys(guests.QUANTITIES, 0.0)
    network.load_state_dict(rebuilt.state_dict())


def test_precision_changes_after_accelerate() -> None:
    subject = mace(hidden="4x0e + 4x1o", correlation=2, sizes=SIZES)
    exact, single = (guests.outcome(subject, subject.make(dtype)) for dtype in (torch.float64, torch.float32))
    network = subject.make(torch.float64)
    accelerate(network)
    bounds = guests.allowed(guests.errors(single, exact), torch.float32)
    errors = guests.errors(guests.outcome(subject, network.float()), exact)
    assert all(errors[key] <= bounds[key] for key in guests.QUANTITIES)
    deaccelerate(network)
    errors = guests.errors(guests.outcome(subject, network), exact)
    assert all(errors[key] <= bounds[key] for key in guests.QUANTITIES)


def test_maces_own_training_step() -> None:
    """MACE's loss and its optimization step, two times, on a batch with labels."""
    from mace.modules.loss import WeightedEnergyForcesLoss
    from mace.tools.train import take_step

    losses = []
    for fast in (False, True):
        network = model()
        if fast:
            accelerate(network)
        batch = labelled()
        optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
        loss_fn = WeightedEnergyForcesLoss(energy_weight=1.0, forces_weight=10.0)
        losses.append(
            [
                take_step(
                    model=network,
                    loss_fn=loss_fn,
                    batch=batch,
                    optimizer=optimizer,
                    ema=None,
                    output_args={"forces": True, "virials": False, "stress": False},
                    max_grad_norm=10.0,
                    device=torch.device("cpu"),
                )[0].item()
                for _ in range(3)
            ]
        )
    assert losses[0][0] > losses[0][2]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-11)


@pytest.mark.parametrize("readout", ["16x0e", "16x1o"], ids=["scalars", "vectors"])
def test_dipoles(readout: str) -> None:
    """A read-out of scalars only hands its last linear map, which has no paths, features of width 0."""
    with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
        torch.manual_seed(1)
        network = modules.AtomicDipolesMACE(
            r_max=4.0,
            num_bessel=4,
            num_polynomial_cutoff=5,
            max_ell=2,
            interaction_cls=modules.interaction_classes["RealAgnosticResidualInteractionBlock"],
            interaction_cls_first=modules.interaction_classes["RealAgnosticInteractionBlock"],
            num_interactions=2,
            num_elements=len(SPECIES),
            hidden_irreps=o3.Irreps("4x0e + 4x1o"),
            MLP_irreps=o3.Irreps(readout),
            avg_num_neighbors=4.0,
            atomic_numbers=list(SPECIES),
            correlation=2,
            gate=torch.nn.functional.silu,
            atomic_energies=None,
        )
    batch = labelled().to_dict()

    def outcome() -> dict[str, torch.Tensor]:
        copies = {key: value.detach().clone() for key, value in batch.items()}
        dipole = network(copies)["dipole"]
        named = dict(network.named_parameters())
        grads = torch.autograd.grad(dipole.square().sum(), list(named.values()), materialize_grads=True)
        return {"dipole": dipole, **dict(zip(named, grads, strict=True))}

    expected = outcome()
    report = accelerate(network)
    assert {row.path for row in report.replaced} >= {f"readouts.1.linear_{number}" for number in (1, 2)}
    results = outcome()
    assert float(expected["dipole"].detach().abs().max()) > 0
    assert list(results) == list(expected)
    scale = max(float(value.detach().abs().max()) for value in expected.values())
    for name, value in expected.items():
        assert torch.allclose(results[name], value, rtol=0, atol=1e3 * torch.finfo(value.dtype).eps * scale), name


def labelled() -> Any:
    """Two molecules with energies and forces."""
    from mace import data, tools
    from mace.tools import torch_geometric

    rng = np.random.default_rng(5)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        items = [
            data.AtomicData.from_config(
                data.Configuration(
                    atomic_numbers=np.array(list(SPECIES))[rng.integers(0, 4, atoms)],
                    positions=rng.random((atoms, 3)) * 4,
                    properties={"energy": -2.0 * atoms, "forces": rng.standard_normal((atoms, 3))},
                    property_weights={"energy": 1.0, "forces": 1.0},
                ),
                z_table=tools.AtomicNumberTable(list(SPECIES)),
                cutoff=4.0,
            )
            for atoms in (6, 3)
        ]
    finally:
        torch.set_default_dtype(default)
    return next(iter(torch_geometric.dataloader.DataLoader(items, batch_size=2, shuffle=False)))


def test_an_optimizer_of_matrices_finds_them_in_every_layer_that_mixes_channels() -> None:
    for parameter, shapes in matrices_of(model()).items():
        assert all(len(shape) == 2 for shape in shapes) == (parameter.dim() < 3)  # three axes: of a contraction
