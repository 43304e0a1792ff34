"""Norms, and layers that normalise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from e3nn import nn as theirs

import eqlayers.nn as nn

from .cases import Case, features

IRREPS = "2x1o + 3x0e + 1x0o + 2x2e"
IN_PLACE = (
    "Running statistics are written in place, which transforms of torch.func refuse, as of torch's own batch norms."
)


def drawn(layer: torch.nn.Module, training: bool = True) -> torch.nn.Module:
    """With random weights and running statistics."""
    with torch.no_grad():
        for value in layer.parameters():
            value.normal_()
        for name, value in layer.named_buffers():
            if name == "running_mean":
                value.normal_()
            elif name.startswith("running"):
                value.uniform_(0.5, 2.0)
    return layer.train(training)


def row(
    name: str,
    make: Callable[[str], torch.nn.Module],
    out: str = IRREPS,
    argument: str = "x",
    e3nn: Callable[[], torch.nn.Module] | None = None,
    training: bool = True,
    out_rows: str = "row",
    lacks: dict[str, str] | None = None,
) -> Case:
    return Case(
        name,
        lambda layout: drawn(make(layout), training),
        features(**{argument: IRREPS}),
        {argument: IRREPS},
        (out,),
        out_rows=out_rows,
        e3nn=None if e3nn is None else lambda: drawn(e3nn(), training),
        family="Norms",
        lacks=lacks or {},
    )


CASES = [
    row(
        "BatchNorm",
        lambda layout: nn.BatchNorm(IRREPS, layout=layout),
        argument="input",
        e3nn=lambda: theirs.BatchNorm(IRREPS),
        training=False,
    ),
    row(
        "BatchNorm, training",
        lambda layout: nn.BatchNorm(IRREPS, normalization="norm", layout=layout),
        argument="input",
        e3nn=lambda: theirs.BatchNorm(IRREPS, normalization="norm"),
        lacks={"torch.func": IN_PLACE},
    ),
    row(
        "BatchNorm, instance",
        lambda layout: nn.BatchNorm(IRREPS, instance=True, include_bias=False, layout=layout),
        argument="input",
        e3nn=lambda: theirs.BatchNorm(IRREPS, instance=True, include_bias=False),
    ),
    row("BatchRMSNorm", lambda layout: nn.BatchRMSNorm(IRREPS, layout=layout), training=False),
    row(
        "BatchRMSNorm, training",
        lambda layout: nn.BatchRMSNorm(IRREPS, layout=layout),
        lacks={"torch.func": IN_PLACE},
    ),
    row("LayerNorm", lambda layout: nn.LayerNorm(IRREPS, layout=layout)),
    row("RMSNorm", lambda layout: nn.RMSNorm(IRREPS, layout=layout)),
    row("RMSNorm, over all", lambda layout: nn.RMSNorm(IRREPS, over="all", affine=False, layout=layout)),
    row("MeanSquaredNorm", lambda layout: nn.MeanSquaredNorm(IRREPS, layout=layout), "4x0e", "features"),
    row(
        "MeanSquaredNorm, batch",
        lambda layout: nn.MeanSquaredNorm(IRREPS, over="batch", scaled=False, layout=layout),
        "8x0e",
        "features",
        out_rows="one",
    ),
]
