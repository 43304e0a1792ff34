"""The command `eqlayers bench step`: a training step of a network with layers of this package and of e3nn."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from e3nn import o3
from torch import Tensor

from .. import nn
from ..core.dtypes import default_dtype
from ..core.errors import ConfigError
from ..core.files.read_write import read_yaml
from ..core.graph import Graph
from ..irreps.layout import LAYOUTS
from ..models import MoleculeNetwork
from .config import DEVICE, Field, Known, read_settings
from .measure import Call, alternate, describe, find_device, keep_random_state, ratio, summary, threads
from .products.implementation import convolve
from .results import OURS, Record, Say, goal, quiet

FIELDS: dict[str, Field] = {
    "device": DEVICE,
    "model": "text",
    **dict.fromkeys(("batch_size", "threads", "runs"), "count"),
    "layouts": Known("texts", "layout", LAYOUTS),
    "goals": Known("numbers", "goal", ("ratio",)),
}
NETWORK = "eqlayers.models.MoleculeNetwork"


@dataclass(frozen=True)
class Batch:
    """A batch of molecules, and statistics of the data.

    Attributes:
        z, pos, edge_index, batch: ``[A]``, ``[A, 3]`` Angstrom, ``[2, E]``, ``[A]``.
        num_graphs: Number of molecules.
        y: ``[G]`` targets.
        shifts, scale, mean_neighbors: See :meth:`eqlayers.models.MoleculeNetwork.set_statistics`.
    """

    z: Tensor
    pos: Tensor
    edge_index: Tensor
    batch: Tensor
    num_graphs: int
    y: Tensor
    shifts: Mapping[int, float]
    scale: float
    mean_neighbors: float

    def to(self, device: torch.device) -> Batch:
        """The batch on another device."""
        moved = {name: getattr(self, name).to(device) for name in ("z", "pos", "edge_index", "batch", "y")}
        return replace(self, **moved)


LoadBatch = Callable[[Mapping[str, Any]], Batch]  # argument: section `data` of a training configuration


class E3nnConv(torch.nn.Module):
    """Convolution with e3nn's tensor product: gather, product, sum."""

    def __init__(self, product: torch.nn.Module) -> None:
        super().__init__()
        self.product = product

    def forward(
        self, x: Tensor, edge_attr: Tensor, weight: Tensor, edge_index: Tensor | Graph, num_nodes: int | None = None
    ) -> Tensor:
        """Features ``[N, in1]``, edge attributes ``[E, in2]``, weights and edges to ``[receivers, out]``."""
        graph = edge_index if isinstance(edge_index, Graph) else Graph(edge_index, len(x), num_nodes)
        return convolve(self.product, x, edge_attr, weight, graph.edge_index, graph.num_dst)


def _e3nn_product(layer: Any) -> torch.nn.Module:
    names = ("irreps_in1", "irreps_in2", "irreps_out", "shared_weights", "internal_weights")
    paths = [tuple(ins)[:5] for ins in layer.instructions]
    product: torch.nn.Module = o3.TensorProduct(**{name: getattr(layer, name) for name in names}, instructions=paths)
    return product


# class of a layer -> function that builds e3nn's
SWAPS: dict[type[torch.nn.Module], Callable[[Any], torch.nn.Module]] = {
    nn.TensorProduct: _e3nn_product,
    nn.TensorProductConv: lambda layer: E3nnConv(_e3nn_product(layer)),
    nn.Linear: lambda layer: o3.Linear(layer.irreps_in, layer.irreps_out, biases=layer.bias_numel > 0),
}


def swap(module: torch.nn.Module) -> int:
    """Replace tensor products and linear maps of a network in place by e3nn's, with equal weights; return their number.

    Layers must have layout 'mul_ir'. Gates are not replaced, as e3nn estimates their constants by sampling.
    """
    count = 0
    for name, child in module.named_children():
        make = SWAPS.get(type(child))
        if make is None:
            count += swap(child)
            continue
        with default_dtype(torch.float64):
            other = make(child)
        known = {key: value for key, value in child.state_dict().items() if "_compiled" not in key and value.numel()}
        for key, parameter in other.named_parameters():
            parameter.data = known[key.removeprefix("product.")].to(parameter)
        setattr(module, name, other)
        count += 1
    return count


def networks(options: dict[str, Any], batch: Batch, layouts: list[str], backend: str | None) -> dict[str, Any]:
    """Networks by layout, and 'e3nn' with e3nn's layers, all with equal weights, in float64."""
    torch.manual_seed(0)
    first = MoleculeNetwork(**options, backend=backend)
    shifts = {z: s for z, s in batch.shifts.items() if z in first.species}
    first.set_statistics(shifts, batch.scale, batch.mean_neighbors)
    nets: dict[str, Any] = {}
    for name in [*layouts, "e3nn"]:
        network = MoleculeNetwork(**options, backend=backend)
        if name != "ir_mul":
            relay(network, options, backend)
        network.load_state_dict(first.state_dict())
        if name == "e3nn":
            swap(network)
        nets[name] = network.to(batch.pos.device, torch.float64)
    return nets


