"""Cases of `eqlayers bench layers`: layer, size, peers and goals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import product
from typing import Any

from ..algebra import as_irreps
from ..checks import check_type
from ..errors import ConfigError
from .config import check_known, find_config, read_config, read_fields
from .suite import DEVICES

#: What is timed, the forward call included: the result; with all gradients; with the gradients of the forces.
LAYER_DIRECTIONS = ("fwd", "fwd+bwd", "fwd+double")
LAYER_DTYPES = ("float32", "float64")
LAYER_GOALS = ("ratio", "memory")
#: The peer of layers that e3nn has not.
PLAIN = "torch"
#: name of a peer -> what it is
LAYER_PEERS = {
    "e3nn": "its harmonics, which are TorchScript, and plain torch for vectors and lengths",
    "e3nn-compiled": "torch.compile of the same",
    "mace-torch": "its symmetric contraction",
    "einsum": "the symmetric contraction by einsum with dense coupling tensors, as MACE computes it",
    PLAIN: "the plainest form in torch, for what e3nn has not",
}
TOP = {"device": "text", "threads": "count", "runs": "count", "cases": "mapping"}
_OF_ALL = {"layer": "text", "rows": "counts", "peers": "texts"}
_DEGREES = {"lmax": "counts"}
_CONTRACTION = {"in": "text", "out": "text", "channels": "count", "elements": "count", "correlation": "count"}
_IRREPS = {"irreps": "text"}
#: Layers of the catalogue that are made from irreps alone, see `pairs`, by their peer.
CATALOGUE = {
    "e3nn": (
        *("Linear", "IrrepwiseLinear", "LowRankLinear", "SpeciesLinear"),
        *("ElementwiseTensorProduct", "FullTensorProduct", "TensorSquare", "SO3Linear", "TensorDot", "SO3Scale"),
        *("Norm", "BatchNorm"),
        *("Gate", "Activation", "NormActivation", "S2Activation", "SO3Activation", "Dropout"),
        *("Extract", "ExtractIr", "Identity", "Separable"),
        *("CartesianTensor", "WignerD", "RotateFeatures", "EdgeFrame", "EquivariantAttention"),
        *("GaussianBasis", "CosineBasis", "SmoothFiniteBasis", "FourierBasis", "RadialNetwork"),
    ),
    PLAIN: (
        *("FormulaLayer", "BatchRMSNorm", "LayerNorm", "RMSNorm", "MeanSquaredNorm", "GatedNonlinearity", "DropPath"),
        *("Split", "Merge", "Sort", "ChangeOfBasis", "AttentionAggregate", "SO2Linear", "SO2Convolution"),
        *("BesselBasis", "ChebyshevBasis", "PolynomialCutoff", "CosineCutoff", "SmoothCutoff", "AgnesiTransform"),
        "ZBL",
    ),
}
#: Rounding errors allowed of the largest entry of each result, for all layers and for some: e3nn's matrix exponentials
#: and angles have more, in the definition, too.
ROUNDINGS = 64
ROUNDINGS_OF = dict.fromkeys(("WignerD", "RotateFeatures", "EdgeFrame"), 1024)
PEER_OF = {layer: peer for peer, layers in CATALOGUE.items() for layer in layers}
#: Layers whose rows are edges or vectors.
OF_EDGES = (
    *("SphericalHarmonics", "EdgeGeometry", "AttentionAggregate", "EquivariantAttention"),
    *("SO2Linear", "SO2Convolution", "EdgeFrame", "AgnesiTransform", "ZBL", "RadialNetwork"),
    *(layer for layer in PEER_OF if layer.endswith(("Basis", "Cutoff")) and layer != "ChangeOfBasis"),
)
#: layer -> its fields beside the common ones, and its peers
KINDS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "SphericalHarmonics": (_DEGREES, ("e3nn", "e3nn-compiled")),
    "EdgeGeometry": (_DEGREES, ("e3nn", "e3nn-compiled")),
    "SymmetricContraction": (_CONTRACTION, ("mace-torch", "einsum")),
    **{layer: (_IRREPS, (peer,)) for layer, peer in PEER_OF.items()},
}
OPTIONS: dict[str, tuple[str, Any]] = {
    "dtypes": ("texts", ["float32"]),
    "directions": ("texts", list(LAYER_DIRECTIONS)),
    "runs": ("count", None),
    "goals": ("mapping", {}),
}


@dataclass(frozen=True)
class LayerCase:
    """One layer on one set of operands: what is checked and timed side by side.

    Attributes:
        group: Name of the group in the configuration.
        layer: A key of ``KINDS``.
        rows: Vectors, edges or atoms.
        dtype: Of operands and results.
        peers: Names of the peers.
        options: The layer's own fields.
        directions: Subset of ``LAYER_DIRECTIONS``.
        goals: Quantity to direction to value.
        runs: Timed runs of everybody.
    """

    group: str
    layer: str
    rows: int
    dtype: str = "float32"
    peers: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    directions: tuple[str, ...] = LAYER_DIRECTIONS
    goals: dict[str, dict[str, float]] = field(default_factory=dict)
    runs: int = 15

    @property
    def problem(self) -> str:
        """The computation without its size."""
        if self.layer == "SymmetricContraction":
            return f"{self.options['out']}-c{self.options['correlation']}"
        if "irreps" in self.options:
            return self.layer
        return f"l{self.options['lmax']}"

    @property
    def about(self) -> str:
        """The computation, in words.

        Example:
            >>> LayerCase("sweep", "SphericalHarmonics", 10, options={"lmax": 3}).about
            'SphericalHarmonics of degrees 0 to 3'
        """
        if self.layer == "SymmetricContraction":
            own = self.options
            return (
                f"SymmetricContraction of {own['in']} to {own['out']}, correlation {own['correlation']}, "
                f"{own['channels']} channels, {own['elements']} species"
            )
        if "irreps" in self.options:
            return f"{self.layer}, {self.options['irreps']}"
        return f"{self.layer} of degrees 0 to {self.options['lmax']}"

    @property
    def size(self) -> str:
        """Rows, with a letter for what they are."""
        return f"{'E' if self.layer in OF_EDGES else 'N'}{self.rows}"

    @property
    def name(self) -> str:
        """Group, problem and size, and the dtype if it is not float32."""
        return "/".join((self.group, self.problem, self.size, *([self.dtype] if self.dtype != "float32" else [])))


@dataclass(frozen=True)
class LayerSuite:
    """Cases with what is common to them.

    Attributes:
        name: Name of the file.
        device: Of the operands.
        threads: Threads of torch.
        cases: The cases, in order.
    """

    name: str
    device: str
    threads: int
    cases: tuple[LayerCase, ...]


def read_layer_suite(name: str = "layers", only: str | None = None) -> LayerSuite:
    """Read a configuration.

    Args:
        name: Path of a YAML file, or the name of one in `configs/bench`.
        only: Pattern of names; all by default.

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
    return LayerSuite(path.stem, top["device"], top["threads"], _chosen(cases, only, path.stem))


