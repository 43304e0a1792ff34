"""Species of atoms, sorted once for all layers of a network that are called with equal species.

The latest species on the host are cached by value, because a network may pass equal numbers in different tensors. On a
device, where a comparison would wait for the stream, they are cached for as long as their tensor lives.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from .graph import Graph
from .torch_internals import being_traced, in_fake_mode, is_plain, outside_of_func, wrapped_by_func


class Species(NamedTuple):
    """The atoms sorted by species."""

    graph: Graph  # from species to atoms
    present: Tensor | None  # the species that occur, if the graph has no others; else None


class KnownSpecies(NamedTuple):
    """The cached species of the latest call of a layer."""

    y: Tensor  # the copy, on the host
    options: tuple[object, ...]  # dtype, requires_grad and the layer's options
    species: Species | None  # None if the layer mixes species linearly


#: The latest species on the host.
_LATEST: dict[str, KnownSpecies] = {}
#: Species on a device, by tensor; valid while the version of the tensor is unchanged.
_ON_DEVICE: MutableMapping[Tensor, tuple[tuple[object, ...], Species]] = WeakTensorKeyDictionary()


def known_species(y: Any, x: Tensor, *options: object) -> KnownSpecies | None:
    """The cached species if ``y`` equals them, for rows of x on the host and equal options; else None."""
    latest = _LATEST.get("y")
    if latest is None or type(y) is not Tensor or not (y.is_cpu and x.is_cpu) or y.layout is not torch.strided:
        return None
    if not is_plain((y, x)) and (is_hidden(y) or in_fake_mode()):
        return None
    same = y.shape[:1] == x.shape[:1] and latest.options == (y.dtype, y.requires_grad, *options)
    return latest if same and torch.equal(latest.y, y) else None


def cache_species(y: Tensor, count: int, sort: bool, *options: object) -> Species | None:
    """Cache a copy of species on the host, sorted if ``sort``, for the next layer with equal species and options."""
    with outside_of_func(), torch.inference_mode(False):
        copy = y.detach().clone()
        species = sort_species(copy, count) if sort else None
    _LATEST["y"] = KnownSpecies(copy, (y.dtype, y.requires_grad, *options), species)
    return species


def species_on_device(y: Tensor, count: int) -> Species:
    """Species on a device, sorted once for all layers that are called with the same tensor.

    Nothing is cached while the call is traced or captured: the graph must sort later species.
    """
    traced = being_traced() or wrapped_by_func(y) or y.is_inference()
    if traced or (y.is_cuda and torch.cuda.is_current_stream_capturing()):  # torch.compile cannot trace the question
        return sort_species(y, count)
    stream = torch.cuda.current_stream(y.device).cuda_stream if y.is_cuda else None
    options = y._version, y.data_ptr(), count, stream, torch.is_inference_mode_enabled()
    cached = _ON_DEVICE.get(y)
    if cached is None or cached[0] != options:
        cached = _ON_DEVICE[y] = options, sort_species(y, count)
    return cached[1]


def species_of(y: Tensor, count: int) -> Species:
    """Species ``[N]`` that are integers, sorted once for all layers with equal species."""
    if is_hidden(y):
        return species_on_device(y, count)
    species = cache_species(y, count, True, count, None)
    assert species is not None
    return species


def sort_species(y: Tensor, count: int) -> Species:
    """Sort atoms by species ``[N]`` or one-hot ``[N, count]``; only by species that occur if atoms are few."""
    species, present = y.long() if y.ndim == 1 else y.float().argmax(1), None
    if not is_hidden(species) and species.shape[0] < count:  # in this order: comparing a symbolic size fixes it
        present, species = torch.unique(species, return_inverse=True)
        count = present.shape[0]
    endpoints = torch.stack([species, torch.arange(species.shape[0], device=species.device)])
    return Species(Graph(endpoints, count, species.shape[0], copy=False), present)


def is_hidden(t: Tensor) -> bool:
    """True if reading values needs a device sync or is impossible (tracing)."""
    return t.device.type != "cpu" or being_traced() or wrapped_by_func(t)
