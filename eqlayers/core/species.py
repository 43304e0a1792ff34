"""Species of atoms, sorted once for all layers of a network that get equal ones.

The latest species on the host are kept, because a network gives each layer the same numbers in tensors that may differ.
On a device, where a comparison would wait, they are kept for as long as their tensor lives.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .graph import Graph
from .torch_internals import being_traced, is_plain, outside_of_func, wrapped_by_func


class Species(NamedTuple):
    """The species of atoms, sorted."""

    graph: Graph  # from species to atoms
    there: Tensor | None  # numbers of the species that occur, if the graph has these alone


class KnownSpecies(NamedTuple):
    """Species that a layer was given, a copy of them; layers of a network are given equal ones, step by step."""

    y: Tensor  # the copy, on the host
    asked: tuple[object, ...]  # what the layer asked for
    species: Species | None  # None where the layer needs them otherwise


#: The latest species on the host.
_LATEST: dict[str, KnownSpecies] = {}
#: Species on a device, whose values nothing waits for: kept while the tensor lives and its version stays.
_ON_DEVICE: MutableMapping[Tensor, tuple[tuple[object, ...], Species]] = WeakTensorKeyDictionary()


def known_species(y: Any, x: Tensor, *asked: object) -> KnownSpecies | None:
    """The latest species, if these are equal ones for the rows of x on the host; they were checked when they came."""
    latest = _LATEST.get("y")
    if latest is None or not is_plain((y, x)) or not (y.is_cpu and x.is_cpu) or y.layout is not torch.strided:
        return None
    same = y.shape[:1] == x.shape[:1] and latest.asked == (y.dtype, y.requires_grad, *asked)
    return latest if same and torch.equal(latest.y, y) else None


def keep_species(y: Tensor, count: int, sort: bool, *asked: object) -> Species | None:
    """Keep species on the host, sorted or as they are, for the next layer that asks for the same of equal ones."""
    with outside_of_func(), torch.inference_mode(False):
        copy = y.detach().clone()
        species = sort_species(copy, count) if sort else None
    _LATEST["y"] = KnownSpecies(copy, (y.dtype, y.requires_grad, *asked), species)
    return species


def species_on_device(y: Tensor, count: int) -> Species:
    """Species sorted once for all layers that get the tensor, on a device.

    Nothing is kept where the call is traced or captured: a graph sorts the species that come later.
    """
    traced = being_traced() or wrapped_by_func(y) or y.is_inference()
    if traced or (y.is_cuda and torch.cuda.is_current_stream_capturing()):  # torch.compile cannot trace the question
        return sort_species(y, count)
    stream = torch.cuda.current_stream(y.device).cuda_stream if y.is_cuda else None
    asked = y._version, y.data_ptr(), count, stream, torch.is_inference_mode_enabled()
    kept = _ON_DEVICE.get(y)
    if kept is None or kept[0] != asked:
        kept = _ON_DEVICE[y] = asked, sort_species(y, count)
    return kept[1]


def sort_species(y: Tensor, count: int) -> Species:
    """Atoms ``[N]``, or one-hot ``[N, count]``, by species; by those that occur where folding their weights is less."""
    species, there = y.long() if y.ndim == 1 else y.float().argmax(1), None
    if not is_hidden(species) and species.shape[0] < count:  # in this order: a size that is asked for is fixed
        there, species = torch.unique(species, return_inverse=True)
        count = there.shape[0]
    ends = torch.stack([species, torch.arange(species.shape[0], device=species.device)])
    return Species(Graph(ends, count, species.shape[0], copy=False), there)


def is_hidden(t: Tensor) -> bool:
    """Whether a look at values would wait for a device, or cannot be."""
    return t.device.type != "cpu" or being_traced() or wrapped_by_func(t)
