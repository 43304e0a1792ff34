"""This package's NequIP networks become models of the package nequip, with equal energies and forces."""

from __future__ import annotations

from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from ..core.checks import check_type, got
from ..core.errors import ConfigError
from ..models import NequIP, Potential
from ..models.properties import even_scalars
from .from_nequip import _blocks, _columns, _core, _factors, _matrices, _radial

__all__ = ["to_nequip"]

_STAYS = "Others stay here."


def to_nequip(potential: Potential) -> nn.Module:
    """A ``GraphModel`` of the package nequip with the weights of a potential; the inverse of :func:`from_nequip`.

    Args:
        potential: Of a :class:`eqlayers.models.NequIP` that predicts energies, without repulsion.

    Returns:
        The module, in evaluation mode, with the dtype of the potential, on the CPU. Its types are named after elements.

    Raises:
        ConfigError: nequip cannot compute it, or is not installed.
    """
    check_type("potential", potential, Potential, "a Potential of a NequIP network", "Use from_nequip to get one.")
    network = potential.network
    if not isinstance(network, NequIP):
        raise ConfigError(f"potential.network must be eqlayers.models.NequIP, got {got(network)}. {_STAYS}")
    _one("repulsion", potential.repulsion, potential.repulsion is None, "None")
    _one("properties", ", ".join(network.properties), network.properties == ("energy",), "energy")
    options, types = network.options, network.embedding.weight.detach().cpu()
    enough = types.shape[1] >= len(types) and int(torch.linalg.matrix_rank(types.double())) == len(types)
    _one("embedding", f"{list(types.shape)}", enough, "independent rows, at least as many columns as species")
    widths = list(options["radial_hidden"])
    _one("radial_hidden", widths, len(set(widths)) < 2, "layers of one width")
    with torch.random.fork_rng(devices=[]):  # weights are drawn and written over
        model = _built(potential, network, widths).eval()
    core = _core(model)
    with torch.no_grad():
        core["type_embed"].embed_module.weight.copy_(types)
        before: dict[Any, float] = {}
        for number, step in enumerate(network.steps):
            layer = core[f"layer{number}_convnet"]
            _copy_step(step, layer, types, before, network.cutoff)
            before = _factors(layer.equivariant_nonlin)
        readout = _matrices(core["per_atom_energy_readout"].mlp_module)[0]
        readout.weight.copy_(network.read.weight.view_as(readout.weight) / before.get(o3.Irrep("0e"), 1.0))
    return model


def _one(what: str, came: Any, fits: bool, needed: str) -> None:
    if not fits:
        raise ConfigError(f"{what} of the potential must be {needed} for nequip, got {came}. {_STAYS}")


def _built(potential: Potential, network: NequIP, widths: list[int]) -> nn.Module:
    """The model with fresh weights; building by nequip changes torch's default dtype, which is put back."""
    try:
        from ase.data import chemical_symbols
        from nequip.model import FullNequIPGNNModel
        from nequip.utils.global_state import set_global_state
    except ImportError as error:
        raise ConfigError(f"to_nequip must find nequip, got {error}. Install nequip 0.19.") from error
    options, before = network.options, torch.get_default_dtype()
    names = [chemical_symbols[z] for z in network.species]
    per_type = {"scales": potential.scales.tolist(), "shifts": potential.shifts.tolist()}
    # irreps that cannot arise are left out by both
    hidden = [options["hidden"]] * (options["layers"] - 1)
    scalars = str(even_scalars(o3.Irreps(options["hidden"])))
    try:
        set_global_state()
        made: nn.Module = FullNequIPGNNModel(
            seed=0,
            model_dtype=str(potential.dtype).removeprefix("torch."),
            r_max=network.cutoff,
            type_names=names,
            irreps_edge_sh=str(network.irreps_sh),
            type_embed_num_features=network.embedding.weight.shape[1],
            feature_irreps_hidden=[*hidden, scalars],
            radial_mlp_depth=[len(widths)] * options["layers"],
            radial_mlp_width=[widths[0] if widths else 1] * options["layers"],
            num_bessels=options["num_basis"],
            polynomial_cutoff_p=options["cutoff_p"],
            avg_num_neighbors=1.0,  # set below, for each step
            **{f"per_type_energy_{name}": dict(zip(names, values, strict=True)) for name, values in per_type.items()},
        )
    finally:
        torch.set_default_dtype(before)
    return made


def _copy_step(step: Any, layer: Any, types: Tensor, before: dict[Any, float], cutoff: float) -> None:
    conv, gate = layer.conv, layer.equivariant_nonlin
    factor = {ir: before.get(ir, 1.0) for _, ir in step.irreps_in}
    blocks = _blocks(conv.linear_1)
    for path, view in _views(step.up, step.up.weight):
        ir = step.irreps_in[path.i_in].ir
        blocks[ir].copy_(view / factor[ir])
    for mine, (theirs, factors) in zip(step.radial.weights, _radial(step, conv, cutoff), strict=True):
        theirs.weight.copy_(mine.detach().cpu() / factors.to(types.dtype))
    conv.avg_num_neighbors_norm.norm_const.fill_(float(step.get_buffer("mean_neighbors")) ** -0.5)
    columns = _columns(step.gate, gate)
    _gather(step.down, step.down.weight, columns, _blocks(conv.linear_2))
    if conv.sc is None:
        return
    width = types.shape[1]
    views = {
        conv.sc.irreps_in1[ins.i_in1].ir: w for ins, w in zip(conv.sc.instructions, conv.sc.weight_views(), strict=True)
    }
    maps = {ir: w.new_zeros(len(types), w.shape[0], w.shape[2]) for ir, w in views.items()}
    for number in range(len(types)):
        of_species = {ir: matrix[number] for ir, matrix in maps.items()}
        _gather(step.self_connection.linear, step.self_connection.weight[number], columns, of_species)
    inverse = torch.linalg.pinv(types.double())  # [width, species]: a vector of the embedding that selects each species
    for ir, w in views.items():
        matrix = maps[ir].double() / (width**-0.5 * factor[ir])
        w.copy_(torch.einsum("vs,suw->uvw", inverse, matrix))


def _views(linear: Any, weight: Tensor) -> list[tuple[Any, Tensor]]:
    """Paths of a linear map with their matrices."""
    sizes = [path.path_shape[0] * path.path_shape[1] for path in linear.instructions]
    parts = weight.detach().cpu().flatten().split(sizes)
    return [(path, part.view(*path.path_shape)) for path, part in zip(linear.instructions, parts, strict=True)]


def _gather(linear: Any, weight: Tensor, columns: list[tuple[Any, Tensor]], blocks: dict[Any, Tensor]) -> None:
    """Put the paths of a map before the gate into the block of their irrep; paths of one irrep share its rows."""
    used: dict[int, int] = {}
    for path, view in _views(linear, weight):
        ir, places = columns[path.i_out]
        start = used.get(path.i_out, 0)
        used[path.i_out] = start + path.path_shape[0]
        blocks[ir][start : used[path.i_out], places] = view
