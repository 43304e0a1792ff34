"""A block of equivariant attention over ethanol: what it gives, how it turns, and what an atom does that leaves.

    python examples/15_attention.py

Weights of edges are a softmax over neighbours with the envelope within the sums, so they are smooth at the cutoff, even
for the last neighbour of an atom; a softmax without it jumps there. Five seconds.
"""

import numpy as np
import torch

import eqlayers as eq
from eqlayers.data.embedded import embedded_trajectory
from eqlayers.nn import BesselBasis, EdgeGeometry, EquivariantAttention, PolynomialCutoff
from eqlayers.testing import random_orthogonal

CUTOFF = 3.0
IRREPS, HARMONICS = "8x0e + 8x1o + 4x2e", "0e + 1o + 2e"


class Block(torch.nn.Module):
    """From elements and positions to features of atoms: an embedding, then one step of attention."""

    def __init__(self, logits: str) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)
        self.geometry, self.basis, self.envelope = (
            EdgeGeometry(HARMONICS),
            BesselBasis(8, CUTOFF),
            PolynomialCutoff(CUTOFF),
        )
        self.attention = EquivariantAttention("8x0e", HARMONICS, IRREPS, 8, 4, logits, layout="mul_ir")

    def forward(self, z: torch.Tensor, pos: torch.Tensor, enveloped: bool = True) -> torch.Tensor:
        """``[A]`` and ``[A, 3]`` Angstrom to ``[A, 52]``."""
        near = torch.cdist(pos, pos).detach() < CUTOFF
        graph = eq.Graph(near.fill_diagonal_(False).nonzero().T, len(z))
        edges = self.geometry(pos, graph)
        f = self.envelope(edges.lengths) if enveloped else None
        return self.attention(self.embedding(z), edges.harmonics, self.basis(edges.lengths), graph, f)


def leaving(block: Block, z: torch.Tensor, pos: torch.Tensor, r: float, enveloped: bool) -> torch.Tensor:
    """Features when the last atom is so far from the outermost of the others, along x."""
    others = pos[:-1]
    away = others[others[:, 0].argmax()] + r * pos.new_tensor([1.0, 0.0, 0.0])
    return block(z, torch.cat([others, away[None]]), enveloped)


def main() -> None:
    with np.load(embedded_trajectory("ethanol_md")) as frames:
        z, pos = torch.from_numpy(frames["z"]).long(), torch.from_numpy(frames["R"][0]).double()
    worst = 0.0
    for logits in ("dot", "mlp"):
        torch.manual_seed(0)
        block = Block(logits).double()
        features = block(z, pos).detach()
        matrix = random_orthogonal(1, determinant=-1)  # a rotation times the inversion
        turned = block(z, pos @ matrix.T).detach()
        residual = (turned - eq.nn.RotateFeatures(IRREPS)(features, matrix)).abs().max().item()
        print(f"{logits}: features {list(features.shape)}, equivariance {residual:.1e}")

        # The last atom leaves its nearest neighbour: how much do features change at the cutoff?
        jumps = []
        for enveloped in (True, False):
            before, after = (leaving(block, z, pos, CUTOFF + step, enveloped) for step in (-1e-4, 1e-4))
            jumps.append((before - after).detach().abs().max().item())
        print(f"  at the cutoff: {jumps[0]:.1e} with the envelope in the softmax, {jumps[1]:.1e} without")
        worst = max(worst, residual, jumps[0])
    if not worst < 1e-9:
        raise SystemExit(f"check failed: {worst:.1e} is no rounding error")
    print("check passed: features turn with the molecule, and nothing jumps at the cutoff")


if __name__ == "__main__":
    main()