def relay(network: MoleculeNetwork, options: dict[str, Any], backend: str | None) -> None:
    """Rebuild the layers of a network in layout 'mul_ir', with new weights."""
    common: dict[str, Any] = {"layout": "mul_ir", "backend": backend}
    radial = {key: options[key] for key in ("num_basis", "cutoff", "radial_hidden") if key in options}
    for number, step in enumerate(network.interactions):
        old: Any = step
        irreps = {"irreps_in": old.irreps_in, "irreps_sh": network.irreps_sh, "irreps_out": old.irreps_out}
        network.interactions[number] = nn.Interaction(**irreps, **radial, gate="silu", residual=False, **common)
    network.read = nn.Linear(network.read.irreps_in, network.read.irreps_out, **common)


def difference(network: Any, reference: Any, batch: Batch) -> float:
    """Largest difference of predictions and of gradients of the loss, relative to the largest entry of each."""
    both = []
    for net in (network, reference):
        net.zero_grad()
        out = net(batch.z, batch.pos.double(), batch.edge_index, batch.batch, batch.num_graphs)
        loss_of(out, batch).backward()
        out = (out.detach() - out.detach().mean()) / batch.scale  # without the shifts, which are far larger
        ordered = [parameter for _, parameter in sorted(net.named_parameters())]
        gradients = torch.cat([p.grad.flatten() for p in ordered if p.grad is not None])
        net.zero_grad()
        both.append((out, gradients))
    pairs = list(zip(*both, strict=True))
    if any(a.shape != b.shape for a, b in pairs):
        return math.inf
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


def loss_of(prediction: Tensor, batch: Batch) -> Tensor:
    """Mean absolute error relative to the scale."""
    return ((prediction - batch.y.double()) / batch.scale).abs().mean()


def training_step(network: Any, batch: Batch, rate: float, clip: float) -> Call:
    """A call that runs forward, loss, backward, clipping and AdamW, as `eqlayers fit` does."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        out = network(batch.z, batch.pos, batch.edge_index, batch.batch, batch.num_graphs)
        loss_of(out, batch).backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
        optimizer.step()

    return step


def read_training(path: Path) -> dict[str, Any]:
    """Read network options, data, learning rate and clipping from a training configuration."""
    content = read_yaml(path, "a configuration of training")
    try:
        model = content["model"]
        inner = model["model"]
        parts = {
            # without tables, which e3nn's layers cannot read; `tables` and `networks` add them
            "options": dict(inner.get("init_args", {})) | {"cutoff": content["data"]["cutoff"], "knots": None},
            "data": content["data"],
            "rate": float(model["learning_rate"]),
            "clip": float(content["trainer"]["gradient_clip_val"]),
        }
        class_path = inner["class_path"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: expected a training configuration with data.cutoff, model.learning_rate, model.model.class_path "
            f"and trainer.gradient_clip_val, missed {error}. Take configs/qm9_mini.yaml as a pattern."
        ) from error
    if class_path != NETWORK:
        raise ConfigError(f"{path}: model.model.class_path must be {NETWORK}, got {class_path!r}. Change it.")
    return parts


def run_step(
    name: str = "step",
    *,
    load_batch: LoadBatch,
    num_threads: int | None = None,
    backend: str | None = None,
    runs: int | None = None,
    say: Say = quiet,
) -> Record:
    """Compare networks in float64, then time training steps in alternation."""
    path, fields = read_settings(name, FIELDS)
    training = read_training(path.parent / fields["model"])
    say("data")
    device = find_device(fields["device"], path.stem)
    batch = load_batch({**training["data"], "batch_size": fields["batch_size"]}).to(device)
    with threads(num_threads or fields["threads"]), keep_random_state(device):
        head = describe(device)
        say("networks, compared in float64")
        nets = networks(training["options"], batch, fields["layouts"], backend)
        errors = {key: difference(net, nets["e3nn"], batch) for key, net in nets.items() if key != "e3nn"}
        tolerance = 1e5 * torch.finfo(torch.float64).eps  # sums of 1e4 terms through ten layers
        equal = [key for key in nets if errors.get(key, 0.0) <= tolerance]
        steps = [training_step(nets[key].float(), batch, training["rate"], training["clip"]) for key in equal]
        say("timing")
        seconds = dict(zip(equal, alternate(steps, runs or fields["runs"], device), strict=True))
    rows, goals = [], []
    for key, net in nets.items():
        mine = key != "e3nn"
        speedup = ratio(seconds["e3nn"], seconds[key]) if mine and key in equal else None
        about: Record = {"model": f"{type(net).__name__}, layers of {OURS if mine else 'e3nn'}"}
        about |= {"layout": key if mine else "mul_ir", "backend": (backend or "auto") if mine else "-"}
        about |= {"status": "ok" if key in equal else "wrong", "error": errors.get(key)}
        measured: Record = {"seconds": summary(seconds[key]) if key in seconds else None, "ratio": speedup}
        rows.append({**about, **measured, "parameters": sum(p.numel() for p in net.parameters())})
        if mine:
            value = None if speedup is None else speedup["median"]
            limit = float(fields["goals"].get("ratio", 0.0))
            goals.append(goal("ratio", limit, value, where="training step", layout=key))
    notes = [
        f"{fields['device']}, {batch.num_graphs} molecules, {len(batch.z)} atoms, {batch.edge_index.shape[1]} edges. "
        "Predictions and gradients of all networks were compared in float64 before. With e3nn's layers, products and "
        "linear maps are e3nn's; gates, which are a small part, stay."
    ]
    return {"kind": "step", **head, "rows": rows, "goals": goals, "notes": notes}
