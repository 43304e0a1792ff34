"""Cases of the command `eqlayers bench layers`: layer, size, peers and goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ...irreps.algebra import as_irreps
from ..cases import SUITE, Suite, case_name
from ..config import Field, Known, check_known, read_fields, read_goals, read_settings
from . import PAIRS
from .pair import PLAIN

#: Timed directions: forward; forward and all gradients; forward and gradients of forces.
LAYER_DIRECTIONS = ("fwd", "fwd+bwd", "fwd+double")
LAYER_DTYPES = ("float32", "float64")
LAYER_GOALS = ("ratio", "memory")
#: Name of a peer -> description.
LAYER_PEERS = {
    "e3nn": "its harmonics, which are TorchScript, and plain torch for vectors and lengths",
    "e3nn-compiled": "torch.compile of the same",
    "mace-torch": "its symmetric contraction",
    "einsum": "the symmetric contraction by einsum with dense coupling tensors, as MACE computes it",
    PLAIN: "the plainest form in torch, for what e3nn has not",
}
OPTIONS: dict[str, tuple[Field, Any]] = {
    "dtypes": (Known("texts", "dtype", LAYER_DTYPES), ["float32"]),
    "directions": (Known("texts", "direction", LAYER_DIRECTIONS), list(LAYER_DIRECTIONS)),
    "runs": ("count", None),
    "goals": (Known("mapping", "goal", LAYER_GOALS), {}),
}


@dataclass(frozen=True)
class LayerCase:
    """One layer with the size of its operands, its peers and goals."""

    group: str  # name in the configuration
    layer: str  # a key of PAIRS
    rows: int  # vectors, edges or atoms
    dtype: str = "float32"
    peers: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # the layer's own fields
    directions: tuple[str, ...] = LAYER_DIRECTIONS
    goals: dict[str, dict[str, float]] = field(default_factory=dict)  # quantity to direction to value
    runs: int | None = None  # None: the suite's

    @property
    def problem(self) -> str:
        """Short name of the computation, without its size."""
        if "out" in self.options:
            return f"{self.options['out']}-c{self.options['correlation']}"
        return f"l{self.options['lmax']}" if "lmax" in self.options else self.layer

    @property
    def about(self) -> str:
        """Description of the computation.

        Example:
            >>> LayerCase("sweep", "SphericalHarmonics", 10, options={"lmax": 3}).about
            'SphericalHarmonics of degrees 0 to 3'
        """
        options = self.options
        if "lmax" in options:
            return f"{self.layer} of degrees 0 to {options['lmax']}"
        if "irreps" in options:
            return f"{self.layer}, {options['irreps']}"
        sizes = f"correlation {options['correlation']}, {options['channels']} channels, {options['elements']} species"
        return f"{self.layer} of {options['in']} to {options['out']}, {sizes}"

    @property
    def size(self) -> str:
        """Number of rows, with the letter E for edges and vectors, N for nodes."""
        return f"{'E' if PAIRS[self.layer].of_edges else 'N'}{self.rows}"

    @property
    def name(self) -> str:
        """Name: group, problem, size, and dtype unless float32."""
        return case_name(self.group, self.problem, self.size, self.dtype)


def read_layer_suite(name: str = "layers") -> Suite:
    """Read a suite of layers, given by path or by name in `configs/bench`.

    Example:
        >>> [case.name for case in read_layer_suite().cases][:2]
        ['harmonics/l3/E2000', 'degrees/l1/E2000']
    """
    path, top = read_settings(name, SUITE)
    cases = tuple(
        case for group, entries in top["cases"].items() for case in _read_group(f"{path}, {group}", str(group), entries)
    )
    return Suite(path.stem, top["device"], top["threads"], top["runs"], (), cases, "layers")


def _read_group(where: str, group: str, entries: Any) -> Iterator[LayerCase]:
    layer = entries.get("layer") if isinstance(entries, dict) else None
    if isinstance(layer, str):
        check_known("layer", [layer], PAIRS, where)
    pair = PAIRS[layer] if isinstance(layer, str) else None
    of_layer = pair.fields if pair is not None else {}
    peers = Known("texts", f"peer of {layer}", () if pair is None else (pair.peer, *pair.others))
    fields = read_fields(where, entries, {"layer": "text", "rows": "counts", "peers": peers, **of_layer}, OPTIONS)
    for name in {"in", "out", "irreps"} & of_layer.keys():
        as_irreps(fields[name], f"{where}: {name}")
    about = {name: fields[name] for name in of_layer}
    degrees = [{"lmax": l} for l in about["lmax"]] if "lmax" in about else [about]
    goals = read_goals(where, fields["goals"], LAYER_DIRECTIONS)
    shape = (tuple(fields["directions"]), goals, fields["runs"])
    for options, rows, dtype in product(degrees, fields["rows"], fields["dtypes"]):
        yield LayerCase(group, str(layer), rows, dtype, tuple(fields["peers"]), options, *shape)
