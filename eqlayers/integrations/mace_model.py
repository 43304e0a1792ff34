"""The hyperparameters of a module of mace-torch, read from its parts, and the parts without a counterpart here."""

from __future__ import annotations

from typing import Any

import torch

from ..core.checks import check_choice, got
from ..core.errors import ConfigError
from ..layers.gate.activation import ACTIVATIONS
from ..models.mace import MACE
from ..models.mace_blocks import INTERACTIONS

_MODELS = ("MACE", "ScaleShiftMACE")
#: Options of MACE that change what is computed and have no counterpart: attribute, its usual value, what it is.
_OPTIONS = (
    ("edge_irreps", None, "features of edges with irreps of their own"),
    ("apply_cutoff", True, "radial functions without envelope"),
    ("use_so3", False, "harmonics without parity"),
    ("use_agnostic_product", False, "products that do not see species"),
    ("use_last_readout_only", False, "a read-out of the last layer alone"),
)
_TRANSFORMS = {"NoneType": None, "AgnesiTransform": "agnesi"}


def check_convertible(theirs: Any, head: str | None) -> int:
    """The number of the head of a model that can be converted."""
    if type(theirs).__name__ not in _MODELS or not hasattr(theirs, "interactions"):
        raise ConfigError(
            f"model must be a {' or '.join(_MODELS)} of mace-torch, got {got(theirs)}. Others stay there."
        )
    for name, usual, what in _OPTIONS:
        if getattr(theirs, name, usual) != usual:
            raise ConfigError(
                f"model.{name} must be {usual}, got {got(getattr(theirs, name))}: {what}. Leave it to MACE."
            )
    _check_kinds(theirs)
    heads = list(getattr(theirs, "heads", None) or ["Default"])
    if head is None and len(heads) > 1:
        raise ConfigError(f"head must be named for a model with several, {', '.join(heads)}, got None. Name one.")
    return 0 if head is None else heads.index(check_choice("head", head, heads))


def _check_kinds(theirs: Any) -> None:
    """Parts that come in several kinds."""
    layers = len(theirs.interactions)
    radial = theirs.radial_embedding
    last = "NonLinearReadoutBlock" if layers > 1 else "LinearReadoutBlock"
    kinds: list[tuple[str, Any, Any]] = [
        ("radial_embedding.bessel_fn", radial.bessel_fn, ("BesselBasis",)),
        ("radial_embedding.distance_transform", getattr(radial, "distance_transform", None), _TRANSFORMS),
        *((f"interactions.{i}", block, INTERACTIONS) for i, block in enumerate(theirs.interactions)),
        *(
            (f"interactions.{i}.conv_tp_weights", b.conv_tp_weights, ("FullyConnectedNet",))
            for i, b in enumerate(theirs.interactions)
        ),
        *((f"readouts.{i}", one, ("LinearReadoutBlock",)) for i, one in enumerate(theirs.readouts[:-1])),
        ("readouts.last", theirs.readouts[-1], (last,)),
    ]
    for name, part, known in kinds:
        if type(part).__name__ not in known:
            raise ConfigError(
                f"model.{name} must be {' or '.join(known)}, got {type(part).__name__}. Leave it to MACE."
            )
    for name, part in theirs.named_modules():
        family = type(part).__module__.partition(".")[0]
        if family in ("cuequivariance_torch", "openequivariance"):
            raise ConfigError(
                f"model.{name} must be a layer of e3nn's, got {type(part).__name__} of {family}. Convert the model by "
                "mace_cueq_to_e3nn first."
            )
    if theirs.products[-1].linear.irreps_out.lmax > 0:
        raise ConfigError(
            f"model.products.{layers - 1} must end in scalars, got {theirs.products[-1].linear.irreps_out}. Leave "
            "models with keep_last_layer_irreps to MACE."
        )


def scale_and_shift(theirs: Any, head: int) -> tuple[float, float]:
    """Scale and shift of one head; 1 and 0 for a model without."""
    block = getattr(theirs, "scale_shift", None)
    if block is None:
        return 1.0, 0.0
    scale, shift = (torch.atleast_1d(t.detach().cpu().double())[head].item() for t in (block.scale, block.shift))
    return scale, shift


def network_of(theirs: Any) -> MACE:
    """A network with the hyperparameters of a model, and weights of its own."""
    radial, last = theirs.radial_embedding, theirs.readouts[-1]
    heads = len(getattr(theirs, "heads", None) or [0])
    cutoff, count = float(theirs.r_max), radial.bessel_fn.bessel_weights.numel()
    frequencies = torch.arange(1, count + 1, dtype=torch.float64) * (torch.pi / cutoff)
    if not torch.allclose(radial.bessel_fn.bessel_weights.detach().cpu().double(), frequencies, rtol=1e-6):
        raise ConfigError(
            "model.radial_embedding.bessel_fn must have the frequencies n pi / r_max, got others. Leave trained "
            "ones to MACE."
        )
    options: dict[str, Any] = {}
    if hasattr(last, "non_linearity"):
        activation = last.non_linearity.acts[0]
        names = {function: name for name, (function, _) in ACTIVATIONS.items()}
        if getattr(activation, "f", None) not in names:
            raise ConfigError(
                f"model.readouts.last must have an activation among {', '.join(ACTIVATIONS)}, got {got(activation)}. "
                "Leave it to MACE."
            )
        hidden = last.hidden_irreps
        options = {"readout_hidden": f"{hidden.dim // heads}x0e", "activation": names[activation.f]}
        if hidden.lmax > 0 or hidden.dim % heads:
            raise ConfigError(f"model.readouts.last must have scalars of each head, got {hidden}. Leave it to MACE.")
    parts = [product.symmetric_contractions.contractions for product in theirs.products]

    def build(reduced: bool) -> MACE:
        return MACE(
            theirs.atomic_numbers.tolist(),
            hidden=theirs.products[0].linear.irreps_out,
            correlation=[part[0].correlation for part in parts],
            lmax=theirs.spherical_harmonics.irreps_out.lmax,
            layers=len(parts),
            num_basis=count,
            cutoff=cutoff,
            cutoff_p=int(radial.cutoff_fn.p),
            radial_hidden=list(theirs.interactions[0].conv_tp_weights.hs)[1:-1],
            interactions=[type(block).__name__ for block in theirs.interactions],
            distance_transform=_TRANSFORMS[type(getattr(radial, "distance_transform", None)).__name__],
            use_reduced_cg=reduced,
            **options,
        )

    with torch.random.fork_rng(devices=[]):
        network = build(False)
        products: Any = network.products
        pairs = zip(products, parts, strict=True)
        same = all(
            a.weights_max.shape == b.weights_max.shape
            for p, q in pairs
            for a, b in zip(p.contraction.contractions, q, strict=True)
        )
        return network if same else build(True)
