"""Models of mace-torch as potentials and back: energies, atoms, forces and stress equal to rounding."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from e3nn import o3
from mace import data, modules, tools
from mace.tools import torch_geometric

from eqlayers.errors import ConfigError
from eqlayers.integrations import accelerate, from_mace, to_mace
from eqlayers.models import MACE, Potential, Structures
from eqlayers.nn import ZBL
from tests.cases import default_dtype, quiet_warnings
from tests.each import refused
from tests.native.oracle import compare_values

CUTOFF = 4.0
EPS = torch.finfo(torch.float64).eps
SPECIES = (1, 6, 8)
PLAIN, RESIDUAL = "RealAgnosticInteractionBlock", "RealAgnosticResidualInteractionBlock"
DENSITY, BOTH = "RealAgnosticDensityInteractionBlock", "RealAgnosticDensityResidualInteractionBlock"


def make(dtype: torch.dtype = torch.float64, cls: str = "ScaleShiftMACE", **options: Any) -> Any:
    """A small model of mace-torch with random weights; read-outs of random sizes, as trained ones have."""
    species = options.pop("species", SPECIES)
    first, rest = options.pop("interactions", (RESIDUAL, RESIDUAL))
    heads = len(options.get("heads", ["Default"]))
    known: dict[str, Any] = {
        "r_max": CUTOFF,
        "num_bessel": 5,
        "num_polynomial_cutoff": 5,
        "max_ell": 2,
        "interaction_cls": modules.interaction_classes[rest],
        "interaction_cls_first": modules.interaction_classes[first],
        "num_interactions": 2,
        "num_elements": len(species),
        "hidden_irreps": o3.Irreps(options.pop("hidden", "4x0e + 4x1o")),
        "MLP_irreps": o3.Irreps("6x0e"),
        "atomic_energies": -np.arange(1.0, 1 + len(species) * heads).reshape(*([heads] if heads > 1 else []), -1),
        "avg_num_neighbors": 3.7,
        "atomic_numbers": list(species),
        "correlation": 2,
        "gate": torch.nn.functional.silu,
        "radial_MLP": [7, 9],
    }
    if cls == "ScaleShiftMACE":
        scale, shift = ([0.7, 1.3], [0.2, -0.4]) if heads > 1 else (0.7, 0.2)
        known |= {"atomic_inter_scale": scale, "atomic_inter_shift": shift}
    with default_dtype(dtype), quiet_warnings():
        return getattr(modules, cls)(**{**known, **options}).eval()


def batch_of(species: tuple[int, ...] = SPECIES, periodic: bool = True, dtype: torch.dtype = torch.float64) -> Any:
    """A structure of seven atoms, one of four and one atom alone, as MACE wants them."""
    rng = np.random.default_rng(5)
    items = []
    with default_dtype(dtype):
        for atoms in (7, 4, 1):
            grid = np.stack(np.meshgrid(*[np.arange(2)] * 3, indexing="ij"), -1).reshape(-1, 3)[:atoms]
            cell = {"cell": np.diag([3.7, 3.9, 4.2]) + 0.1 * rng.random((3, 3)), "pbc": (True, True, True)}
            configuration = data.Configuration(
                atomic_numbers=np.array(species)[rng.integers(0, len(species), atoms)],
                positions=1.4 * grid + 0.4 * rng.random((atoms, 3)),
                properties={},
                property_weights={},
                **(cell if periodic else {}),
            )
            table = tools.AtomicNumberTable(list(species))
            items.append(data.AtomicData.from_config(configuration, z_table=table, cutoff=CUTOFF))
    return next(iter(torch_geometric.dataloader.DataLoader(items, batch_size=len(items), shuffle=False)))


def structures_of(batch: Any, species: tuple[int, ...] = SPECIES, periodic: bool = True) -> Structures:
    z = torch.tensor(species)[batch.node_attrs.argmax(1)]
    cell = {"cell": batch.cell.view(-1, 3, 3), "shifts": batch.unit_shifts} if periodic else {}
    return Structures(z, batch.positions.detach(), batch.edge_index, batch.batch, batch.num_graphs, **cell)


def of_mace(model: Any, batch: Any, head: int = 0, periodic: bool = True) -> dict[str, torch.Tensor]:
    inputs = {key: value.clone() for key, value in batch.to_dict().items() if isinstance(value, torch.Tensor)}
    inputs["head"] = torch.full((batch.num_graphs,), head)
    with default_dtype(batch.positions.dtype):  # in which MACE computes powers of atomic numbers
        outputs = model(inputs, compute_stress=periodic)
    names = {
        "energy": "energy",
        "energies": "node_energy",
        "forces": "forces",
        **({"stress": "stress"} if periodic else {}),
    }
    return {name: outputs[theirs].detach().double() for name, theirs in names.items()}


def assert_same(results: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], eps: float = EPS) -> None:
    """Within 1e4 roundings of the largest entry: chains of ten sums over edges, channels, paths of 1e3 terms."""
    for name, value in expected.items():
        size = max(float(value.abs().max()), 1.0)
        error = float((results[name].double() - value).abs().max())
        assert error <= 1e4 * eps * size, (name, error)
    assert float(expected["forces"].abs().max()) > 1e-3


def compare(model: Any, potential: Potential, species: tuple[int, ...] = SPECIES, head: int = 0) -> None:
    for periodic in (True, False):
        batch = batch_of(species, periodic)
        results = potential(
            structures_of(batch, species, periodic), ("energy", "energies", "forces", *(["stress"] if periodic else []))
        )
        assert_same(results, of_mace(model, batch, head, periodic))


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "plain first": {"interactions": (PLAIN, RESIDUAL)},
    "plain": {"interactions": (PLAIN, PLAIN)},
    "residual": {},
    "density": {"interactions": (DENSITY, BOTH)},
    "density only": {"interactions": (DENSITY, DENSITY)},
    "density residual": {"interactions": (BOTH, BOTH)},
    "correlation 1": {"correlation": 1},
    "correlation 3": {"correlation": 3},
    "correlation of layers": {"correlation": [3, 1]},
    "scalars": {"hidden": "4x0e"},
    "l = 2": {"hidden": "4x0e + 4x1o + 4x2e", "max_ell": 3},
    "both parities": {"hidden": "3x0e + 3x0o + 3x1o + 3x1e"},
    "one species": {"species": (6,)},
    "one layer": {"num_interactions": 1},
    "three layers": {"num_interactions": 3},
    "repulsion": {"pair_repulsion": True},
    "foundation": {"pair_repulsion": True, "distance_transform": "Agnesi", "interactions": (DENSITY, BOTH)},
    "tanh": {"gate": torch.tanh},
    "narrow": {"radial_MLP": [], "max_ell": 1, "num_polynomial_cutoff": 6},
}


@pytest.mark.parametrize("cls", ["MACE", "ScaleShiftMACE"])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_there_and_back(name: str, cls: str) -> None:
    options = ARCHITECTURES[name]
    species = options.get("species", SPECIES)
    model = make(cls=cls, **options)
    potential = from_mace(model)
    assert potential.dtype == torch.float64
    compare(model, potential, species)
    back = to_mace(potential)
    compare(back, potential, species)
    assert isinstance(back, modules.ScaleShiftMACE)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_native_programs_have_all_values(name: str) -> None:
    species, potential = ARCHITECTURES[name].get("species", SPECIES), from_mace(make(**ARCHITECTURES[name]))
    batch = batch_of(species)
    z, ends = structures_of(batch, species).z, batch.edge_index
    vectors = (batch.positions[ends[1]] - batch.positions[ends[0]] + batch.shifts).detach()
    one = z[:1], vectors[:0], ends[:, :0]
    compare_values(potential, {"three structures": (z, vectors, ends), "one atom": one})


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_head_of_several(layers: int, head: int) -> None:
    """Alone it gives what it gave beside the other."""
    model = make(heads=["first", "second"], num_interactions=layers, pair_repulsion=True)
    potential = from_mace(model, ["first", "second"][head])
    compare(model, potential, head=head)
    compare(to_mace(potential), potential)


def test_a_head_must_be_named() -> None:
    model = make(heads=["first", "second"])
    with pytest.raises(ConfigError, match="head must"):
        from_mace(model)
    with pytest.raises(ConfigError, match=r"head must .*got 'third'"):
        from_mace(model, "third")


def test_from_a_file_with_torchs_state_untouched(tmp_path: Path) -> None:
    model = make()
    torch.save(model, tmp_path / "some.model")
    state = torch.get_rng_state()
    potential = from_mace(tmp_path / "some.model")
    back = to_mace(potential)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert (back.r_max.dtype, potential.shifts.dtype) == (torch.float64, torch.float64)
    compare(model, potential)


def test_no_such_file_and_no_model(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model must .*got .*none.model"):
        from_mace(tmp_path / "none.model")
    torch.save(make().state_dict(), tmp_path / "state.pt")
    with pytest.raises(ConfigError, match=r"model must .*got .*State dicts hold"):
        from_mace(tmp_path / "state.pt")
    with pytest.raises(ConfigError, match="model must"):
        from_mace(torch.nn.Linear(1, 1))


def test_a_model_of_float32() -> None:
    """In its own precision; and in float64, but for the constants that MACE has rounded to float32."""
    model = make(torch.float32, pair_repulsion=True, interactions=(DENSITY, BOTH), distance_transform="Agnesi")
    potential = from_mace(model)
    assert potential.dtype == torch.float32
    batch, exact = batch_of(dtype=torch.float32), batch_of()
    eps = torch.finfo(torch.float32).eps
    results = potential(structures_of(batch), ("energy", "energies", "forces", "stress"))
    assert_same(results, of_mace(model, batch), eps / 10)
    assert_same(from_mace(model.double())(structures_of(exact), tuple(results)), of_mace(model, exact), eps / 100)


def test_an_accelerated_model() -> None:
    model = make()
    plain = from_mace(model)
    accelerate(model)
    structures = structures_of(batch_of())
    assert_same(from_mace(model)(structures), plain(structures), 0.0)


def test_weights_go_there_and_back_unchanged() -> None:
    """Up to two roundings, of the factor between the normalisations of activations."""
    model = make(pair_repulsion=True, distance_transform="Agnesi", interactions=(BOTH, DENSITY))
    with torch.no_grad():
        for number, name in enumerate(("q", "p", "a")):
            getattr(model.radial_embedding.distance_transform, name).mul_(1.1 + 0.1 * number)
        model.pair_repulsion_fn.a_exp.mul_(1.1)
        model.pair_repulsion_fn.covalent_radii.mul_(1.2)
    back = to_mace(from_mace(model)).state_dict()
    state = model.state_dict()
    assert state.keys() == back.keys()
    changed = ("U_matrix", "atomic_energies", "scale_shift.shift", "covalent_radii")  # bases; shifts are one number
    for name, value in state.items():
        if not any(part in name for part in changed) and "symmetric_contractions" not in name:
            torch.testing.assert_close(back[name], value, rtol=3 * EPS, atol=0, msg=name)
    radii = "pair_repulsion_fn.covalent_radii"
    torch.testing.assert_close(back[radii][1:], state[radii][1:], rtol=0, atol=0)


def test_independent_products_of_another_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints made beside cuequivariance have fewer weights; the tensors of the model itself count."""
    model = make(hidden="4x0e + 4x1o", correlation=3)
    ours = MACE(SPECIES, "4x0e + 4x1o", 3, 2, use_reduced_cg=True).double()
    for product, source in zip(model.products, ours.products, strict=True):
        for theirs, mine in zip(
            product.symmetric_contractions.contractions, source.contraction.contractions, strict=True
        ):
            for name, value in mine.state_dict().items():
                if name.startswith("U_matrix"):
                    setattr(theirs, name, value)
            theirs.weights_max = torch.nn.Parameter(mine.weights_max.detach())
            theirs.weights = torch.nn.ParameterList(weight.detach().clone() for weight in mine.weights)
    potential = from_mace(model)
    assert potential.network.use_reduced_cg
    compare(model, potential)
    compare(to_mace(potential), potential)
    monkeypatch.setattr("mace.modules.wrapper_ops.CUET_AVAILABLE", False)
    with pytest.raises(ConfigError, match=r"potential\.network must"):
        to_mace(potential)


