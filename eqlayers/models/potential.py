"""Potentials: energies of a network of atoms, with forces, stress, Hessians and Born charges by differentiation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from ..atoms.elements import SYMBOLS, by_element, read_species, symbols_of
from ..core.backends.rows import taken
from ..core.checks import (
    check_choice,
    check_flag,
    check_integer,
    check_items,
    check_module,
    check_number,
    check_optional,
    check_tensor,
    check_type,
)
from ..core.errors import ConfigError, DTypeError, IndexRangeError, ShapeError
from ..core.graph import Graph, check_range
from ..core.torch_internals import assert_later, being_traced, is_plain, unwrapped
from ..hints.names import AnswersNames
from ..irreps.algebra import as_irreps
from ..layers.base.module import KeepsFloat64
from ..layers.harmonics.module import EdgeGeometry, EdgeVectors
from .compiled import Compiles
from .properties import OUTPUTS, AtomicProperties, pooled
from .structures import Structures, volumes


class Potential(Compiles, KeepsFloat64, metaclass=AnswersNames):
    r"""The energy of atoms from a network, with forces, stress and Hessian.

    .. math:: E = \sum_i \big(\sigma_{Z_i} (e_i - e_{Z_i}) + s_{Z_i}\big) + E_{rep}, \qquad
              F = -\partial E / \partial r, \qquad
              \sigma_{ab} = \frac{1}{V} \frac{\partial E}{\partial \epsilon_{ab}}

    with :math:`e_Z`, the output of the network for an atom of the species without neighbours, so that the energy of a
    lone atom is its shift. The strain :math:`\epsilon` is applied to positions and cells, so the sign of the stress is
    ASE's: positive where the structure pulls inwards. Virials are :math:`-V \sigma`. Scales, shifts and sums over atoms
    are in float64, all else in the dtype of the network.

    Args:
        network: ``forward(atom_types, edges, graph) -> [A]``, the number :math:`e_i` of every atom: ``atom_types``
            ``[A]`` int64 are indices into ``species``, ``edges`` an :class:`eqlayers.nn.EdgeVectors` with vectors from
            senders to receivers, ``graph`` an :class:`eqlayers.Graph`. Its attribute ``cutoff`` is the longest edge, in
            Angstrom, ``irreps_sh`` the irreps of the harmonics in ``edges``. A network with an attribute
            ``properties``, names among 'energy', 'dipole' and 'polarizability', returns ``[A, columns]``: the scalars
            of energy and polarizability, then the vector of the dipole, then degree 2 of the polarizability.
            ``lone_atoms_are_zero = True`` states that :math:`e_Z` is 0 for all weights, so that it is not computed.
        species: Symbols or atomic numbers that occur.
        shifts: :math:`s_Z` in eV, by symbol or atomic number; 0 for those that are left out.
        scale: :math:`\sigma` in eV, one number or one for each species.
        repulsion: ``forward(z, edges, graph) -> [A]`` in eV, a short-range energy such as :class:`ZBL`; or None.
        subtract_isolated: Whether :math:`e_Z` is subtracted: the network is called with one more atom of each species,
            which has no edges. Without, a lone atom has the energy :math:`\sigma_Z e_Z + s_Z`, as in models of
            mace-torch.
        backend: Backend of the harmonics; see :class:`eqlayers.nn.EdgeGeometry`.

    Raises:
        ConfigError, IndexRangeError: An argument is invalid, or the repulsion reaches farther than the cutoff.

    Source:
        Knuth et al. 2015, doi:10.1016/j.cpc.2015.01.003, for stress by strain.

    Example:
        >>> class Springs(torch.nn.Module):
        ...     cutoff, irreps_sh = 5.0, "0e"
        ...     def forward(self, atom_types, edges, graph):
        ...         pairs = 0.25 * (edges.lengths - 1.0) ** 2
        ...         return pairs.new_zeros(atom_types.shape[0]).index_add(0, graph.edge_index[1], pairs)
        >>> potential = Potential(Springs(), species=[1]).eval()
        >>> pos, pair = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 3.0]]), torch.tensor([[0, 1], [1, 0]])
        >>> results = potential(Structures(torch.tensor([1, 1]), pos, pair))
        >>> results["energy"], results["forces"][:, 2].round(decimals=3)
        (tensor([2.], dtype=torch.float64), tensor([ 2., -2.]))
    """

    species_index: Tensor
    shifts: Tensor
    scales: Tensor
    lone_types: Tensor
    moved_to: Tensor
    kept_in_float64 = ("shifts", "scales")

    def __init__(
        self,
        network: torch.nn.Module,
        species: Sequence[int | str],
        shifts: Mapping[Any, float] | None = None,
        scale: float | Mapping[Any, float] = 1.0,
        repulsion: torch.nn.Module | None = None,
        subtract_isolated: bool = True,
        backend: str | None = None,
    ) -> None:
        super().__init__()
        self.subtract_isolated = check_flag("subtract_isolated", subtract_isolated)
        self.network = check_module("network", network)
        self.repulsion = check_optional(check_module, "repulsion", repulsion)
        self.species = read_species(species)
        self.cutoff = check_number("network.cutoff", getattr(network, "cutoff", None), above=0, unit=" of Angstrom")
        reach = getattr(self.repulsion, "reach", None)
        longest = 0.0 if reach is None else reach(self.species)
        if longest > self.cutoff:
            raise ConfigError(
                f"repulsion must end within the cutoff of the network, {self.cutoff:g} Angstrom, got {longest:g} for "
                f"two of its atoms: energies would end in a step. Build the network with cutoff={longest:g} or more, "
                "or leave out the repulsion or the largest elements."
            )
        self.irreps_sh = as_irreps(getattr(network, "irreps_sh", "0e"), "network.irreps_sh")
        self.geometry = EdgeGeometry(o3.Irreps(self.irreps_sh), backend=backend)
        self.split = AtomicProperties(getattr(network, "properties", ("energy",)))
        self.register_buffer("species_index", index_by_number(self.species))
        self.register_buffer("lone_types", torch.arange(len(self.species)), persistent=False)
        self.register_buffer("moved_to", torch.zeros((), dtype=torch.float32), persistent=False)
        self.register_buffer("shifts", torch.zeros(len(self.species), dtype=torch.float64))
        self.register_buffer("scales", torch.ones(len(self.species), dtype=torch.float64))
        self.set_statistics(shifts or {}, scale)

    @property
    def properties(self) -> tuple[str, ...]:
        """The predicted properties: 'energy', 'dipole', 'polarizability'."""
        return self.split.properties

    def set_statistics(
        self,
        shifts: Mapping[Any, float],
        scale: float | Mapping[Any, float],
        mean_neighbors: float | None = None,
        tensor_scales: Mapping[str, float] | None = None,
    ) -> None:
        """Set shifts and scales in eV, and the network's mean number of neighbours if one is given.

        Args:
            shifts: By symbol or atomic number; 0 for those that are left out.
            scale: Positive; one number, or one by symbol or atomic number, 1 for those that are left out.
            mean_neighbors: For networks that have ``set_mean_neighbors(number)``.
            tensor_scales: Scale of 'dipole' in e Angstrom and of 'polarizability' in Angstrom^3; properties left out
                keep theirs.

        Raises:
            IndexRangeError: An unknown species or property. ConfigError: A number is not
                finite, or not positive where it must be.
        """
        shifts, listed = by_element("shifts", shifts, "shift in eV"), isinstance(scale, Mapping)
        scales = by_element("scale", scale, "scale in eV") if listed else dict.fromkeys(self.species, scale)
        added = of_species("shift", self.species, shifts, 0.0, "potential")
        factors = of_species("scale", self.species, scales, 1.0, "potential", above=0)
        self.shifts.copy_(added)
        self.scales.copy_(factors)
        expected = "a mapping from property to scale, or None"
        tensor_scales = check_type("tensor_scales", tensor_scales or {}, Mapping, expected, "Pass a dict.")
        self.split.set_scales(tensor_scales)
        setter = getattr(self.network, "set_mean_neighbors", None)
        if mean_neighbors is not None and setter is not None:
            setter(check_number("mean_neighbors", mean_neighbors, above=0))

    @property
    def added(self) -> int:
        """Number of isolated atoms appended to a batch, whose energies are subtracted: one of each species, or 0."""
        needed = self.subtract_isolated and "energy" in self.properties
        return 0 if not needed or getattr(self.network, "lone_atoms_are_zero", False) else len(self.species)

    @torch.no_grad()
    def shifts_of_network(self) -> Tensor:
        r"""Shifts ``[S]`` in eV (float64) without subtraction of isolated atoms: :math:`s_Z - \sigma_Z e_Z`."""
        if not self.added:
            return self.shifts
        types, graph = self.lone_types, Graph(self.lone_types.new_empty(2, 0), len(self.species))
        pos = torch.zeros(len(types), 3, dtype=self.dtype, device=self.device)
        numbers, _ = self.split(self.network(types, self.geometry(pos, graph), graph), types, len(types))
        assert numbers is not None
        return self.shifts - self.scales * numbers.double()

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.shifts.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of positions, cells and forces: the dtype of the network's parameters, or of the last ``to``."""
        return next((p.dtype for p in self.network.parameters() if p.is_floating_point()), self.moved_to.dtype)

    def forward(
        self, structures: Structures, outputs: Iterable[str] | None = None, create_graph: bool | None = None
    ) -> dict[str, Tensor]:
        """Energies, their derivatives, and other properties that the network predicts.

        Args:
            structures: Atoms with neighbours no farther than the cutoff.
            outputs: Among 'energy' ``[G]`` float64, 'energies' ``[A]`` float64 (of the atoms), 'forces' ``[A, 3]``,
                'stress' and 'virials' ``[G, 3, 3]``; eV, eV/Angstrom, eV/Angstrom^3, eV. In a batch, the stress of a
                structure whose cell has no volume is NaN. With networks of these properties also 'dipole' ``[G, 3]`` (e
                Angstrom) and 'polarizability' ``[G, 3, 3]`` (Angstrom^3), float64, and 'born_charges' ``[A, 3, 3]``
                (e), the derivative of component b of the dipole by component c of a position at ``[:, b, c]``. None for
                energy and forces, and for properties without derivatives.
            create_graph: Whether derivatives can be differentiated, as training on forces needs; by default in
                training mode only.

        Returns:
            The requested outputs by name, and 'energy' if the network predicts it.

        Raises:
            ShapeError, DTypeError, IndexRangeError: An input has a wrong shape or dtype, or an unknown species.
            ConfigError: An output is unknown or not predicted by the network, or stress of structures without cell.
        """
        requested, structures = self._requested(outputs), self._checked(structures)
        follow = self.training if create_graph is None else check_flag("create_graph", create_graph)
        if "stress" in requested:
            check_volume(structures)

        def results(potential: Potential, atoms: Structures) -> dict[str, Tensor]:
            return differentiated(atoms, requested, follow, lambda moved: (potential._predicted(moved),))[0]

        if self._compiled is None:
            return results(self, structures)
        return self._by_trace(structures, (*requested, follow, self.subtract_isolated), self._check_values, results)

    def _check_values(self, structures: Structures) -> None:
        """Raise IndexRangeError for unknown species and ends of edges out of range, which traces do not check."""
        if structures.z.is_cpu:  # a GPU would compute indices that no check reads
            self.kind_of(structures.z)
        check_range("edge_index", structures.edge_index, structures.z.shape[0], "atoms")

    def _requested(self, outputs: Iterable[str] | None) -> list[str]:
        """The list of requested outputs, checked to be known and predicted; the default list for None."""
        if outputs is None:
            usual = {"energy": ("energy", "forces")}
            return [name for item in self.properties for name in usual.get(item, (item,))]
        requested = [
            check_choice("outputs", name, OUTPUTS)
            for name in check_items("outputs", outputs, "a list of names", "Pass ('energy', 'forces').")
        ]
        absent = [name for name in requested if OUTPUTS[name] not in self.properties]
        if absent:
            raise ConfigError(
                f"outputs must be predictions of the network, {', '.join(self.properties)}, got {', '.join(absent)}. "
                f"Train one with properties=[{OUTPUTS[absent[0]]!r}, ...]."
            )
        return requested

    def atomic_energies(self, structures: Structures) -> Tensor:
        """Energies of atoms ``[A]`` in eV (float64), differentiable by positions and cells.

        Raises:
            ConfigError: The network predicts no energy. ShapeError, DTypeError, IndexRangeError: As of ``forward``.
        """
        self._requested(("energy",))
        return self._predicted(self._checked(structures))["energies"]

    def _checked(self, structures: Any) -> Structures:
        fix = "Make them: Structures(z, pos, edge_index), or collate(potential, atoms, neighbors)."
        return check_type("structures", structures, Structures, "Structures", fix).checked(self.dtype)

    def _predicted(self, structures: Structures) -> dict[str, Tensor]:
        """Energies of atoms and structures, dipoles and polarizabilities, differentiable by positions and cells."""
        graph = self._graph_of(structures)
        return self._from_edges(structures, graph, self._edges_of(structures, graph))

    def _graph_of(self, structures: Structures) -> Graph:
        """Graph of the atoms, followed by the ``added`` isolated ones, which have no edges."""
        atoms, added = structures.z.shape[0], self.added
        if added:
            check_range("edge_index", structures.edge_index, atoms, "atoms")  # no edge may join an added atom
        graph = Graph(structures.edge_index, atoms + added, copy=False)
        graph.mirrored = structures.mirrored  # as was checked
        return graph

    def _edges_of(self, structures: Structures, graph: Graph) -> EdgeVectors:
        """Vectors, lengths and harmonics of the edges of ``graph``, the result of :meth:`_graph_of`."""
        pos, shifts, cell, batch = structures.pos, structures.shifts, structures.cell, structures.batch
        added = self.added
        if added:
            pos = with_rows(pos, added)
            if cell is not None and not cell.shape[0]:  # without structures, added atoms have no cell
                cell = shifts = None
            batch = None if cell is None or batch is None else with_rows(batch, added)
        return self.geometry(pos, graph, shifts, cell, batch)

    def _from_edges(self, structures: Structures, graph: Graph, edges: EdgeVectors) -> dict[str, Tensor]:
        """Energies ('varying': without constant terms) and tensors from edges, which members of a committee share."""
        z, batch, count, added = structures.z, structures.batch, structures.num_graphs, self.added
        atom_types = species = self.kind_of(z)
        assert batch is not None
        if added:
            atom_types = torch.cat([atom_types, self.lone_types])
        numbers, results = self.split(self.network(atom_types, edges, graph), batch, count, added)
        if numbers is not None:
            numbers, constant = numbers.double(), self.shifts
            if added:
                constant = torch.addcmul(constant, self.scales, numbers[-added:], value=-1)
                numbers = numbers[:-added]
            energies = numbers * self.scales[species]
            if self.repulsion is not None:
                z = with_rows(z, added, self.species[0]) if added else z  # no neighbours, so any species
                energies = energies + self.repulsion(z, edges, graph)[: species.shape[0]].double()
            results["varying"] = energies
            results["energies"] = energies + taken(constant, species)
            results["energy"] = pooled(results["energies"], batch, count)
        return results

    def kind_of(self, z: Tensor) -> Tensor:
        """Index ``[A]`` of every atom's species in ``species``.

        Raises:
            IndexRangeError: A species that the potential does not have.
        """
        return species_indices(z, self.species_index, self.species, "potential")

    def hessian(self, structures: Structures, chunk_size: int | None = None) -> Tensor:
        """Force constants of one structure: second derivatives of its energy by positions.

        Args:
            structures: One structure.
            chunk_size: Number of rows computed at once; all 3 A by default, which takes the memory of 3 A backward
                passes.

        Returns:
            ``[A, 3, A, 3]`` float64, eV/Angstrom^2.

        Raises:
            ShapeError: More than one structure. ConfigError: The network predicts no energy, or chunk_size is no
                positive integer.
        """
        self._requested(("energy",))
        check_optional(lambda name, value: check_integer(name, value, 1), "chunk_size", chunk_size)
        structures = self._checked(structures)
        if structures.num_graphs != 1:
            raise ShapeError(f"structures must be one for a Hessian, got {structures.num_graphs}. Take one at a time.")

        def energy(pos: Tensor) -> Tensor:
            return self._predicted(structures._replace(pos=pos))["varying"].sum()

        rows = torch.func.jacrev(torch.func.grad(energy), chunk_size=chunk_size)
        hessian: Tensor = rows(structures.pos.detach())
        return hessian.detach().double()

    def extra_repr(self) -> str:
        """Properties, species and cutoff."""
        return f"{', '.join(self.properties)}; species {symbols_of(self.species)}, cutoff {self.cutoff:g} A"


