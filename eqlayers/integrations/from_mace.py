"""Convert models of mace-torch to potentials of this package, and back, with equal predictions.

Both directions use one list, :func:`_pairs`: a view of a weight here, a view of the weight of mace-torch, and the
factor between them. A parameter of the model that is not in the list raises an error.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pickle import UnpicklingError
from typing import Any, NoReturn
from zipfile import BadZipFile, is_zipfile

import torch
from torch import Tensor, nn

from ..core.checks import check_choice, check_path, check_type, got
from ..core.dtypes import default_dtype
from ..core.errors import ConfigError, DataError, EqlayersError
from ..core.files.archives import check_whole
from ..layers.gate.activation import ACTIVATIONS
from ..layers.linear.structured_linear import SpeciesLinear
from ..layers.radial.by_species import ZBL
from ..models import Potential
from ..models.compression import without_tables
from ..models.mace import INTERACTIONS, MACE, Readout

_MODELS = ("MACE", "ScaleShiftMACE")
#: Unsupported options of MACE: attribute, supported value, description of other values.
_OPTIONS = (
    ("edge_irreps", None, "edge features with separate irreps"),
    ("apply_cutoff", True, "radial functions without envelope"),
    ("use_so3", False, "harmonics without parity"),
    ("use_agnostic_product", False, "products that do not depend on species"),
    ("use_last_readout_only", False, "a read-out of the last layer alone"),
)
_TRANSFORMS = {"NoneType": None, "AgnesiTransform": "agnesi"}


def from_mace(model: nn.Module | str | os.PathLike[str], head: str | None = None) -> Potential:
    """Convert a MACE or ScaleShiftMACE of mace-torch to a potential of this package.

    Hyperparameters and weights are read from the module; energies, forces and stress are equal up to rounding. Bessel
    frequencies are exact here and rounded to float32 in MACE.

    Args:
        model: The module, or a file of it by ``torch.save``. Such a file can run any code: load only files that you
            trust.
        head: Name of a head; None if the model has only one.

    Returns:
        The potential, in evaluation mode, with the dtype and on the device of the model.

    Raises:
        ConfigError: The model or head does not exist, or a part of the model is not supported; the message names it.

    Example:
        >>> from_mace(torch.nn.Linear(1, 1))
        Traceback (most recent call last):
            ...
        eqlayers.errors.ConfigError: model must be a MACE or ScaleShiftMACE of mace-torch, got a module of type ...
    """
    theirs: Any = model if isinstance(model, nn.Module) else load_model(model)
    number = _check_convertible(theirs, head)
    scale, shift = _scale_and_shift(theirs, number)
    network = _network_of(theirs)
    species = network.species
    alone = theirs.atomic_energies_fn.atomic_energies.detach().cpu().double().reshape(-1, len(species))[number]
    shifts = dict(zip(species, (alone + shift).tolist(), strict=True))
    repulsion = _repulsion(theirs, scale) if hasattr(theirs, "pair_repulsion_fn") else None
    potential = Potential(network, species, shifts, scale, repulsion, subtract_isolated=False)
    like = theirs.node_embedding.linear.weight
    potential.to(like.device, like.dtype).eval()
    read = set()
    with torch.no_grad():
        for ours, view, factor in _pairs(network, theirs, number):
            ours.copy_(view * factor)
            read.add(view.untyped_storage().data_ptr())
        for layer, reference in _layers(network, theirs):
            _load(layer, reference.state_dict(), "model")
            read |= {p.untyped_storage().data_ptr() for p in reference.parameters()}
        for block, reference in zip(network.messages, theirs.interactions, strict=True):
            block.get_buffer("mean_neighbors").fill_(float(reference.avg_num_neighbors))
    unread = [n for n, p in theirs.named_parameters() if p.numel() and p.untyped_storage().data_ptr() not in read]
    if unread:
        _refuse("model", f"hold only what {MACE.__name__} has here", f"also {', '.join(unread)}")
    return potential


def to_mace(potential: Potential) -> nn.Module:
    """Convert a potential with the network :class:`eqlayers.models.MACE` to a ``ScaleShiftMACE`` of mace-torch.

    Args:
        potential: A potential with one scale for all species, and with :class:`eqlayers.nn.ZBL` or no repulsion.

    Returns:
        The module, in evaluation mode, with the dtype and on the device of the potential. Its atomic energies are the
        result of :meth:`eqlayers.models.Potential.shifts_of_network`.

    Raises:
        ConfigError: MACE does not support the potential, or mace-torch is not installed.
    """
    check_type("potential", potential, Potential, "a Potential of a MACE network", "Use from_mace to get one.")
    potential = without_tables(potential)
    network, repulsion = potential.network, potential.repulsion
    if not isinstance(network, MACE):
        raise ConfigError(f"potential.network must be eqlayers.models.MACE, got {got(network)}. Others stay here.")
    scale = _single("scale of all species", potential.scales.tolist())
    if repulsion is not None and not isinstance(repulsion, ZBL):
        raise ConfigError(f"potential.repulsion must be eqlayers.nn.ZBL or None, got {got(repulsion)}. Leave it out.")
    if repulsion is not None:
        _single("factor of the repulsion and scale of the energy", [float(repulsion.factor), scale])
        _single("power of all envelopes", [repulsion.envelope.p, network.options["cutoff_p"]])
    first, *others = network.interactions
    like, last = network.embedding, network.readouts[-1]
    assert isinstance(last, Readout)
    theirs = _built(
        like.dtype,
        r_max=network.cutoff,
        num_bessel=network.options["num_basis"],
        num_polynomial_cutoff=network.options["cutoff_p"],
        max_ell=network.irreps_sh.lmax,
        interaction_cls=_single("interaction behind the first", others or [first]),
        interaction_cls_first=first,
        num_interactions=len(network.interactions),
        num_elements=len(network.species),
        hidden_irreps=network.hidden,
        MLP_irreps=network.readout_hidden,
        atomic_energies=potential.shifts_of_network().cpu().numpy(),
        avg_num_neighbors=1.0,  # set below, for each layer
        atomic_numbers=list(network.species),
        correlation=list(network.correlation),
        gate=ACTIVATIONS[last.activation.name][0],
        pair_repulsion=repulsion is not None,
        distance_transform="None" if network.transform is None else "Agnesi",
        radial_MLP=list(network.radial_hidden),
        use_reduced_cg=network.use_reduced_cg,
        atomic_inter_scale=scale,
        atomic_inter_shift=0.0,
    ).to(like.device)
    with torch.no_grad(), _quiet():
        for ours, view, factor in _pairs(network, theirs, 0):
            view.copy_(ours / factor)
        for layer, reference in _layers(network, theirs):
            _load(reference, layer.state_dict(), "potential.network")
        for block, reference in zip(network.messages, theirs.interactions, strict=True):
            reference.avg_num_neighbors = float(block.get_buffer("mean_neighbors"))
        if repulsion is not None:
            _write_constants(repulsion, theirs.pair_repulsion_fn)
    return theirs.eval()


def load_model(path: Any) -> nn.Module:
    """Load a module from a file of mace-torch, which can run any code."""
    name = check_path("model", path, "a module of mace-torch, or its file")
    try:
        with open(name, "rb") as file:
            if is_zipfile(file):  # files of torch before 1.6 are no archives
                check_whole(file)
            module = torch.load(file, map_location="cpu", weights_only=False)
    except BadZipFile as error:
        raise DataError(f"model must be a whole file of mace-torch, got {name}: {error}. Copy it again.") from None
    except (OSError, ImportError, AttributeError, RuntimeError, EOFError, UnpicklingError) as error:
        raise ConfigError(
            f"model must be a file of a module of mace-torch, got {name} ({type(error).__name__}: {error}). Install "
            "mace-torch beside this package, and give its '.model' file."
        ) from error
    return check_type("model", module, nn.Module, "a module of mace-torch, or its file", "State dicts hold no options.")


def _repulsion(theirs: Any, scale: float) -> ZBL:
    """A ZBL with the constants of MACE's pair repulsion."""
    pairs = theirs.pair_repulsion_fn
    repulsion = ZBL(int(pairs.p), scale, float(pairs.a_exp), float(pairs.a_prefactor))
    repulsion.radii[1:] = pairs.covalent_radii.detach()[1:119]
    return repulsion


