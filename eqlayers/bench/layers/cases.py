"""Cases of `eqlayers bench layers`: layer, size, peers and goals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from ...irreps.algebra import as_irreps
from ..config import check_known, find_config, matching, read_config, read_fields, read_goals
from ..products.suite import DEVICES
from . import PAIRS
from .pair import PLAIN

#: What is timed, the forward call included: the result; with all gradients; with the gradients of the forces.
LAYER_DIRECTIONS = ("fwd", "fwd+bwd", "fwd+double")
LAYER_DTYPES = ("float32", "float64")
LAYER_GOALS = ("ratio", "memory")
#: name of a peer -> what it is
LAYER_PEERS = {
    "e3nn": "its harmonics, which are TorchScript, and plain torch for vectors and lengths",
    "e3nn-compiled": "torch.compile of the same",
    "mace-torch": "its symmetric contraction",
    "einsum": "the symmetric contraction by einsum with dense coupling tensors, as MACE computes it",
    PLAIN: "the plainest form in torch, for what e3nn has not",
}
TOP = {"device": "text", "threads": "count", "runs": "count", "cases": "mapping"}
OPTIONS: dict[str, tuple[str, Any]] = {
    "dtypes": ("texts", ["float32"]),
    "directions": ("texts", list(LAYER_DIRECTIONS)),
    "runs": ("count", None),
    "goals": ("mapping", {}),
}


@dataclass(frozen=True)
class LayerCase:
    """One layer on one set of operands, checked and timed side by side with its peers."""

    group: str  # name in the configuration
    layer: str  # a key of PAIRS
    rows: int  # vectors, edges or atoms
    dtype: str = "float32"
    peers: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)  # the layer's own fields
    directions: tuple[str, ...] = LAYER_DIRECTIONS
    goals: dict[str, dict[str, float]] = field(default_factory=dict)  # quantity to direction to value
    runs: int = 15

    @property
    def problem(self) -> str:
        """The computation without its size."""
        own = self.options
        if "out" in own:
            return f"{own['out']}-c{own['correlation']}"
        return f"l{own['lmax']}" if "lmax" in own else self.layer

    @property
    def about(self) -> str:
        """The computation, in words.

        Example:
            >>> LayerCase("sweep", "SphericalHarmonics", 10, options={"lmax": 3}).about
            'SphericalHarmonics of degrees 0 to 3'
        """
        own = self.options
        if "lmax" in own:
            return f"{self.layer} of degrees 0 to {own['lmax']}"
        if "irreps" in own:
            return f"{self.layer}, {own['irreps']}"
        sizes = f"correlation {own['correlation']}, {own['channels']} channels, {own['elements']} species"
        return f"{self.layer} of {own['in']} to {own['out']}, {sizes}"

    @property
    def size(self) -> str:
        """Rows, with a letter for edges or vectors, and for nodes."""
        return f"{'E' if PAIRS[self.layer].of_edges else 'N'}{self.rows}"

    @property
    def name(self) -> str:
        """Group, problem and size, and the dtype if it is not float32."""
        return "/".join((self.group, self.problem, self.size, *([self.dtype] if self.dtype != "float32" else [])))


@dataclass(frozen=True)
class LayerSuite:
    """Cases with what is common to them: name of the file, device of the operands, threads of torch."""

    name: str
    device: str
    threads: int
    cases: tuple[LayerCase, ...]


def read_layer_suite(name: str = "layers", only: str | None = None) -> LayerSuite:
    """Read a configuration, a path or a name in `configs/bench`, and take the cases that match a pattern.

    Raises:
        ConfigError: A key, a value or a name that is not known, or no case of that name.

    Example:
        >>> [case.name for case in read_layer_suite().cases][:2]
        ['harmonics/l3/E2000', 'degrees/l1/E2000']
    """
    path = find_config(name)
    top = read_fields(str(path), read_config(path), TOP, {})
    check_known("device", [top["device"]], DEVICES, str(path))
    cases = [
        case
        for group, given in top["cases"].items()
        for case in _read_group(f"{path}, {group}", str(group), given, top["runs"])
    ]
    return LayerSuite(path.stem, top["device"], top["threads"], matching(cases, only, path.stem))


def _read_group(where: str, group: str, given: Any, runs: int) -> Iterator[LayerCase]:
    layer = given.get("layer") if isinstance(given, dict) else None
    if isinstance(layer, str):
        check_known("layer", [layer], PAIRS, where)
    own = PAIRS[layer].fields if isinstance(layer, str) else {}
    fields = read_fields(where, given, {"layer": "text", "rows": "counts", "peers": "texts", **own}, OPTIONS)
    pair = PAIRS[fields["layer"]]
    check_known("dtype", fields["dtypes"], LAYER_DTYPES, where)
    check_known("direction", fields["directions"], LAYER_DIRECTIONS, where)
    check_known(f"peer of {layer}", fields["peers"], (pair.peer, *pair.others), where)
    check_known("goal", fields["goals"], LAYER_GOALS, where)
    for name in ("in", "out", "irreps"):
        if name in own:
            as_irreps(fields[name], f"{where}: {name}")
    about = {name: fields[name] for name in own}
    degrees = [{"lmax": l} for l in about["lmax"]] if "lmax" in about else [about]
    goals = read_goals(where, fields["goals"], LAYER_DIRECTIONS)
    shape = (tuple(fields["directions"]), goals, fields["runs"] or runs)
    for options, rows, dtype in product(degrees, fields["rows"], fields["dtypes"]):
        yield LayerCase(group, str(layer), rows, dtype, tuple(fields["peers"]), options, *shape)