def _chosen(cases: Sequence[LayerCase], only: str | None, where: str) -> tuple[LayerCase, ...]:
    if only is None:
        return tuple(cases)
    check_type("--only", only, str, "a pattern of names", "Pass a text such as 'harmonics/*'.")
    chosen = tuple(case for case in cases if fnmatchcase(case.name, only))
    if not chosen:
        names = ", ".join(case.name for case in cases)
        raise ConfigError(f"--only must match a case of {where}, got {only!r}. The cases are {names}.")
    return chosen


def _read_group(where: str, group: str, given: Any, runs: int) -> Iterator[LayerCase]:
    layer = given.get("layer") if isinstance(given, dict) else None
    if isinstance(layer, str):
        check_known("layer", [layer], KINDS, where)
    own, peers = KINDS.get(str(layer), ({}, ()))
    fields = read_fields(where, given, {**_OF_ALL, **own}, OPTIONS)
    check_known("dtype", fields["dtypes"], LAYER_DTYPES, where)
    check_known("direction", fields["directions"], LAYER_DIRECTIONS, where)
    check_known(f"peer of {layer}", fields["peers"], peers, where)
    check_known("goal", fields["goals"], LAYER_GOALS, where)
    for name in ("in", "out", "irreps"):
        if name in own:
            as_irreps(fields[name], f"{where}: {name}")
    limits: dict[str, tuple[str, Any]] = dict.fromkeys(LAYER_DIRECTIONS, ("number", None))
    read = {q: read_fields(f"{where}, {q}", of, {}, limits) for q, of in fields["goals"].items()}
    goals = {q: {d: float(v) for d, v in of.items() if v is not None} for q, of in read.items()}
    about = {name: fields[name] for name in own}
    degrees = [{"lmax": l} for l in about["lmax"]] if "lmax" in about else [about]
    shape = (tuple(fields["directions"]), goals, fields["runs"] or runs)
    for options, rows, dtype in product(degrees, fields["rows"], fields["dtypes"]):
        yield LayerCase(group, str(layer), rows, dtype, tuple(fields["peers"]), options, *shape)