def differentiated(
    structures: Structures,
    outputs: Sequence[str],
    follow: bool,
    predict: Callable[[Structures], Iterable[dict[str, Tensor]]],
    count: int = 1,
) -> list[dict[str, Tensor]]:
    """Requested outputs of ``count`` potentials, with derivatives of the energies and dipoles that ``predict`` yields.

    ``predict(structures)`` yields the results of :meth:`Potential._from_edges` of each potential, differentiable by
    positions and cells. With ``follow``, derivatives can be differentiated (``create_graph``).
    """
    strained = "stress" in outputs or "virials" in outputs
    moved, by, results = structures, [], []
    derived = strained or "forces" in outputs or "born_charges" in outputs
    with torch.set_grad_enabled(torch.is_grad_enabled() or derived):
        if strained:
            strain = structures.pos.new_zeros(structures.num_graphs, 3, 3, requires_grad=True)
            moved = under_strain(structures, strain)
            by.append(strain)
        if ("forces" in outputs or "born_charges" in outputs) and not moved.pos.requires_grad:
            moved = moved._replace(pos=moved.pos.detach().requires_grad_())
        if "forces" in outputs:
            by.append(moved.pos)
        # a view: some queries of a leaf tensor raise and catch exceptions in torch, slower than a small kernel
        for number, predicted in enumerate(predict(moved._replace(pos=moved.pos.view_as(moved.pos))), 1):
            rules: dict[str, Any] = {"create_graph": follow, "materialize_grads": True}
            if "born_charges" in outputs:
                totals = predicted["dipole"].sum(0).unbind()  # one backward pass for all: structures do not interact
                rows = [torch.autograd.grad(total, moved.pos, retain_graph=True, **rules)[0] for total in totals]
                predicted["born_charges"] = torch.stack(rows, 1)
            if by:
                retain = True if number < count else None  # the next potential shares the edges
                ones = torch.ones_like(predicted["varying"])
                slopes = list(torch.autograd.grad(predicted["varying"], by, ones, retain_graph=retain, **rules))
            if strained:
                virials = -slopes.pop(0)
                predicted["virials"] = 0.5 * (virials + virials.mT)
                if "stress" in outputs and structures.cell is not None:
                    volume = volumes(structures.cell)[:, None, None]
                    spanned = volume > 0  # the derivative of a division by 0 would be NaN
                    stress = -predicted["virials"] / torch.where(spanned, volume, 1.0)
                    predicted["stress"] = torch.where(spanned, stress, torch.nan)
            if "forces" in outputs:
                predicted["forces"] = -slopes.pop(0)
            chosen = {name: predicted[name] for name in predicted if name in outputs or name == "energy"}
            results.append(
                chosen if follow or not derived else {name: value.detach() for name, value in chosen.items()}
            )
    return results


