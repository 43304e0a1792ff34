"""Convert models of the package nequip to potentials of this package, and back, with equal energies and forces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from ..atoms.elements import SYMBOLS
from ..core.checks import check_type, got
from ..core.dtypes import default_dtype
from ..core.errors import ConfigError
from ..core.files.archives import check_whole
from ..core.files.read_write import atomic_write
from ..layers.gate.activation import second_moment
from ..models import NequIP, Potential
from ..models.properties import even_scalars

__all__ = ["from_nequip", "load_nequip", "to_nequip", "write_nequip"]

_FIX = "Run it by nequip, and its layers by eqlayers.accelerate."
_STAYS = "Others stay here."


def from_nequip(model: nn.Module) -> Potential:
    r"""Convert a ``NequIPGNNModel`` of the package nequip to a potential.

    Differences of convention are absorbed in weights: nequip's vectors point from receivers to senders, a sign of odd
    harmonics; its self-connection multiplies by the embedding of the species, a matrix for each species; factors of its
    Bessel functions and activations are moved to the next linear maps.

    Args:
        model: A model built by nequip, or loaded from a checkpoint.

    Returns:
        A :class:`Potential` of a :class:`NequIP` in the dtype of the model.

    Raises:
        ConfigError: The model has a part that :class:`NequIP` does not support.
    """
    from ase.data import atomic_numbers  # a dependency of nequip

    core = _core(check_type("model", model, nn.Module, "a model of nequip", "Build or load it by nequip."))
    layers = [core[f"layer{n}_convnet"] for n in range(sum(name.startswith("layer") for name in core))]
    for layer in layers:
        _check_layer(layer, first=layer is layers[0])
    names = list(core["per_type_energy_scale_shift"].type_names)
    species = [atomic_numbers.get(name, 0) for name in names]
    _check(0 not in species, "types named after elements", names)
    bessel, lengths = core["bessel_encode"], core["edge_norm"]
    count = bessel.num_bessels
    roots = bessel.bessel_weights.detach().flatten().double()
    whole = torch.equal(roots, torch.arange(1, count + 1, dtype=torch.float64))
    _check(whole, "Bessel functions with whole numbers of half waves", "trained roots")
    _check(not lengths._per_edge_type, "one cutoff", "one for each pair of types")
    hidden = layers[0].feature_irreps_hidden
    same = all(layer.feature_irreps_hidden == hidden for layer in layers[:-1])
    _check(same, "the same features between all steps", "others")
    widths = [[m.weight.shape[1] for m in _matrices(layer.conv.edge_mlp)[:-1]] for layer in layers]
    _check(all(width == widths[0] for width in widths), "the same radial networks in all steps", widths)
    readout = _matrices(core["per_atom_energy_readout"].mlp_module)
    _check(len(readout) == 1, "a linear read-out", f"one of {len(readout)} layers")
    cutoff = float(lengths.r_max)
    sh = layers[0].irreps_in["edge_attrs"]
    network = NequIP(
        species,
        hidden=str(hidden),
        lmax=max(sh.ls),
        layers=len(layers),
        num_basis=count,
        cutoff=cutoff,
        cutoff_p=int(bessel.cutoff.p),
        radial_hidden=widths[0],
        mean_neighbors=float(layers[0].conv.avg_num_neighbors_norm.norm_const.double().flatten()[0] ** -2),
        embedding=core["type_embed"].embed_module.weight.shape[1],
    ).to(readout[0].weight.dtype)
    with torch.no_grad():
        types = core["type_embed"].embed_module.weight
        network.embedding.weight.copy_(types)
        before: dict[Any, float] = {}  # irrep -> factor of the previous step's activation
        for step, layer in zip(network.steps, layers, strict=True):
            _copy_step(step, layer, types, before, cutoff, back=False)
            before = _factors(layer.equivariant_nonlin)
        network.read.weight.copy_(readout[0].weight.flatten() * before.get(o3.Irrep("0e"), 1.0))
    scale_shift = core["per_type_energy_scale_shift"]
    scales = scale_shift.scales.detach().double() if scale_shift.has_scales else torch.ones(1)
    shifts = scale_shift.shifts.detach().double() if scale_shift.has_shifts else torch.zeros(1)
    numbers = (values.flatten().expand(len(species)).tolist() for values in (scales, shifts))
    scales, shifts = (dict(zip(species, values, strict=True)) for values in numbers)
    _check(min(scales.values()) > 0, "positive scales", scales)
    return Potential(network, species, shifts, scales).train(model.training)


def load_nequip(path: str) -> Potential:
    """Load a potential from a checkpoint or package of nequip, a file that can run any code."""
    with _nequip("nequip.model.saved_models.load_saved_model") as load:
        try:
            with open(path, "rb") as file:
                check_whole(file)
            model = load(path)
        except Exception as error:  # errors of nequip, Lightning, torch.package and pickle
            raise ConfigError(
                f"MODEL must be a checkpoint or a package of nequip, got {path}: {type(error).__name__}: {error}. "
                "Name the file that nequip wrote."
            ) from error
    return from_nequip(model).eval()


def to_nequip(potential: Potential) -> nn.Module:
    """Convert a potential to a ``GraphModel`` of the package nequip; the inverse of :func:`from_nequip`.

    Args:
        potential: A potential of a :class:`eqlayers.models.NequIP` that predicts energies, without repulsion.

    Returns:
        The module, in evaluation mode, with the dtype of the potential, on the CPU. Its types are named after elements.

    Raises:
        ConfigError: nequip does not support the potential, or is not installed.
    """
    check_type("potential", potential, Potential, "a Potential of a NequIP network", "Use from_nequip to get one.")
    network = potential.network
    if not isinstance(network, NequIP):
        raise ConfigError(f"potential.network must be eqlayers.models.NequIP, got {got(network)}. {_STAYS}")
    _require("repulsion", potential.repulsion, potential.repulsion is None, "None")
    _require("properties", ", ".join(network.properties), network.properties == ("energy",), "energy")
    options, types = network.options, network.embedding.weight.detach().cpu()
    enough = types.shape[1] >= len(types) and int(torch.linalg.matrix_rank(types.double())) == len(types)
    _require("embedding", f"{list(types.shape)}", enough, "independent rows, at least as many columns as species")
    widths = list(options["radial_hidden"])
    _require("radial_hidden", widths, len(set(widths)) < 2, "layers of one width")
    with _nequip("nequip.model.FullNequIPGNNModel") as build, torch.random.fork_rng(devices=[]):
        model: nn.Module = build(**_settings(potential)).eval()  # initial weights are overwritten
    core = _core(model)
    with torch.no_grad():
        core["type_embed"].embed_module.weight.copy_(types)
        before: dict[Any, float] = {}
        for number, step in enumerate(network.steps):
            layer = core[f"layer{number}_convnet"]
            _copy_step(step, layer, types, before, network.cutoff, back=True)
            before = _factors(layer.equivariant_nonlin)
        readout = _matrices(core["per_atom_energy_readout"].mlp_module)[0]
        readout.weight.copy_(network.read.weight.view_as(readout.weight) / before.get(o3.Irrep("0e"), 1.0))
    return model


def write_nequip(potential: Potential, path: Path) -> None:
    """Write :func:`to_nequip` of a potential as a checkpoint that nequip loads, compiles and trains further."""
    model = to_nequip(potential)
    network: Any = potential.network
    means = [float(step.get_buffer("mean_neighbors")) for step in network.steps]
    _require("mean_neighbors", means, len(set(means)) == 1, "the same in all steps")  # it is no weight of nequip
    with _nequip("nequip.train.NequIPLightningModule") as module_class, torch.random.fork_rng(devices=[]):
        from nequip.utils import get_current_code_versions

        settings = {"_target_": "nequip.model.FullNequIPGNNModel", **_settings(potential)}
        training = {"_target_": "nequip.train.NequIPLightningModule", "model": settings}
        facts = {"versions": get_current_code_versions(verbose=False), "training_module": training}
        module = module_class(settings, {"train": 1, "val": 0, "test": 0, "predict": 0}, info_dict=facts)
    (inner,) = module.model.values()
    inner.load_state_dict(model.state_dict())
    checkpoint = {"state_dict": module.state_dict(), "hyper_parameters": dict(module.hparams)}
    checkpoint["pytorch-lightning_version"] = version("lightning")
    with atomic_write(path) as file:
        torch.save(checkpoint, file)


def _require(what: str, value: Any, supported: bool, needed: str) -> None:
    """Raise unless a part of a potential is supported by nequip."""
    if not supported:
        raise ConfigError(f"{what} of the potential must be {needed} for nequip, got {value}. {_STAYS}")


def _settings(potential: Potential) -> dict[str, Any]:
    """Arguments of nequip's ``FullNequIPGNNModel`` for the network of a potential."""
    network: Any = potential.network
    options, widths = network.options, list(network.options["radial_hidden"])
    names = [SYMBOLS[z - 1] for z in network.species]
    per_type = {"scales": potential.scales.tolist(), "shifts": potential.shifts.tolist()}
    # both packages leave out irreps that no path reaches
    hidden = [options["hidden"]] * (options["layers"] - 1)
    scalars = str(even_scalars(o3.Irreps(options["hidden"])))
    return {
        "seed": 0,
        "model_dtype": str(potential.dtype).removeprefix("torch."),
        "r_max": network.cutoff,
        "type_names": names,
        "irreps_edge_sh": str(network.irreps_sh),
        "type_embed_num_features": network.embedding.weight.shape[1],
        "feature_irreps_hidden": [*hidden, scalars],
        "radial_mlp_depth": [len(widths)] * options["layers"],
        "radial_mlp_width": [widths[0] if widths else 1] * options["layers"],
        "num_bessels": options["num_basis"],
        "polynomial_cutoff_p": options["cutoff_p"],
        "avg_num_neighbors": float(network.steps[0].get_buffer("mean_neighbors")),
        **{f"per_type_energy_{name}": dict(zip(names, values, strict=True)) for name, values in per_type.items()},
    }