test_what_cannot_be_converted_is_named = refused(
    "options, message",
    [
        ({"edge_irreps": o3.Irreps("2x0e + 2x1o")}, r"model.edge_irreps must be None, got .*edge features"),
        ({"apply_cutoff": False}, "model.apply_cutoff must be True, got False: radial functions"),
        ({"use_so3": True, "hidden": "4x0e + 4x1e"}, "model.use_so3 must be False, got True"),
        ({"use_agnostic_product": True}, "model.use_agnostic_product must be False"),
        ({"use_last_readout_only": True}, "model.use_last_readout_only must be False"),
        ({"keep_last_layer_irreps": True}, r"model.products.1 must end in scalars, got 4x0e\+4x1o"),
        ({"radial_type": "gaussian"}, "model.radial_embedding.bessel_fn must be BesselBasis, got GaussianBasis"),
        ({"distance_transform": "Soft"}, "distance_transform must be NoneType or AgnesiTransform, got SoftTransform"),
        (
            {"interactions": (RESIDUAL, "RealAgnosticResidualNonLinearInteractionBlock")},
            r"model.interactions.1 must be RealAgnostic.*, got RealAgnosticResidualNonLinearInteractionBlock",
        ),
        ({"readout_cls": modules.NonLinearBiasReadoutBlock}, "model.readouts.last must be NonLinearReadoutBlock, got"),
        ({"gate": torch.nn.functional.relu}, "model.readouts.last must have an activation among silu, sigmoid, tanh"),
    ],
    lambda options: from_mace(make(**options)),
)