def with_rows(t: Tensor, rows: int, value: int = 0) -> Tensor:
    """A tensor with further rows of a value. ``torch.nn.functional.pad`` would fix the number of rows of a trace."""
    return torch.cat([t, t.new_full((rows, *t.shape[1:]), value)])


def check_volume(structures: Structures) -> None:
    """Raise ConfigError for structures without volume, which have no stress.

    Cells that cannot be read without a synchronisation of a GPU, or in a trace, count as such with a volume.
    """
    cell = structures.cell
    readable = cell is not None and cell.is_cpu and is_plain((cell,)) and structures.num_graphs > 0
    if cell is None or (readable and not bool(volumes(cell.detach()).any())):
        raise ConfigError(
            "stress must be of structures with a cell of three lattice vectors that span a volume, got none. Request "
            "virials, or give a cell."
        )


def of_species(
    name: str, species: Sequence[int], values: Mapping[int, Any], usual: float, what: str, above: float | None = None
) -> Tensor:
    """Tensor ``[S]`` float64 of checked numbers by species, ``usual`` for species that ``values`` leaves out."""
    unknown = symbols_of(sorted(set(values) - set(species)))
    if unknown:
        raise IndexRangeError(
            f"{name}s must name species among {symbols_of(species)}, got also {unknown}. Build the {what} with them."
        )
    numbers = [
        check_number(f"the {name} of {symbols_of([z])}", values.get(z, usual), above=above, fix="Look for NaN.")
        for z in species
    ]
    return torch.tensor(numbers, dtype=torch.float64)