def _write_constants(ours: ZBL, theirs: Any) -> None:
    """Copy the constants of a ZBL to MACE's pair repulsion."""
    exponent, prefactor = ours.screening.tolist()
    theirs.a_exp.fill_(exponent)
    theirs.a_prefactor.fill_(prefactor)
    theirs.covalent_radii.copy_(torch.where(ours.radii > 0, ours.radii, theirs.covalent_radii))


def _pairs(network: Any, theirs: Any, head: int) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield (weight here, weight of MACE as a view of equal shape, factor) with here = factor * MACE."""
    yield network.embedding, theirs.node_embedding.linear.weight.view_as(network.embedding), 1.0
    transform = getattr(theirs.radial_embedding, "distance_transform", None)
    if network.transform is not None:
        for number, name in enumerate(("q", "p", "a")):
            yield network.transform.constants[number], getattr(transform, name), 1.0
    for ours, block in zip(network.messages, theirs.interactions, strict=True):
        yield ours.up.weight, block.linear_up.weight, 1.0
        yield ours.down.weight, block.linear.weight, 1.0
        for number, weight in enumerate(ours.radial.weights):
            layer = getattr(block.conv_tp_weights, f"layer{number}")
            before = getattr(block.conv_tp_weights, f"layer{max(number - 1, 0)}")
            yield weight, layer.weight, before.act.cst / ours.radial.activation.factor if number else 1.0
        if ours.density is not None:
            yield ours.density.weights[0], block.density_fn.layer0.weight, 1.0
        yield from _by_species(ours.skip, block.skip_tp.weight)
    for ours, block in zip(network.products, theirs.products, strict=True):
        yield ours.mix.weight, block.linear.weight, 1.0
    heads = len(heads_of(theirs))
    for ours, block in zip(network.readouts, theirs.readouts, strict=True):
        first = ours.maps[0].weight
        if len(ours.maps) == 1:
            yield first, block.linear.weight.view(-1, heads)[:, head], 1.0
            continue
        width = ours.maps[1].weight.numel()
        mine = slice(head * width, (head + 1) * width)
        yield first.view(-1, width), block.linear_1.weight.view(-1, heads * width)[:, mine], 1.0
        factor = block.non_linearity.acts[0].cst / ours.activation.factor * heads**-0.5
        yield ours.maps[1].weight, block.linear_2.weight.view(-1, heads)[mine, head], factor


def _by_species(ours: SpeciesLinear, weight: Tensor) -> Iterator[tuple[Tensor, Tensor, float]]:
    """Yield pairs as :func:`_pairs`, path by path, for weights that depend on the species of the atom."""
    species, start = ours.weight.shape[0], 0
    for path in ours.linear.instructions:
        size = path.path_shape[0] * path.path_shape[1]
        theirs = weight[start * species : (start + size) * species].view(path.path_shape[0], species, -1)
        yield ours.weight[:, start : start + size].unflatten(1, path.path_shape), theirs.transpose(0, 1), species**-0.5
        start += size


def _layers(network: Any, theirs: Any) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield layers with compatible state dicts, which also have signs and bases that depend on the version of e3nn."""
    for ours, block in zip(network.messages, theirs.interactions, strict=True):
        yield ours.product, block.conv_tp
    for ours, block in zip(network.products, theirs.products, strict=True):
        yield ours.contraction, block.symmetric_contractions