def test_trained_frequencies_and_parts_of_others_are_named() -> None:
    model = make()
    model.radial_embedding.bessel_fn.bessel_weights[1] += 0.01
    with pytest.raises(ConfigError, match="bessel_fn must"):
        from_mace(model)
    model = make()
    model.adapter = torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match="model must"):
        from_mace(model)


def test_what_mace_cannot_compute_is_named() -> None:
    network = MACE([1, 8], "2x0e", 1, 1, num_basis=2, radial_hidden=[3])
    with pytest.raises(ConfigError, match="scale of all species must"):
        to_mace(Potential(network, [1, 8], scale={1: 2.0}))
    with pytest.raises(ConfigError, match="factor of the repulsion and scale of the energy must"):
        to_mace(Potential(network, [1, 8], scale=2.0, repulsion=ZBL(p=5)))
    with pytest.raises(ConfigError, match="power of all envelopes must"):
        to_mace(Potential(network, [1, 8], repulsion=ZBL(p=6)))
    with pytest.raises(ConfigError, match=r"potential\.network must"):
        to_mace(Potential(type("Other", (torch.nn.Identity,), {"cutoff": 3.0})(), [1]))
    with pytest.raises(ConfigError, match="potential must"):
        to_mace(network)
    mixed = MACE([1], "2x0e", 1, 1, 3, 2, radial_hidden=[3], interactions=[PLAIN, RESIDUAL, DENSITY])
    with pytest.raises(ConfigError, match="interaction behind the first must"):
        to_mace(Potential(mixed, [1]))