@contextmanager
def _nequip(name: str) -> Iterator[Any]:
    """Import an object of nequip by its path; restore torch's default dtype, which nequip changes, afterwards."""
    with default_dtype(torch.get_default_dtype()):
        try:
            from nequip.utils.global_state import set_global_state

            module, _, attribute = name.rpartition(".")
            loaded = getattr(import_module(module), attribute)
        except ImportError as error:
            raise ConfigError(f"nequip must be installed, got {error}. Install nequip 0.19.") from error
        set_global_state()
        yield loaded


def _check(supported: bool, what: str, received: Any) -> None:
    """Raise unless a part of a model of nequip is supported."""
    if not supported:
        raise ConfigError(f"the model must have {what}, got {received}. {_FIX}")


def _core(model: nn.Module) -> dict[str, Any]:
    """Submodules of a NequIPGNNModel by name; raises if one is missing or unknown."""
    required = [*("type_embed", "spharm", "edge_norm", "bessel_encode", "factor", "layer0_convnet")]
    required += ["per_atom_energy_readout", "per_type_energy_scale_shift"]
    core: Any = next((m for m in model.modules() if all(name in dict(m.named_children()) for name in required)), None)
    _check(core is not None, "the parts of a NequIPGNNModel", type(model).__name__)
    children = dict(core.named_children())
    known = {*required, "total_energy_sum", *(name for name in children if name.startswith("layer"))}
    _check(children.keys() <= known, "no further parts", ", ".join(sorted(children.keys() - known)))
    return children