def _load(layer: nn.Module, state: dict[str, Tensor], name: str) -> None:
    """Load a state dict, with a ConfigError if it does not fit."""
    try:
        layer.load_state_dict(state)
    except (RuntimeError, EqlayersError) as error:
        raise ConfigError(f"{name} must hold weights of a known form, got others: {error}") from error


def _single(what: str, values: list[Any]) -> Any:
    """The common value of a list; raises if values differ."""
    if len(set(values)) > 1:
        raise ConfigError(f"{what} must be one number or name for MACE, got {values}. Make them equal.")
    return values[0]


def _built(dtype: torch.dtype, **options: Any) -> Any:
    """Build a ScaleShiftMACE in a dtype, which mace-torch takes from torch's default."""
    try:
        from mace import modules
    except ImportError as error:
        raise ConfigError(
            f"mace-torch must be installed, got {error}. Install it in a separate environment."
        ) from error
    for name in ("interaction_cls", "interaction_cls_first"):
        options[name] = modules.interaction_classes[options[name]]
    with default_dtype(dtype), torch.random.fork_rng(devices=[]), _quiet():
        return modules.ScaleShiftMACE(**options)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of torch about the code of MACE and e3nn 0.4."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- hyperparameters of modules of MACE, and unsupported parts ------------------------------------------------------


def _refuse(name: str, needed: str, received: object) -> NoReturn:
    """Raise the error of an unsupported part of a model of mace-torch."""
    raise ConfigError(f"{name} must {needed}, got {received}. Leave it to MACE.")


