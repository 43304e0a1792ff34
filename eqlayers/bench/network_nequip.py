"""Networks of NequIP and of Allegro, which is an extension of it, each with atoms for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..integrations import from_nequip
from ..models import Potential
from .atoms import SIZES, Place, clusters
from .implementation import default_dtype
from .subject import Subject, kind_of, quiet_warnings, representable

Build = Callable[..., torch.nn.Module]
Native = Callable[[torch.nn.Module], Potential]


def nequip(
    *,
    layers: int = 4,
    channels: int = 64,
    lmax: int = 2,
    parity: bool = True,
    sizes: Sequence[int] = SIZES,
    place: Place | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
) -> Subject:
    """NequIP's network, on clusters of some sizes or on other atoms; its energies of atoms are scaled, then shifted."""
    from nequip.model import NequIPGNNModel

    options: dict[str, Any] = {"num_layers": layers, "num_features": channels, "l_max": lmax, "parity": parity}
    about = f"NequIP, {layers} layers, {channels} channels, l <= {lmax}{', both parities' if parity else ''}"
    atoms = clusters(sizes) if place is None else place
    return _subject(about, "nequip", atoms, NequIPGNNModel, options, scale, shift, from_nequip)


def allegro(
    *,
    layers: int = 2,
    channels: int = 32,
    scalars: int = 64,
    lmax: int = 2,
    parity: bool = True,
    sizes: Sequence[int] = SIZES,
    place: Place | None = None,
    scale: float = 0.5,
    shift: float = 0.0,
) -> Subject:
    """Allegro's network; see :func:`nequip`."""
    from allegro.model import AllegroModel

    options: dict[str, Any] = {
        "num_layers": layers,
        "num_tensor_features": channels,
        "num_scalar_features": scalars,
        "l_max": lmax,
        "parity": parity,
        "radial_chemical_embed": {"_target_": "allegro.nn.TwoBodyBesselScalarEmbed"},
    }
    about = f"Allegro, {layers} layers, {channels} channels, l <= {lmax}{', both parities' if parity else ''}"
    atoms = clusters(sizes) if place is None else place
    return _subject(about, "allegro", atoms, AllegroModel, options, scale, shift, None)


def _subject(
    about: str,
    package: str,
    atoms: Place,
    build: Build,
    options: dict[str, Any],
    scale: float,
    shift: float,
    native: Native | None,
) -> Subject:
    from nequip.data import AtomicDataDict, compute_neighborlist_, from_dict
    from nequip.utils.global_state import set_global_state

    names = list(atoms.species.values())

    def make(dtype: torch.dtype) -> torch.nn.Module:
        with default_dtype(torch.float64), torch.random.fork_rng(devices=[]), quiet_warnings():
            set_global_state()  # NequIP's data are float64, whatever its network is
            model = build(
                seed=1,
                model_dtype=str(dtype).removeprefix("torch."),
                type_names=names,
                r_max=atoms.cutoff,
                avg_num_neighbors=atoms.mean_neighbors,
                per_type_energy_scales=dict.fromkeys(names, scale),
                per_type_energy_shifts={name: shift - 1.0 - number for number, name in enumerate(names)},
                **options,
            )
            if dtype == torch.float64:
                return representable(model)
            first = list(make(torch.float64).parameters())
            with torch.no_grad():
                for parameter, right in zip(model.parameters(), first, strict=True):
                    parameter.copy_(right)
        return model

    def frame(one: Any) -> Any:
        periods = {} if one.cell is None else {"cell": one.cell, "pbc": torch.ones(3, dtype=torch.bool)}
        return compute_neighborlist_(from_dict({"pos": one.pos, "atom_types": one.species} | periods), atoms.cutoff)

    @lru_cache(maxsize=1)
    def data(device: torch.device) -> dict[str, Tensor]:
        with default_dtype(torch.float64):
            found = AtomicDataDict.batched_from_list([frame(one) for one in atoms.batch])
        return {key: value.to(device) for key, value in found.items()}

    def evaluate(network: torch.nn.Module, training: bool) -> tuple[Tensor, Tensor]:
        network.train(training)
        with default_dtype(torch.float64):
            out = network(dict(data(kind_of(network)[1])))
        return out["total_energy"].squeeze(-1), out["forces"]

    def compiled(dtype: torch.dtype) -> torch.nn.Module:
        # not by its compile_mode, which runs batches of one structure eagerly
        found: torch.nn.Module = torch.compile(make(dtype))  # type: ignore[assignment]
        return found

    return Subject(about, atoms, make, evaluate, package, compiled, native)