def _check_layer(layer: Any, first: bool) -> None:
    """Raise unless a step of a model of nequip is supported."""
    name = type(layer.equivariant_nonlin).__name__
    _check(name == "Gate", "gates", name)
    _check(not layer.resnet, "no residual connections", "a layer with one")
    _check((layer.conv.sc is None) == first, "self-connections in all steps but the first", "another choice")
    single = layer.conv.avg_num_neighbors_norm.norm_const.numel() == 1
    _check(single, "one mean number of neighbours", "one for each type")


def _matrices(mlp: Any) -> list[Any]:
    """Linear layers of a multilayer perceptron of nequip."""
    return [module for module in mlp.modules() if hasattr(module, "alpha") and hasattr(module, "weight")]


def _factors(gate: Any) -> dict[Any, float]:
    """Irrep of a gate's output -> ratio of e3nn's normalisation factor of its activation to the exact one."""

    def ratio(act: Any, name: str) -> float:
        return float(getattr(act, "cst", 1.0)) * second_moment(name) ** 0.5

    names = {1: "silu", -1: "tanh"}
    pairs = zip(gate.irreps_scalars, gate.act_scalars.acts, strict=True)
    scalars = {ir: ratio(act, names[ir.p]) for (_, ir), act in pairs}
    gates = {ir: ratio(act, "silu") for (_, ir), act in zip(gate.irreps_gated, gate.act_gates.acts, strict=True)}
    return scalars | gates


