"""Structures in memory of a fixed size: atoms and edges of a separate ghost structure fill what is left of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

#: Capacities are multiples of these, and of a 16th of the next power of two.
STEPS = {"atoms": 8, "edges": 64, "structures": 1}
#: Distance of ghost atoms that an edge connects, and length of their cell, relative to the cutoff.
GHOST_DISTANCE, GHOST_CELL = 0.9, 10.0


def capacity_of(size: int, step: int) -> int:
    """A size rounded up to a multiple of ``step``, and to four binary digits: at most an eighth more of large sizes."""
    step = max(step, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def ghosts_of(atoms: int) -> int:
    """The number of ghost atoms that unused edges connect, in memory for so many atoms: a 16th, an even number.

    Unused edges are at most an eighth, so that a ghost atom has at most twice the edges of other atoms.
    """
    return 2 * -(-max(atoms, 1) // 32)


class Ghosts:
    """Memory for structures: unused atoms are lone ones of a ghost structure, whose last atoms unused edges connect.

    The operands are ``first`` others, the tensors that ``fields`` names, and a tensor with a row for each structure.
    ``cutoff`` is in Angstrom, and ``species`` the atomic number of ghost atoms.
    """

    def __init__(self, fields: Sequence[str], first: int, cutoff: float, species: int) -> None:
        self.first, self.cutoff, self.species = first, cutoff, species
        self.index = {name: first + number for number, name in enumerate(fields)}
        self._unused: dict[tuple[int, int], Tensor] = {}  # edges of ghost atoms, by numbers of atoms and edges

    def sizes(self, operands: Sequence[Tensor]) -> dict[str, int]:
        """Numbers of atoms, edges and structures."""
        atoms, edges = (operands[self.index[name]].shape[-1] for name in ("z", "edge_index"))
        return {"atoms": atoms, "edges": edges, "structures": operands[-1].shape[0]}

    def capacity(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Numbers of atoms, edges and structures of the memory, ghosts among them."""
        numbers = {name: capacity_of(size, STEPS[name]) for name, size in sizes.items()}
        atoms = sizes["atoms"]
        while numbers["atoms"] - ghosts_of(numbers["atoms"]) < atoms:
            numbers["atoms"] = capacity_of(numbers["atoms"] + 1, STEPS["atoms"])
        return numbers | {"structures": numbers["structures"] + 1}

    def memory(self, operands: Sequence[Tensor], capacity: Mapping[str, int]) -> list[Tensor]:
        """New memory for structures, in which all atoms are ghosts."""
        atoms, edges, structures = (capacity[name] for name in ("atoms", "edges", "structures"))
        shapes = {
            "z": (atoms,),
            "pos": (atoms, 3),
            "edge_index": (2, edges),
            "batch": (atoms,),
            "cell": (structures, 3, 3),
            "shifts": (edges, 3),
        }
        padded = {name: operands[number].new_zeros(shapes[name]) for name, number in self.index.items()}
        padded["z"].fill_(self.species)
        ghosts = ghosts_of(atoms)
        padded["pos"][atoms - ghosts :: 2, 2] = GHOST_DISTANCE * self.cutoff
        padded["batch"].fill_(structures - 1)
        if "cell" in padded:
            padded["cell"].diagonal(dim1=1, dim2=2).fill_(GHOST_CELL * self.cutoff)
        if (atoms, edges) not in self._unused:
            ends = torch.arange(edges, device=padded["z"].device) % ghosts
            unused = (atoms - ghosts + torch.stack([ends ^ 1, ends])).to(padded["edge_index"].dtype)
            self._unused[atoms, edges] = unused  # from an even atom to the next, and back
        return [*operands[: self.first], *padded.values(), operands[-1].new_zeros(structures)]

    def fill(self, memory: Sequence[Tensor], operands: Sequence[Tensor]) -> None:
        """Copy structures into the memory; all else in it belongs to ghosts."""
        sizes = self.sizes(operands)
        for name, number in self.index.items():
            part = memory[number]
            part = part[:, : sizes["edges"]] if name == "edge_index" else part[: len(operands[number])]
            part.copy_(operands[number])
        padded = {name: memory[number] for name, number in self.index.items()}
        total, edges = len(padded["z"]), padded["edge_index"].shape[1]
        lone = slice(sizes["atoms"], total - ghosts_of(total))
        if lone.start < lone.stop:
            padded["batch"][lone] = len(memory[-1]) - 1
            padded["pos"][lone] = 0
        if sizes["edges"] < edges:
            unused = slice(sizes["edges"], edges)
            padded["edge_index"][:, unused].copy_(self._unused[total, edges][:, unused])
            if "shifts" in padded:
                padded["shifts"][unused] = 0