def index_by_number(species: Sequence[int]) -> Tensor:
    """Table from atomic number to index in ``species``, -1 if absent, as in its first and last entries."""
    index = torch.full((len(SYMBOLS) + 2,), -1)
    index[list(species)] = torch.arange(len(species))
    return index


def species_indices(z: Tensor, table: Tensor, species: Sequence[int], what: str) -> Tensor:
    """Index ``[A]`` of each atomic number in ``species``, by the table of :func:`index_by_number`."""
    if check_tensor("z", z, "[A]").dtype != torch.int64:
        raise DTypeError(f"z must be int64, got {z.dtype}. Convert it with `.long()`.")
    index = table[z.clamp(0, len(table) - 1)]
    if being_traced():
        assert_later((index >= 0).all(), f"z must hold species among {symbols_of(species)}.")
    elif z.device.type == "cpu" and bool((unwrapped(index) < 0).any()):  # also under vmap
        unknown = sorted(set(unwrapped(z)[unwrapped(index).reshape(-1, len(z))[0] < 0].tolist()))
        raise IndexRangeError(
            f"z must hold species among {symbols_of(species)}, got also {symbols_of(unknown)}. Build the {what} "
            "with them."
        )
    return index


def under_strain(structures: Structures, strain: Tensor) -> Structures:
    """Structures with positions and cells multiplied by 1 + the symmetric part of strain ``[G, 3, 3]``."""
    stretch = torch.eye(3, dtype=strain.dtype, device=strain.device) + 0.5 * (strain + strain.mT)
    assert structures.batch is not None
    # `@` would fix sizes in traces of torch 2.11
    pos = torch.bmm(structures.pos[:, None], stretch[structures.batch])[:, 0]
    return structures._replace(pos=pos, cell=None if structures.cell is None else structures.cell.bmm(stretch))