def _copy_step(step: Any, layer: Any, types: Tensor, before: dict[Any, float], cutoff: float, back: bool) -> None:
    """Copy the weights of one step from nequip, or to nequip with ``back``."""
    conv, width = layer.conv, types.shape[1]
    factor = {ir: before.get(ir, 1.0) for _, ir in step.irreps_in}
    columns = _columns(step.gate, layer.equivariant_nonlin)
    up, down = _blocks(conv.linear_1), _blocks(conv.linear_2)
    inputs = [step.irreps_in[path.i_in].ir for path in step.up.instructions]
    pairs: list[tuple[Any, Any, Any]]
    pairs = [(view, up[ir], factor[ir]) for ir, view in zip(inputs, step.up.weight_views(), strict=True)]
    radial = zip(step.radial.weights, _radial(step, conv, cutoff), strict=True)
    pairs += [(mine, theirs.weight, larger.to(types.dtype)) for mine, (theirs, larger) in radial]
    pairs += _before_gate(step.down, step.down.weight, columns, down)
    if conv.sc is not None:
        sc = zip(conv.sc.instructions, conv.sc.weight_views(), strict=True)
        weights = {conv.sc.irreps_in1[path.i_in1].ir: view for path, view in sc}
        maps = {ir: torch.einsum("uvw,sv->suw", w, types) * width**-0.5 * factor[ir] for ir, w in weights.items()}
        for number, flat in enumerate(step.self_connection.weight):
            of_species = {ir: matrix[number] for ir, matrix in maps.items()}
            pairs += _before_gate(step.self_connection.linear, flat, columns, of_species)
    for mine, theirs, larger in pairs:
        if back:
            theirs.copy_(mine.detach().cpu() / larger)
        else:
            mine.copy_(theirs * larger)
    neighbors, norm = step.get_buffer("mean_neighbors"), conv.avg_num_neighbors_norm.norm_const
    if back:
        norm.fill_(float(neighbors) ** -0.5)
    else:
        neighbors.fill_(float(norm.double().flatten()[0]) ** -2)
    if back and conv.sc is not None:  # [width, species]: a vector of the embedding that selects each species
        inverse = torch.linalg.pinv(types.double())
        for ir, w in weights.items():
            w.copy_(torch.einsum("vs,suw->uvw", inverse, maps[ir].double() / (width**-0.5 * factor[ir])))


def _radial(step: Any, conv: Any, cutoff: float) -> list[tuple[Any, Tensor]]:
    """Linear layers of nequip's radial network, with the factors of weights here, by column in the last layer."""
    matrices, exact = _matrices(conv.edge_mlp), second_moment("silu") ** 0.5
    # vectors of opposite direction: odd harmonics change sign
    paths, irreps = step.product.instructions, step.product.irreps_in2
    signs = [(-1.0) ** irreps[path.i_in2].ir.l for path in paths for _ in range(path.path_shape[0])]
    factors = []
    for number, theirs in enumerate(matrices):
        same = float(theirs.alpha) * theirs.weight.shape[0] ** 0.5 * (exact if number else math.sqrt(2 / cutoff))
        columns = torch.tensor(signs if number == len(matrices) - 1 else [1.0], dtype=torch.float64)
        factors.append((theirs, same * columns))
    return factors


def _blocks(linear: Any) -> dict[Any, Tensor]:
    """Irrep -> matrix ``[mul_in, mul_out]`` of a linear map of e3nn in which each irrep occurs once."""
    paths = zip(linear.instructions, linear.weight_views(), strict=True)
    return {linear.irreps_in[path.i_in].ir: view for path, view in paths}


def _columns(mine: Any, theirs: Any) -> list[tuple[Any, slice]]:
    """Irrep and columns in nequip's matrix, in which scalars precede gates, of each group of a gate's input."""
    scalars = {ir: mul for mul, ir in theirs.irreps_scalars}
    even = scalars.get(o3.Irrep("0e"), 0)
    gated = sum(mul for mul, _ in theirs.irreps_gates) > 0
    starts = [even if gated and number == 0 else 0 for number in range(len(mine.irreps_in))]
    return [(ir, slice(start, start + mul)) for (mul, ir), start in zip(mine.irreps_in, starts, strict=True)]


def _before_gate(
    linear: Any, weight: Tensor, columns: list[tuple[Any, slice]], blocks: dict[Any, Tensor]
) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield each path's matrix, its part of nequip's block and 1; paths of an irrep take consecutive rows."""
    used: dict[int, int] = {}
    for path, view in zip(linear.instructions, linear.weight_views(weight), strict=True):
        ir, selected = columns[path.i_out]
        start = used.get(path.i_out, 0)
        used[path.i_out] = start + len(view)
        yield view, blocks[ir][start : used[path.i_out], selected], 1.0
