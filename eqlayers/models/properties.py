"""Read-outs of networks: energies, dipole moments, polarizabilities of atoms; and their sums over structures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..core.backends.rows import summed_rows
from ..core.checks import check_choice, check_items, check_number
from ..core.errors import ConfigError, IndexRangeError, IrrepsError, ShapeError
from ..layers.base.module import KeepsFloat64

LARGEST_DEGREE = 11  # of e3nn's representations
#: Property -> irreps that a network outputs for each atom.
PROPERTIES = {"energy": o3.Irreps("0e"), "dipole": o3.Irreps("1o"), "polarizability": o3.Irreps("0e + 2e")}
#: Output of a potential -> property that it is computed from.
OUTPUTS = dict.fromkeys(("energy", "energies", "forces", "stress", "virials"), "energy")
OUTPUTS |= {"dipole": "dipole", "born_charges": "dipole", "polarizability": "polarizability"}


def read_properties(properties: Any) -> tuple[str, ...]:
    """Check names of properties; return them in the order of :data:`PROPERTIES`, without repetitions."""
    fix = "Pass ['energy'], which is usual."
    listed = check_items("properties", properties, "a list of names", fix)
    requested = [check_choice("properties", name, PROPERTIES) for name in listed]
    if not requested:
        raise ConfigError(f"properties must be at least one of {', '.join(PROPERTIES)}, got none. {fix}")
    return tuple(name for name in PROPERTIES if name in requested)


def property_irreps(properties: Sequence[str]) -> o3.Irreps:
    """Irreps that a network returns for each atom: the scalars of all properties, then vectors, then degree 2."""
    irreps = [ir for name in read_properties(properties) for _, ir in PROPERTIES[name]]
    return o3.Irreps([(1, ir) for ir in sorted(irreps, key=lambda ir: ir.l)]).simplify()


def even_scalars(hidden: o3.Irreps) -> o3.Irreps:
    """The even scalars (0e) among the irreps of features; raises if there are none."""
    scalars = o3.Irreps([(mul, ir) for mul, ir in hidden if ir.is_scalar()])
    if scalars.dim == 0:
        raise IrrepsError(f"hidden must hold even scalars (0e), got {hidden or 'none'}. Add '32x0e'.")
    return scalars


def readout_irreps(hidden: o3.Irreps, properties: Sequence[str]) -> o3.Irreps:
    """The irreps of ``hidden`` that a linear read-out of the properties uses; raises if one is missing.

    Example:
        >>> readout_irreps(o3.Irreps("8x0e + 8x1o + 8x2e"), ("energy", "dipole"))
        8x0e+8x1o
    """
    irreps = [ir for _, ir in property_irreps(properties)]
    missing = [f"{ir}" for ir in irreps if ir not in hidden]
    if missing:
        raise ConfigError(
            f"hidden must hold {' and '.join(missing)} for {', '.join(properties)}, got {hidden}. Add "
            f"'{hidden[0].mul}x{missing[0]}'."
        )
    return o3.Irreps([(mul, ir) for mul, ir in hidden if ir in irreps])


class AtomicProperties(KeepsFloat64):
    r"""Splits the output of a network by property, and sums dipoles and polarizabilities over structures.

    .. math:: \mu = \sigma_\mu \sum_i \mu_i, \qquad \alpha = \sigma_\alpha \sum_i (a_i 1 + \alpha^{(2)}_i)

    A dipole is a sum of atomic vectors without charges times positions: it depends neither on the origin nor on the
    choice of periodic images, and Born charges sum to zero.
    """

    def __init__(self, properties: Sequence[str]) -> None:
        super().__init__()
        self.properties = read_properties(properties)
        self.irreps = property_irreps(self.properties)
        self._columns = {str(ir): mul * ir.dim for mul, ir in self.irreps}  # torch.compile cannot trace o3.Irreps
        self._scalars = tuple(name for name in self.properties if "0e" in PROPERTIES[name])
        self.kept_in_float64 = tuple(f"{name}_scale" for name in self.tensors)
        for name in self.kept_in_float64:
            self.register_buffer(name, torch.ones((), dtype=torch.float64))
        if "polarizability" in self.properties:  # symmetric matrices of Frobenius norm 1
            matrices = 5**0.5 * o3.wigner_3j(1, 1, 2, dtype=torch.float64, device="cpu").permute(2, 0, 1)
            self.register_buffer("cartesian", matrices.contiguous(), persistent=False)
            self.kept_in_float64 += ("cartesian",)

    @property
    def tensors(self) -> tuple[str, ...]:
        """Properties other than the energy."""
        return tuple(name for name in self.properties if name != "energy")

    def set_scales(self, scales: Mapping[str, float]) -> None:
        """Set the scales of the named properties."""
        unknown = sorted(set(scales) - set(self.tensors), key=str)
        if unknown:
            raise IndexRangeError(f"tensor scales must be of {list(self.tensors)}, got also {unknown}. Leave them out.")
        for name, scale in scales.items():
            self.get_buffer(f"{name}_scale").fill_(check_number(f"the scale of {name}", scale, above=0))

    def forward(
        self, values: Tensor, batch: Tensor, num_graphs: int, added: int = 0
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Unscaled energies of atoms ``[A]`` or None, and tensors of structures by name in float64.

        ``values`` are the network's, ``[A, irreps.dim]``, or ``[A]`` if irreps.dim is 1; their last ``added`` rows
        belong to no structure. 'dipole' is ``[G, 3]``, 'polarizability' ``[G, 3, 3]``.
        """
        atoms, columns = batch.shape[0] + added, sum(self._columns.values())
        expected = [atoms] if columns == 1 else [atoms, columns]
        if list(values.shape) not in (expected, [atoms, columns]):
            numbers = "one number an atom" if columns == 1 else f"{self.irreps} of {', '.join(self.properties)}"
            raise ShapeError(
                f"the network must return {'[A]' if columns == 1 else '[A, columns]'} = {expected}, {numbers}, got "
                f"{list(values.shape)}. Reshape its result."
            )
        values = values.reshape(atoms, columns)
        energies = values.select(1, 0) if "energy" in self.properties else None  # the first of the scalars
        if not self.tensors:
            return energies, {}
        if added:
            values = values[:-added]
        parts = dict(zip(self._columns, values.split(list(self._columns.values()), 1), strict=True))
        single = dict(zip(self._scalars, parts["0e"].unbind(1), strict=True)) if self._scalars else {}
        tensors = {}
        if "dipole" in self.properties:
            tensors["dipole"] = pooled(parts["1o"].double(), batch, num_graphs) * self.get_buffer("dipole_scale")
        if "polarizability" in self.properties:
            isotropic = pooled(single["polarizability"].double(), batch, num_graphs)[:, None, None]
            anisotropic = pooled(parts["2e"].double(), batch, num_graphs) @ self.get_buffer("cartesian").flatten(1)
            eye = torch.eye(3, dtype=torch.float64, device=values.device)
            scale = self.get_buffer("polarizability_scale")
            tensors["polarizability"] = (isotropic * eye + anisotropic.view(-1, 3, 3)) * scale
        return energies, tensors

    def extra_repr(self) -> str:
        """Properties and irreps."""
        return f"{', '.join(self.properties)} from {self.irreps}"


def pooled(atoms: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
    """Sum rows of atoms ``[A, ...]`` by structure, ``[G, ...]``."""
    if num_graphs == 1:  # inductor cannot print a scatter into a single row
        return atoms.sum(0, keepdim=True)
    return summed_rows(atoms, batch, num_graphs)


def plain_options(network: Any, passed: Mapping[str, Any], **read: Any) -> dict[str, Any]:
    """Arguments of a network as plain values for its ``options``: ``locals()`` of ``__init__``, updated by ``read``."""
    read |= {name: getattr(network, name) for name in ("species", "cutoff", "properties") if name in passed}
    arguments = {name: read.get(name, value) for name, value in passed.items() if name not in ("self", "__class__")}
    plain = {tuple: list, o3.Irreps: str}
    return {name: plain.get(type(value), lambda same: same)(value) for name, value in arguments.items()}
