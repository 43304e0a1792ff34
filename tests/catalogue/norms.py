"""Norms, and layers that normalise."""

from functools import partial

import torch
from e3nn import nn as theirs
from e3nn import o3

import eqlayers.nn as nn

from .cases import row

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


norm = partial(row, family="Norms", prepare=drawn, x=IRREPS)
running = partial(row, family="Norms", prepare=partial(drawn, training=False))
batch = partial(row, family="Norms", prepare=drawn)

CASES = [
    row(partial(nn.Norm, IRREPS), "8x0e", o3.Norm, family="Norms", features=IRREPS),
    running(partial(nn.BatchNorm, IRREPS), IRREPS, theirs.BatchNorm, input=IRREPS),
    batch(
        partial(nn.BatchNorm, IRREPS, normalization="norm"),
        IRREPS,
        theirs.BatchNorm,
        special="training",
        lacks={"torch.func": IN_PLACE},
        input=IRREPS,
    ),
    batch(
        partial(nn.BatchNorm, IRREPS, instance=True, include_bias=False),
        IRREPS,
        theirs.BatchNorm,
        special="instance",
        input=IRREPS,
    ),
    running(partial(nn.BatchRMSNorm, IRREPS), IRREPS, x=IRREPS),
    norm(partial(nn.BatchRMSNorm, IRREPS), IRREPS, special="training", lacks={"torch.func": IN_PLACE}),
    norm(partial(nn.LayerNorm, IRREPS), IRREPS),
    norm(partial(nn.RMSNorm, IRREPS), IRREPS),
    norm(partial(nn.RMSNorm, IRREPS, over="all", affine=False), IRREPS, special="over all"),
    batch(partial(nn.MeanSquaredNorm, IRREPS), "4x0e", features=IRREPS),
    batch(
        partial(nn.MeanSquaredNorm, IRREPS, over="batch", scaled=False),
        "8x0e",
        special="batch",
        out_rows="one",
        features=IRREPS,
    ),
]
