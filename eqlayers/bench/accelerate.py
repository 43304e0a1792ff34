"""`eqlayers bench accelerate`: networks of other packages as they are, and after `eqlayers.accelerate`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ..integrations import Report, accelerate
from .config import check_known
from .goals import Record
from .machine import describe, threads
from .measure import alternate, ratio, summary
from .memory import peak_extra, refusal
from .network_subjects import NETWORKS, subjects
from .run import Say, quiet
from .subject import Evaluate, Subject
from .tables import number

#: How far two ways to compute the same numbers may be apart, in rounding errors of the plain network: the largest of
#: some hundred thousand errors varies by a few times from one order of sums to another.
ROUNDINGS = 10
RUNS = 7
#: The largest error over the largest entry, of each of these.
QUANTITIES = ("energy", "forces", "gradient")


def force_loss(forces: Tensor) -> Tensor:
    """Mean squared error of forces ``[A, 3]`` beside fixed labels."""
    labels = torch.sin(torch.arange(forces.numel(), dtype=torch.float64)).view_as(forces)
    return (forces - labels.to(forces)).square().mean()


class Evaluates(Protocol):
    """A runner of a network on its atoms."""

    @property
    def evaluate(self) -> Evaluate:
        """Energies and forces of a network; see :class:`eqlayers.bench.network_subjects.Subject`."""


def outcome(subject: Evaluates, network: torch.nn.Module) -> dict[str, Tensor]:
    """Energies, forces, and the gradient of a force loss with respect to all parameters, in float64.

    Args:
        subject: Where the network is from.
        network: In any dtype; its own gradients are not touched.

    Returns:
        ``energy [G]``, ``forces [A, 3]`` and ``gradient [P]``, by name.
    """
    energy, forces = subject.evaluate(network, True)
    parameters = [p for _, p in sorted(network.named_parameters()) if p.requires_grad]
    gradients = torch.autograd.grad(force_loss(forces), parameters, allow_unused=True)
    filled = [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, gradients, strict=True)]
    flat = torch.cat([gradient.flatten().double() for gradient in filled])
    return {"energy": energy.detach().double(), "forces": forces.detach().double(), "gradient": flat}


def errors(found: dict[str, Tensor], reference: dict[str, Tensor]) -> dict[str, float]:
    """Largest difference over the largest entry of the reference, for each quantity."""
    return {key: float((found[key] - reference[key]).abs().max() / reference[key].abs().max()) for key in QUANTITIES}


def allowed(rounding: dict[str, float], dtype: torch.dtype) -> dict[str, float]:
    """Bounds in a dtype, from the errors of the plain network in float32 beside itself in float64.

    The bound follows from the network: its own rounding errors are what its layers make of one rounding per operation,
    and they are in proportion to the dtype's epsilon.
    """
    scale = torch.finfo(dtype).eps / torch.finfo(torch.float32).eps
    return {key: ROUNDINGS * max(value, torch.finfo(torch.float32).eps) * scale for key, value in rounding.items()}


def compare(subject: Subject, change: Callable[[torch.nn.Module], Any]) -> dict[str, dict[str, float]]:
    """Errors of a changed network, and of the plain one in float32, beside the plain one in float64.

    Args:
        subject: The network and its batch.
        change: Changes a network in place.

    Returns:
        By name: errors of 'plain float32', 'float32' and 'float64', and the largest of the last two over their
        bounds, 'of the bound'.
    """
    plain = {dtype: subject.make(dtype) for dtype in (torch.float64, torch.float32)}
    exact = outcome(subject, plain[torch.float64])
    rounding = errors(outcome(subject, plain[torch.float32]), exact)
    found: dict[str, dict[str, float]] = {"plain float32": rounding}
    shares = []
    for dtype, network in plain.items():
        change(network)
        mine = errors(outcome(subject, network), exact)
        found[str(dtype).removeprefix("torch.")] = mine
        bounds = allowed(rounding, dtype)
        shares.append({key: mine[key] / bounds[key] for key in QUANTITIES})
    found["of the bound"] = {key: max(share[key] for share in shares) for key in QUANTITIES}
    return found


def inference(subject: Evaluates, network: torch.nn.Module) -> Callable[[], Any]:
    """Energies and forces, as one call."""
    return lambda: subject.evaluate(network, False)


def training_step(subject: Evaluates, network: torch.nn.Module) -> Callable[[], Any]:
    """Forward, force loss, backward and optimizer, as one call."""
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-5)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = force_loss(subject.evaluate(network, True)[1])
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


MODES = {"inference: energies and forces": inference, "training step: force loss, optimizer": training_step}


def run_accelerate(
    name: str, *, num_threads: int | None = 1, runs: int | None = None, backend: str | None = None, say: Say = quiet
) -> Record:
    """Compare networks before and after, then time them in turn, in float32.

    Args:
        name: One of ``NETWORKS``.
        num_threads: Threads of torch; None leaves their number.
        runs: Timed runs of each.
        backend: Backend of this package's layers; None for the first that accepts.
        say: Called with a few words before every step.

    Returns:
        The result, one row for each network and mode.

    Raises:
        ConfigError: The name is not known, or its package is not installed.
    """
    check_known("network", [name], NETWORKS, "bench accelerate")
    rows: list[Record] = []
    notes, replaced = [], []
    with threads(num_threads), torch.random.fork_rng(devices=[]):
        head = describe()
        say(f"{name}: building")
        for subject in subjects(name):
            found, report = _measure(subject, runs or RUNS, backend, say)
            rows += found
            notes.append(_about(subject, found[0]["errors"]))
            replaced.append({"network": subject.name, "report": _cells(report)})
    if refusal(torch.device("cpu")) is not None:
        notes.append(f"Peak memory was not measured: {refusal(torch.device('cpu'))}.")
    return {"kind": "accelerate", "suite": name, **head, "rows": rows, "goals": [], "notes": notes, "reports": replaced}


def _measure(subject: Subject, runs: int, backend: str | None, say: Say) -> tuple[list[Record], Report]:
    say(f"{subject.name}: comparing")
    found = compare(subject, lambda network: accelerate(network, backend=backend))
    status = "ok" if all(share <= 1 for share in found["of the bound"].values()) else "wrong"
    plain = subject.make(torch.float32)
    report = accelerate(copy.deepcopy(plain), backend=backend)
    fast = report.model
    rows = []
    for mode, call in MODES.items():
        row: Record = {"network": subject.name, "mode": mode, "status": status, "errors": found, "dtype": "float32"}
        row |= dict.fromkeys(("plain", "accelerated", "ratio", "memory_plain", "memory_accelerated"))
        if status == "ok":
            say(f"{subject.name}: timing, {mode.partition(':')[0]}")
            calls = [call(subject, network) for network in (plain, fast)]
            theirs, mine = alternate(calls, runs)
            row |= {"plain": summary(theirs), "accelerated": summary(mine), "ratio": ratio(theirs, mine)}
            if refusal(torch.device("cpu")) is None:
                row["memory_plain"], row["memory_accelerated"] = (peak_extra(call) for call in calls)
        rows.append(row)
    return rows, report


def _about(subject: Subject, found: dict[str, dict[str, float]]) -> str:
    """Sentences on what was computed and how exactly."""
    place = subject.place
    atoms, edges = place.num_atoms, place.num_edges
    parts = [f"{key}: " + ", ".join(f"{q} {found[key][q]:.1e}" for q in QUANTITIES) for key in found]
    return (
        f"{subject.name}: {len(place.batch)} structures, {atoms} atoms, {edges} edges ({edges / atoms:.0f} an atom). "
        f"Largest differences from the plain network in float64, over the largest entry: {'; '.join(parts)}."
    )


def _cells(report: Report) -> list[list[str]]:
    """Place and class of all that was replaced or left."""
    return [
        [
            *(row.path or "(the model)", row.kind, row.replacement or f"left: {row.reason}", row.backend),
            "-" if row.error is None else number(row.error),
        ]
        for row in report.rows
    ]
