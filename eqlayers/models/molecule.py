"""Properties of molecules: a network of the layers of this package, and what it has learned, from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from e3nn import o3
from torch import Tensor, nn

from ..atoms.elements import by_element, read_species
from ..core.backends import check_backend
from ..core.backends.rows import taken
from ..core.checks import check_choice, check_device, check_integer, check_items, check_number, check_tensor, check_type
from ..core.errors import ConfigError, IrrepsError
from ..core.graph import Graph
from ..irreps.algebra import as_irreps
from ..layers.base.module import KeepsFloat64
from ..layers.convolution.module import Interaction
from ..layers.harmonics.module import EdgeGeometry
from ..layers.linear.module import Linear
from ..layers.radial.module import BesselBasis, hidden_widths
from ..layers.radial.tables import tabled
from .compiled import Compiles
from .nequip import reachable
from .potential import index_by_number, of_species, species_indices
from .properties import LARGEST_DEGREE, even_scalars, plain_options, pooled
from .saving import Classes, build_part, fill, read_content, unusable
from .structures import Structures

PREFIX = "model."  # prefix of the network's weights in a checkpoint of `eqlayers fit`
#: Irreps that are read of each atom: energies; charges and vectors; energies and charges.
READOUTS = {"scalar": "0e", "vector": "0e + 1o", "extent": "2x0e"}
#: How a further output is made: a number of each atom, their sum or mean over the molecule, or a vector of it.
AUXILIARY = ("atom", "sum", "mean", "vector")


class MoleculeNetwork(Compiles, KeepsFloat64):
    r"""Species embedding, interactions, per-atom read-out, pooling, per-species scale and shift in float64.

    A scalar property is :math:`\sum_i (\sigma\, e_i + s_{Z_i})` (or the mean over atoms); with ``readout='vector'`` it
    is the norm of :math:`\sigma \sum_i (\mu_i + q_i (r_i - \bar r))`, as for a dipole moment; with
    ``readout='extent'`` it is :math:`\sum_i (\sigma (e_i + q_i |r_i - \bar r_Z|^2) + s_{Z_i})`, as for the electronic
    extent :math:`\langle R^2 \rangle`, from the centre of nuclear charge :math:`\bar r_Z`, about which Gaussian, and so
    QM9, has it. All are invariant to translation, to the order of the atoms, and to rotation and reflection; the vector
    turns with the molecule.

    Args:
        species: Symbols or atomic numbers that occur.
        hidden: Irreps of the node features; equal multiplicities are fastest.
        lmax: Largest degree of the spherical harmonics, up to 11.
        layers: Number of interactions.
        num_basis: Bessel functions per edge.
        cutoff: Angstrom; edges given to ``forward`` should be no longer.
        radial_hidden: Widths of the radial networks.
        mean_neighbors: Mean number of neighbours; ``set_statistics`` sets it from data.
        readout: 'scalar', 'vector' or 'extent'.
        pooling: 'sum' (extensive) or 'mean' (intensive).
        knots: Of tables that radial networks are read from, see :class:`eqlayers.nn.TabledBasis`; None for networks
            that run at every edge.
        backend: Name of a backend, or None for the first that accepts.
        auxiliary: Further outputs, which training learns beside the property, by name: 'atom', 'sum', 'mean' or
            'vector', as for charges, zero-point energies, gaps and dipole moments. See :meth:`outputs`.
        sum_of: Names of further outputs whose sum the property is, in place of a read-out of its own.

    Raises:
        IrrepsError, ConfigError: hidden without scalars (or without vectors for a vector read-out), unknown options.

    Example:
        >>> model = MoleculeNetwork(hidden="8x0e + 8x1o", layers=1)
        >>> z, pos = torch.tensor([8, 1, 1]), torch.randn(3, 3)
        >>> edge_index = torch.tensor([[0, 1, 0, 2, 1, 2], [1, 0, 2, 0, 2, 1]])
        >>> model(z, pos, edge_index).dtype
        torch.float64
    """

    species_index: Tensor
    shifts: Tensor
    scale: Tensor
    auxiliary_shifts: Tensor
    auxiliary_scales: Tensor
    kept_in_float64: tuple[str, ...] = ("shifts", "scale")

    def __init__(
        self,
        species: Sequence[int | str] = (1, 6, 7, 8, 9),
        hidden: str = "64x0e + 64x1o",
        lmax: int = 1,
        layers: int = 3,
        num_basis: int = 8,
        cutoff: float = 5.0,
        radial_hidden: Sequence[int] = (64,),
        mean_neighbors: float = 12.0,
        readout: str = "scalar",
        pooling: str = "sum",
        knots: int | None = None,
        backend: str | None = None,
        auxiliary: Mapping[str, str] | None = None,
        sum_of: Sequence[str] | None = None,
    ) -> None:
        arguments = dict(locals())
        super().__init__()
        self.species = read_species(species)
        self.cutoff = check_number("cutoff", cutoff, above=0, unit=" of Angstrom")
        lmax = check_integer("lmax", lmax, 0, LARGEST_DEGREE, fix="1 is usual.")
        layers = check_integer("layers", layers, 0, fix="3 are usual.")
        check_backend(backend)
        self.readout = check_choice("readout", readout, READOUTS)
        self.pooling = check_choice("pooling", pooling, ("sum", "mean"))
        irreps = as_irreps(hidden, "hidden")
        scalars = even_scalars(irreps)
        self.auxiliary, self.sum_of = _read_outputs(auxiliary, sum_of, readout, pooling)
        vectors = [*self.auxiliary.values()].count("vector")
        if (vectors or readout == "vector") and o3.Irrep("1o") not in irreps:
            what = "a further vector" if vectors else "a vector read-out"
            raise IrrepsError(f"hidden must hold vectors (1o) for {what}, got {irreps}. Add '64x1o'.")
        self.irreps_sh = o3.Irreps.spherical_harmonics(lmax)
        self.geometry = EdgeGeometry(self.irreps_sh, direction="dst_to_src", backend=backend)
        self.embedding = torch.nn.Embedding(len(self.species), scalars.dim)
        kind: dict[str, Any] = {"layout": "ir_mul", "backend": backend}
        read = o3.Irreps(READOUTS[readout])
        further = o3.Irreps([(len(self.auxiliary), "0e"), (vectors, "1o")]).simplify()
        last = o3.Irreps([(mul, ir) for mul, ir in irreps if ir in read + further])  # the others would not be read
        steps, current = [], scalars
        sizes = num_basis, cutoff, radial_hidden, mean_neighbors
        for number in range(layers):
            after = reachable(current, self.irreps_sh, irreps if number < layers - 1 else last)
            steps.append(Interaction(current, self.irreps_sh, after, *sizes, gate="silu", residual=False, **kind))
            current = after
        self.basis = tabled(bessel := BesselBasis(num_basis, cutoff), knots)
        counts = {"lmax": lmax, "layers": layers, "num_basis": bessel.num_basis}
        outputs = {"auxiliary": self.auxiliary or None, "sum_of": self.sum_of or None}
        widths, neighbors = hidden_widths("radial_hidden", radial_hidden), float(mean_neighbors)
        read_from = {"hidden": irreps, "radial_hidden": widths, "mean_neighbors": neighbors, **counts, **outputs}
        self.options = plain_options(self, arguments, **read_from)
        self.interactions = torch.nn.ModuleList(steps)
        if not self.sum_of:
            self.read = Linear(current, read, **kind)
        if self.auxiliary:
            self.read_auxiliary = Linear(current, further, **kind)
            size = len(self.auxiliary)
            self.register_buffer("auxiliary_shifts", torch.zeros(size, len(self.species), dtype=torch.float64))
            self.register_buffer("auxiliary_scales", torch.ones(size, dtype=torch.float64))
            self.kept_in_float64 = (*self.kept_in_float64, "auxiliary_shifts", "auxiliary_scales")
        with torch.no_grad():
            for name in ("read", "read_auxiliary"):  # start near the baseline: a sum of unit numbers is far from it
                if hasattr(self, name):
                    getattr(self, name).weight.mul_(0.1)
        self.register_buffer("species_index", index_by_number(self.species))
        self.register_buffer("shifts", torch.zeros(len(self.species), dtype=torch.float64))
        self.register_buffer("scale", torch.ones((), dtype=torch.float64))

    def set_statistics(
        self,
        shifts: Mapping[Any, float],
        scale: float,
        mean_neighbors: float,
        auxiliary: Mapping[str, tuple[Mapping[Any, float], float]] | None = None,
    ) -> None:
        """Set per-species shifts and the scale (float64, units of the target) and the neighbour normalisation.

        Args:
            shifts: By symbol or atomic number; species of the model that are missing get 0.
            scale: Positive factor of the learned part.
            mean_neighbors: Mean number of neighbours per atom.
            auxiliary: Shifts and scale of each further output by name; those that are missing keep theirs.

        Raises:
            IndexRangeError: A species that the model does not know. ConfigError: A number is not finite or, but for
                shifts, not positive; an output that the model does not have.
        """
        added = of_species("shift", self.species, by_element("shifts", shifts, "shift"), 0.0, "model")
        factor = check_number("scale", scale, above=0)
        neighbors = check_number("mean_neighbors", mean_neighbors, above=0)
        what, fix = "shifts and scale by name", "Pass {'charges': ({'H': 0.1}, 0.2)}."
        for name, pair in check_type("auxiliary", {} if auxiliary is None else auxiliary, Mapping, what, fix).items():
            number = [*self.auxiliary].index(check_choice("auxiliary", name, self.auxiliary))
            shifts_of, scale_of = check_type(f"auxiliary of {name}", pair, tuple, "shifts and scale, a tuple", fix)
            known = by_element(f"shifts of {name}", shifts_of, "shift")
            self.auxiliary_shifts[number] = of_species("shift", self.species, known, 0.0, "model")
            self.auxiliary_scales[number] = check_number(f"scale of {name}", scale_of, above=0)
        self.shifts.copy_(added)
        self.scale.fill_(factor)
        for step in self.interactions:
            step.get_buffer("mean_neighbors").fill_(neighbors)

    def forward(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> Tensor:
        """Predict one number per molecule.

        Args:
            z: ``[A]`` int64 atomic numbers.
            pos: ``[A, 3]`` Angstrom.
            edge_index: ``[2, E]`` int64 (src, dst), both directions, no self loops.
            batch: ``[A]`` int64, molecule of each atom; None for one molecule.
            num_graphs: Number of molecules; None for ``batch.max() + 1``.

        Returns:
            ``[G]`` float64, in the unit of the target.

        Raises:
            ShapeError, DTypeError, IndexRangeError: Inputs of another shape or dtype, an unknown species.
        """
        return self.outputs(z, pos, edge_index, batch, num_graphs)["y"]

    def outputs(
        self, z: Tensor, pos: Tensor, edge_index: Tensor, batch: Tensor | None = None, num_graphs: int | None = None
    ) -> dict[str, Tensor]:
        """The property "y", as of :meth:`forward`, and the outputs in ``auxiliary`` by name, float64.

        Outputs of atoms are ``[A]``, vectors ``[G, 3]``, the others ``[G]``.

        Example:
            >>> model = MoleculeNetwork(["H"], "2x0e", layers=1, auxiliary={"charges": "atom"})
            >>> pair = torch.tensor([1, 1]), torch.tensor([[0.0, 0, 0], [0, 0, 0.74]]), torch.tensor([[0, 1], [1, 0]])
            >>> {name: tuple(values.shape) for name, values in model.outputs(*pair).items()}
            {'charges': (2,), 'y': (1,)}
        """
        if batch is None:
            num_graphs = 1
        elif num_graphs is None:
            num_graphs = int(check_tensor("batch", batch, "[A], or None").max()) + 1 if batch.numel() else 0
        checked = Structures(z, pos, edge_index, batch, num_graphs).checked(self.embedding.weight.dtype)
        return self._by_trace(checked, (), self._kinds, MoleculeNetwork._outputs)

    def _kinds(self, molecules: Structures) -> Tensor:
        """Index ``[A]`` of every atom's species; IndexRangeError for unknown ones."""
        return species_indices(molecules.z, self.species_index, self.species, "model")

    def _outputs(self, molecules: Structures) -> dict[str, Tensor]:
        z, pos, edge_index, batch, num_graphs, *_ = molecules
        kind = self._kinds(molecules)
        assert batch is not None
        x = self.embedding(kind)
        graph = Graph(edge_index, z.shape[0])  # sorted once for all steps
        edges = self.geometry(pos, graph)
        basis = self.basis(edges.lengths)  # the same in all steps
        for step in self.interactions:
            x = step(x, edges.harmonics, edges.lengths, graph, basis=basis)
        places, values = pos.double(), self._further(x, kind, pos.double(), batch, num_graphs)
        if self.sum_of:
            return values | {"y": torch.stack([values[name] for name in self.sum_of]).sum(dim=0)}
        out = self.read(x).double()
        if self.readout == "vector":
            return values | {"y": self.pooled_vector(out, places, batch, num_graphs).norm(dim=-1)}
        atoms = out[:, 0] * self.scale + self.shifts[kind]
        if self.readout == "extent":
            charge = z.double()[:, None]
            whole = _pool(torch.cat([places * charge, charge], dim=1), batch, num_graphs, "sum")[batch]
            atoms = atoms + out[:, 1] * self.scale * (places - whole[:, :3] / whole[:, 3:]).square().sum(dim=1)
        return values | {"y": _pool(atoms, batch, num_graphs, self.pooling)}

    def pooled_vector(self, out: Tensor, pos: Tensor, batch: Tensor, num_graphs: int) -> Tensor:
        """``[G, 3]`` in the unit of the target: atomic vectors plus charges times positions about the centre."""
        return _vector(out, pos, batch, num_graphs, self.scale, self.pooling)

    def _further(self, x: Tensor, kind: Tensor, pos: Tensor, batch: Tensor, num_graphs: int) -> dict[str, Tensor]:
        """The further outputs by name."""
        if not self.auxiliary:
            return {}
        out, values = self.read_auxiliary(x).double(), {}
        scalars, vectors = out[:, : len(self.auxiliary)], out[:, len(self.auxiliary) :]
        components = iter(vectors.unflatten(1, (3, vectors.shape[1] // 3)).unbind(dim=2))
        for number, (name, how) in enumerate(self.auxiliary.items()):
            scale, atoms = self.auxiliary_scales[number], scalars[:, number]
            if how == "vector":
                parts = torch.cat([atoms[:, None], next(components)], dim=1)
                values[name] = _vector(parts, pos, batch, num_graphs, scale, "sum")
                continue
            atoms = atoms * scale + self.auxiliary_shifts[number][kind]
            values[name] = atoms if how == "atom" else _pool(atoms, batch, num_graphs, how)
        return values


def _read_outputs(auxiliary: Any, sum_of: Any, readout: str, pooling: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """Further outputs, and those whose sum the property is, checked."""
    fix = "Pass {'charges': 'atom'}, and another name than 'y', which is the property."
    kinds = {} if auxiliary is None else auxiliary
    for name, how in check_type("auxiliary", kinds, Mapping, "a mapping from name to kind of output", fix).items():
        check_type("a name in auxiliary", name, str, "a text", fix)
        check_choice(f"auxiliary.{name}", how, AUXILIARY)
    check_type("auxiliary", "y" if "y" in kinds else kinds, Mapping, "names but 'y'", fix)
    names = tuple(
        check_items("sum_of", () if sum_of is None else sum_of, "names of further outputs", "Pass ['energy', 'zpve'].")
    )
    wrong = [name for name in names if kinds.get(name) != "sum"]
    if wrong or (names and (readout, pooling) != ("scalar", "sum")):
        what = f"{wrong[0]!r}" if wrong else f"readout {readout!r} with pooling {pooling!r}"
        raise ConfigError(
            f"sum_of must be further outputs of the kind 'sum', for a scalar read-out that is summed, got {what}. Add "
            "them to auxiliary, or leave sum_of out."
        )
    return {name: kinds[name] for name in sorted(kinds)}, names  # weights do not depend on the order that was given


def _vector(out: Tensor, pos: Tensor, batch: Tensor, num_graphs: int, scale: Tensor, pooling: str) -> Tensor:
    """``[G, 3]``: atomic vectors plus charges times positions about the centre."""
    centre = taken(_pool(pos, batch, num_graphs, "mean"), batch)
    atoms = (out[:, 1:] + out[:, :1] * (pos - centre)) * scale
    return _pool(atoms, batch, num_graphs, pooling)


def _pool(values: Tensor, batch: Tensor, num_graphs: int, how: str) -> Tensor:
    total = pooled(values, batch, num_graphs)
    if how == "sum":
        return total
    atoms = _pool(values.new_ones(values.shape[0], *[1] * (values.ndim - 1)), batch, num_graphs, "sum")
    return total / atoms.clamp(min=1)


# ---- learned properties --------------------------------------------------------------------------------------------


class MoleculeProperty(nn.Module):
    """A network of molecules, as :class:`eqlayers.train.PropertyModule` trains it, with ``species`` and ``cutoff``.

    ``name`` and ``unit`` are of the property that it predicts.
    """

    def __init__(self, network: nn.Module, name: str, unit: str) -> None:
        super().__init__()
        self.network, self.name, self.unit = network, name, unit
        self.species, self.cutoff = tuple(map(int, network.species)), float(network.cutoff)  # type: ignore[arg-type]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the network, and of the positions that it takes."""
        return next(self.network.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    def forward(self, molecules: Structures) -> Tensor:
        """Values ``[G]`` float64 in the unit, of molecules without a period."""
        values: Tensor = self.network(*molecules[:5])
        return values.double()


def load_property(
    path: str | Path, dtype: torch.dtype | None = None, device: Any = "cpu", classes: Classes | None = None
) -> MoleculeProperty | None:
    """A property from a checkpoint, in evaluation mode; None if the file is of another kind.

    Arguments and errors are as of :func:`eqlayers.models.load_potential`.
    """
    content = read_content(path)
    options = content.get("hyper_parameters") if isinstance(content, dict) else None
    saved = options.get("property") if isinstance(options, dict) else None
    if saved is None:
        return None
    state = content.get("state_dict")
    if not (isinstance(saved, dict) and {"network", "name", "unit"} <= saved.keys() and isinstance(state, dict)):
        raise unusable(path, "a description or weights are missing in it")
    if not (isinstance(name := saved["name"], str) and isinstance(unit := saved["unit"], str)):
        raise unusable(path, "name and unit of its property are no texts")
    with torch.random.fork_rng(devices=[]):  # weights are drawn and thrown away
        learned = MoleculeProperty(build_part("the network", saved["network"], classes), name, unit)
    weights = {f"network.{key.removeprefix(PREFIX)}": t for key, t in state.items() if str(key).startswith(PREFIX)}
    fill(path, learned, learned.network, weights)
    return learned.to(device=check_device("device", device), dtype=dtype).eval()