def _check_convertible(theirs: Any, head: str | None) -> int:
    """Check that a model is supported; return the index of the head."""
    if type(theirs).__name__ not in _MODELS or not hasattr(theirs, "interactions"):
        raise ConfigError(
            f"model must be a {' or '.join(_MODELS)} of mace-torch, got {got(theirs)}. Others stay there."
        )
    for name, usual, what in _OPTIONS:
        if getattr(theirs, name, usual) != usual:
            _refuse(f"model.{name}", f"be {usual}", f"{got(getattr(theirs, name))}: {what}")
    _check_parts(theirs)
    heads = heads_of(theirs)
    return heads.index(check_head(heads, head))


def heads_of(theirs: Any) -> list[str]:
    """Names of the heads of a model; 'Default' for older models without names."""
    return list(getattr(theirs, "heads", None) or ["Default"])


def check_head(heads: list[str], head: str | None) -> str:
    """Check the name of a head; None selects the only one."""
    if head is None and len(heads) > 1:
        raise ConfigError(f"head must be named for a model with several, {', '.join(heads)}, got None. Name one.")
    return heads[0] if head is None else check_choice("head", head, heads)


def _check_parts(theirs: Any) -> None:
    """Raise unless the classes of all parts are supported."""
    layers = len(theirs.interactions)
    radial = theirs.radial_embedding
    last = "NonLinearReadoutBlock" if layers > 1 else "LinearReadoutBlock"
    parts: list[tuple[str, Any, Any]] = [
        ("radial_embedding.bessel_fn", radial.bessel_fn, ("BesselBasis",)),
        ("radial_embedding.distance_transform", getattr(radial, "distance_transform", None), _TRANSFORMS),
        *((f"interactions.{i}", block, INTERACTIONS) for i, block in enumerate(theirs.interactions)),
        *(
            (f"interactions.{i}.conv_tp_weights", b.conv_tp_weights, ("FullyConnectedNet",))
            for i, b in enumerate(theirs.interactions)
        ),
        *((f"readouts.{i}", block, ("LinearReadoutBlock",)) for i, block in enumerate(theirs.readouts[:-1])),
        ("readouts.last", theirs.readouts[-1], (last,)),
    ]
    for name, part, known in parts:
        if type(part).__name__ not in known:
            _refuse(f"model.{name}", f"be {' or '.join(known)}", type(part).__name__)
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


def _scale_and_shift(theirs: Any, head: int) -> tuple[float, float]:
    """Scale and shift of one head; 1 and 0 for a model without them."""
    block = getattr(theirs, "scale_shift", None)
    if block is None:
        return 1.0, 0.0
    scale, shift = (torch.atleast_1d(t.detach().cpu().double())[head].item() for t in (block.scale, block.shift))
    return scale, shift


def _network_of(theirs: Any) -> MACE:
    """A network with the hyperparameters of a model of mace-torch, and initial weights."""
    radial, last = theirs.radial_embedding, theirs.readouts[-1]
    heads = len(heads_of(theirs))
    cutoff, count = float(theirs.r_max), radial.bessel_fn.bessel_weights.numel()
    frequencies = torch.arange(1, count + 1, dtype=torch.float64) * (torch.pi / cutoff)
    if not torch.allclose(radial.bessel_fn.bessel_weights.detach().cpu().double(), frequencies, rtol=1e-6):
        _refuse("model.radial_embedding.bessel_fn", "have the frequencies n pi / r_max", "others, such as trained ones")
    options: dict[str, Any] = {}
    if hasattr(last, "non_linearity"):
        activation = last.non_linearity.acts[0]
        names = {function: name for name, (function, _) in ACTIVATIONS.items()}
        if getattr(activation, "f", None) not in names:
            _refuse("model.readouts.last", f"have an activation among {', '.join(ACTIVATIONS)}", got(activation))
        hidden = last.hidden_irreps
        options = {"readout_hidden": f"{hidden.dim // heads}x0e", "activation": names[activation.f]}
        if hidden.lmax > 0 or hidden.dim % heads:
            _refuse("model.readouts.last", "have scalars of each head", hidden)
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
        both = [zip(p.contraction.contractions, q, strict=True) for p, q in zip(products, parts, strict=True)]
        same = all(a.weights_max.shape == b.weights_max.shape for pairs in both for a, b in pairs)
        return network if same else build(True)
