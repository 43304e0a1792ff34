"""The Lightning module of potentials: losses of energies, forces and stress, and their errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn

from ..atoms.elements import by_element, symbols_of
from ..core.checks import check_flag, check_items, check_number, check_type
from ..core.errors import ConfigError
from ..core.files.read_write import few
from ..data.structures import Label
from ..models import Committee, Potential, Structures, describe_potential
from ..models.properties import OUTPUTS
from ..models.structures import volumes
from .base import TrainedModule
from .checkpoints import check_network
from .fine_tuning import begun, fit_shifts
from .steps import ERRORS, LABELS, STAGES, atoms_of, error_metrics


class PotentialModule(TrainedModule):
    r"""Trains a potential on energies, forces and stress.

    .. math:: L = w_E\, \overline{\ell(\Delta E / N \sigma)} + w_F\, \overline{c_Z\, \ell(\Delta F / \sigma)}
              + w_S\, \overline{\ell(V \Delta S / N \sigma)} + w_\mu\, \overline{\ell(\Delta \mu / \sqrt N \sigma_\mu)}
              + w_\alpha\, \overline{\ell(\Delta \alpha / \sqrt N \sigma_\alpha)}

    with the scale :math:`\sigma` of the training part (the root mean square of the forces), N atoms and the volume V,
    so that weights do not depend on units: lengths are in Angstrom. Dipoles and polarizabilities, of networks that have
    these ``properties``, are divided by the root mean square of a component. Labels that are missing do not count.
    Logged are ``{train,val,test}/{energy,energy_per_atom,forces,stress,dipole,polarizability}_{mae,rmse}_{unit}`` in
    meV, Angstrom and e; ``val/loss``, L of the whole validation part with the weights of now, by which `best.ckpt` is
    chosen; and ``val/mae``, the error of the first that there is of forces, energy per atom, dipole and polarizability,
    for early stopping.

    Args:
        model: Network as :class:`eqlayers.models.Potential` takes it, e.g. ``eqlayers.models.NequIP``, with an
            attribute ``species``.
        learning_rate: Highest learning rate.
        weight_decay: Decoupled weight decay, of matrices only.
        betas: Decay rates of the two moments; by default (0.9, 0.999) of AdamW, (0.95, 0.98) of SOAP.
        warmup_steps: Optimizer steps of the linear rise of the learning rate.
        final_factor: Learning rate at the end as a fraction of ``learning_rate``; in between, half a cosine.
        checkpointing: Whether training computes parts of the network twice, for less memory.
        loss: ``"l1"`` (of forces: the length of the error), ``"huber"`` (quadratic within one scale) or ``"mse"``.
        energy_weight: Weight of energies in the loss, :math:`w_E`.
        forces_weight: Weight of forces, :math:`w_F`.
        stress_weight: Weight of stress, :math:`w_S`.
        dipole_weight, polarizability_weight: :math:`w_\mu, w_\alpha`.
        species_weights: :math:`c_Z` by symbol or atomic number; 1 for those left out.
        config_type_weights: Factor of each structure in the loss by its ``config_type``, ``{Default: 1.0, bulk: 2.0}``;
            ``Default`` is for all others, 1 without it. Means are over the number of structures or atoms.
        second_stage: Fraction of the training after which ``second_energy_weight`` and ``second_forces_weight``
            count; None for one stage.
        second_energy_weight, second_forces_weight: Weights of the second stage; None for the weight of the first.
        repulsion: A short-range energy, e.g. ``eqlayers.nn.ZBL``; None for none.
        optimizer: 'soap' (:class:`eqlayers.optim.SOAP`), 'adamw', or ``class_path`` and ``init_args`` of another.

    Raises:
        ConfigError: An option is out of range, or the network lacks its species.

    Example:
        >>> from eqlayers.models import NequIP
        >>> module = PotentialModule(NequIP([1, 6], hidden="4x0e + 4x1o", lmax=1, layers=2), forces_weight=10.0)
        >>> module.hparams["forces_weight"], module.potential.species
        (10.0, (1, 6))
    """

    best_by = "val/loss"
    potential: Potential
    scale: Tensor
    species_factors: Tensor

    def __init__(
        self,
        model: nn.Module,
        learning_rate: float = 1e-2,
        weight_decay: float = 0.0,
        betas: tuple[float, float] | None = None,
        warmup_steps: int = 100,
        final_factor: float = 0.0,
        loss: Literal["l1", "huber", "mse"] = "l1",
        energy_weight: float = 1.0,
        forces_weight: float = 1.0,
        stress_weight: float = 1.0,
        dipole_weight: float = 1.0,
        polarizability_weight: float = 1.0,
        species_weights: dict[int | str, float] | None = None,
        config_type_weights: dict[str, float] | None = None,
        second_stage: float | None = None,
        second_energy_weight: float | None = None,
        second_forces_weight: float | None = None,
        repulsion: nn.Module | None = None,
        checkpointing: bool = False,
        optimizer: str | dict[str, Any] = "soap",
    ) -> None:
        chosen = (optimizer, learning_rate, weight_decay, betas)
        super().__init__(model, chosen, (warmup_steps, final_factor), loss, checkpointing)
        if second_stage is not None:
            check_number("model.second_stage", second_stage, at_least=0, at_most=1, fix="0.75 is usual.")
            if second_energy_weight is None and second_forces_weight is None:
                raise ConfigError(
                    "model.second_stage must have a weight that differs from the first, got none. Set "
                    "model.second_energy_weight, e.g. to ten times model.energy_weight."
                )
        what, fix = "a list of chemical symbols or atomic numbers", "Set it to the species of the data."
        species = check_items("model.model.species", getattr(model, "species", None), what, fix)
        self.save_hyperparameters(ignore=["model", "repulsion"])
        for name in ("energy", "forces", "stress", "dipole", "polarizability", "second_energy", "second_forces"):
            if not name.startswith("second") or self.hparams[f"{name}_weight"] is not None:
                check_number(f"model.{name}_weight", self.hparams[f"{name}_weight"], at_least=0)
        fix = "Pass {'Default': 1.0, 'bulk': 2.0}."
        checked = check_type("model.config_type_weights", config_type_weights or {}, Mapping, "a mapping", fix)
        for name, weight in checked.items():
            check_number(f"model.config_type_weights of {name}", weight, at_least=0)
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))
        self.use(Potential(model, list(species), repulsion=repulsion))
        self.errors = nn.ModuleDict({f"{stage}_{name}": error_metrics() for stage in STAGES for name in ERRORS})
        self._group_weights: dict[str, Tensor] = {}  # by stage: the weight of each group of its part
        self._begun: tuple[tuple[int, ...], bool] | None = None  # of begin_with: species, and refit_shifts

    @property
    def model(self) -> nn.Module:
        """The network."""
        return self.potential.network

    def called(self) -> nn.Module:
        """The potential, whose calls can be compiled."""
        return self.potential

    def use(self, potential: Potential) -> None:
        """Train this potential, with the weights by species that are configured."""
        weights = by_element("model.species_weights", self.hparams["species_weights"] or {}, "weight")
        pairs = [(f"the weight of {symbols_of([z])}", weights.get(z, 1.0)) for z in potential.species]
        factors = [check_number(name, weight, at_least=0) for name, weight in pairs]
        self.potential = potential
        self.register_buffer("species_factors", torch.tensor(factors))

    def begin_with(self, start: Potential, species: Sequence[int | str] = (), refit_shifts: bool = True) -> None:
        """Take the weights, shifts and scales of a trained potential; call it before the fit.

        Args:
            start: The trained potential, of the architecture of this one.
            species: Elements of the data, as symbols or atomic numbers; those that it does not know are added.
            refit_shifts: Whether shifts of species that it knows are fitted to the errors of its energies, too, as
                energies of another method need it; shifts of new species always are.
        """
        check_flag("refit_shifts", refit_shifts)
        self.use(begun(self.potential, start, species))
        self._begun = tuple(start.species), refit_shifts
        added = symbols_of(sorted(set(self.potential.species) - set(start.species))) or "none"
        rank_zero_info(f"start: weights trained for {symbols_of(start.species)}, new species {added}")

    def errors_of(self, data: Any) -> dict[str, Label]:
        """All quantities, whatever the data have."""
        return ERRORS

    def main_quantity(self) -> str:
        """The forces, or the next quantity that the validation part has."""
        labels = self.watched or self.judged or self.labels
        return next((name for name in ERRORS if name.removesuffix("_per_atom") in labels), "forces")

    def setup(self, stage: str) -> None:
        """Take labels and statistics from the data; a checkpoint loaded afterwards overwrites the statistics."""
        super().setup(stage)
        data = self.data_of(stage, "eqlayers.data.StructureDataModule(...)")
        known = [name for name in LABELS if name in data.statistics.labels]
        self.labels = tuple(name for name in known if OUTPUTS[name] in self.potential.properties)
        self.judged = tuple(name for name in self.labels if name in data.labels)
        validated = getattr(data, "val_set", ())
        self.watched = tuple(name for name in self.judged if name in getattr(validated, "labels", self.judged))
        if len(validated) and not self.watched:
            raise ConfigError(
                f"the validation part must have one of the labels of the training part, {', '.join(self.judged)}, got "
                "none of them. Correct data.val_path or data.keys, or set data.val to 0."
            )
        learned = {OUTPUTS[label] for label in self.labels}
        unlabelled = [name for name in self.potential.properties if name not in learned]
        if unlabelled:
            raise ConfigError(
                f"the data must have labels for the network's predictions, got none of {', '.join(unlabelled)} but "
                f"{', '.join(data.statistics.labels) or 'nothing'}. Name their keys in data.keys, or set "
                "model.model.properties to what they have."
            )
        self._group_weights = self._read_group_weights(data)
        check_network(self.potential.first if isinstance(self.potential, Committee) else self.potential, data)
        if getattr(data, "dtype", self.potential.dtype) != self.potential.dtype:
            mine, theirs = (str(dtype).removeprefix("torch.") for dtype in (self.potential.dtype, data.dtype))
            raise ConfigError(
                f"data.dtype must be the dtype of the network, {mine}, got {theirs}. Set data.dtype to {mine}; "
                "trainer.precision sets the dtype of the network."
            )
        if stage == "fit":
            statistics = data.statistics
            self.scale.fill_(statistics.scale)
            if self._begun is not None:  # its scales stay, as they belong to the weights
                fit_shifts(self.potential, data, *self._begun)
                self.say_seen({"start": self.of_start}, data, ("val", "test"))
                return
            scales = {name: statistics.tensor_scales.get(name, 1.0) for name in self.potential.split.tensors}
            self.potential.set_statistics(statistics.shifts, statistics.scale, statistics.mean_neighbors, scales)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Describe the potential, so that :func:`eqlayers.models.load_potential` reads the checkpoint."""
        super().on_save_checkpoint(checkpoint)
        if hasattr(self.model, "options"):  # other networks are loaded by load_from_checkpoint(path, model=...)
            checkpoint.setdefault("hyper_parameters", {})["potential"] = describe_potential(self.potential)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Subtract energies of lone atoms as the saved potential did; say which shifts hold if the data have others."""
        super().on_load_checkpoint(checkpoint)
        described = checkpoint.get("hyper_parameters", {}).get("potential")
        if isinstance(described, dict):
            self.potential.subtract_isolated = bool(described.get("subtract_isolated", True))
        saved, data = checkpoint["state_dict"], self._data()
        if data is None or not {"potential.shifts", "scale"} <= saved.keys():
            return
        held = dict(zip(self.potential.species, saved["potential.shifts"].tolist(), strict=False))
        asked, scale = data.statistics.shifts, float(saved["scale"])
        pairs = [(scale, data.statistics.scale), *((held.get(z, shift), shift) for z, shift in asked.items())]
        if not all(math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9) for one, other in pairs):
            listed = ", ".join(f"{symbols_of([z])}: {held[z]:.6g} eV" for z in asked if z in held)
            line = f"shifts and scale of the checkpoint hold, not the values of data.e0s: {listed}; scale {scale:.4g}"
            data.report.append(line)
            if self.trainer.is_global_zero:
                print(line, flush=True)

    def _read_group_weights(self, data: Any) -> dict[str, Tensor]:
        """The weight of each group of the training and the validation part; none without ``config_type_weights``."""
        weights = self.hparams["config_type_weights"] or {}
        groups = {stage: getattr(getattr(data, f"{stage}_set", None), "groups", ()) for stage in ("train", "val")}
        known = set().union(*groups.values())
        if unknown := sorted(set(weights) - known - {"Default"}):
            listed = few(sorted(known - {""})) or "of which it has none"
            raise ConfigError(
                f"model.config_type_weights must name groups of the data, {listed}, or Default, got "
                f"{', '.join(unknown)}. Correct the names, or name the key in data.keys.config_type."
            )
        rest = weights.get("Default", 1.0)
        values = {stage: [weights.get(name, rest) for name in names] for stage, names in groups.items()}
        return {stage: torch.tensor(row, dtype=torch.float64) for stage, row in values.items() if weights}

    def forward(self, batch: Any, more: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Predictions of the labels that the data have, and more outputs; see :class:`eqlayers.models.Potential`."""
        with self.recomputing():
            predictions: dict[str, Tensor] = self.potential(Structures.of(batch), (*self.labels, *more) or None)
        return predictions

    def outputs(self, batch: Any, more: bool = False) -> Mapping[str, Tensor]:
        """Predictions of a batch by label; with ``more``, energies of atoms."""
        further = ("energies",) * (more and "energy" in self.potential.properties)
        predictions: Mapping[str, Tensor] = self(batch, further)
        return predictions

    def rows(self, batch: Any, predictions: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        """Name, prediction, label and factor to the unit of the loss of each label, ``[rows, columns]``."""
        atoms = atoms_of(batch).double()
        for name in self.labels:
            label, value = getattr(batch, name), predictions[name]
            if name == "energy":
                yield name, value[:, None], label[:, None].double(), (1 / (atoms * self.scale))[:, None]
            elif name == "forces":
                yield name, value, label.to(value.dtype), (1 / self.scale).to(value.dtype).expand(len(value), 1)
            elif name in self.potential.split.tensors:
                size = self.potential.split.get_buffer(f"{name}_scale") * atoms.sqrt()
                yield name, value.flatten(1), label.flatten(1).double(), (1 / size)[:, None]
            else:
                volume = volumes(batch.cell.double())
                rows = (volume / (atoms * self.scale))[:, None].to(value.dtype)
                yield name, value.flatten(1), label.flatten(1).to(value.dtype), rows

    def weigh(self, name: str, losses: Tensor, batch: Any, stage: str) -> Tensor:
        """Losses of rows, times weights of species and groups."""
        if name == "forces" and self.hparams["species_weights"]:
            losses = losses * self.species_factors[self.potential.kind_of(batch.z)].to(losses.dtype)
        if self._group_weights:
            weights = self._group_weights[stage] = self._group_weights[stage].to(losses.device)
            of_structures = weights[batch.group]
            each = of_structures[batch.batch] if name == "forces" else of_structures
            losses = losses * each.to(losses.dtype)
        return losses

    def loss_weights(self) -> dict[str, float]:
        """Weights of the labels in the loss of the last step of the training."""
        h = self.hparams
        weights = {name: h[f"{name}_weight"] for name in ("energy", "forces", "stress", "dipole", "polarizability")}
        if self.plan is not None and h["second_stage"] is not None and self.step >= h["second_stage"] * self.plan.steps:
            second = {name: h[f"second_{name}_weight"] for name in ("energy", "forces")}
            weights |= {name: weight for name, weight in second.items() if weight is not None}
        return weights

    def predict_step(self, batch: Any, batch_idx: int) -> dict[str, Any]:
        """Energies of a batch with the names of its structures, for the table of predictions.

        Raises:
            ConfigError: The network predicts none.
        """
        if "energy" not in self.potential.properties:
            raise ConfigError(
                f"predictions must be of energies here, got a network of {', '.join(self.potential.properties)}. Use "
                "`eqlayers predict structures.xyz -m potential.pt`."
            )
        return super().predict_step(batch, batch_idx)
