"""Warms up for a GPU that is not there. Run by test_warmup.py, in a process without Triton's interpreter."""

import json
import sys
from dataclasses import asdict

import torch

import eqlayers as eq
from eqlayers.errors import BackendError


class Network(torch.nn.Module):
    """Convolutions and harmonics that Triton's printed kernels run, and a product that they do not."""

    def __init__(self) -> None:
        super().__init__()
        paths = [(0, 0, 0, "uvu", True), (0, 1, 1, "uvu", True)]
        kind = ("4x0e", "0e + 1o", "4x0e + 4x1o", paths)
        self.harmonics = eq.nn.SphericalHarmonics("0e + 1o", normalize=True)
        self.conv = eq.TensorProductConv(*kind, shared_weights=False)
        self.loose = eq.TensorProductConv(*kind, shared_weights=False, deterministic=False)
        self.mix = eq.FullyConnectedTensorProduct("4x0e + 4x1o", "0e", "2x0e")

    def forward(self, x, r, w, edges):  # [N, 4], [E, 3], [E, 8], [2, E] -> [N, 2]
        y = self.harmonics(r)
        z = self.conv(x, y, w, edges, 3)
        return self.mix(z, torch.ones(len(z), 1)) + self.loose(x, y, w, edges, 3)[:, :2]


if __name__ == "__main__":
    network, edges = Network(), torch.tensor([[0, 1, 2], [1, 2, 0]])
    x, r, w = torch.randn(3, 4, requires_grad=True), torch.randn(3, 3), torch.randn(3, 8)
    report = eq.warmup(lambda: network(x, r, w, edges).sum().backward(), sys.argv[1:], network)
    try:
        eq.warmup(lambda: None, sys.argv[1:])
        refused = ""
    except BackendError as error:
        refused = str(error)
    json.dump({"rows": [asdict(row) for row in report.rows], "text": str(report), "refused": refused}, sys.stdout)
