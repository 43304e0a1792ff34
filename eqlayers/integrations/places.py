"""Where modules sit in a model, and where else they are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import MethodType
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Place:
    """A name under which a module is registered in another; the model itself has no parent."""

    parent: nn.Module | None
    name: str
    path: str

    def put(self, module: nn.Module) -> None:
        """Register ``module`` here; containers and graph modules find it like any other."""
        assert self.parent is not None
        self.parent._modules[self.name] = module


def find_places(model: nn.Module, closed: Callable[[nn.Module], bool]) -> dict[nn.Module, list[Place]]:
    """Every module from ``model`` down to closed ones, with all its places, in the order of ``named_modules``."""
    places: dict[nn.Module, list[Place]] = {}

    def visit(module: nn.Module, place: Place) -> None:
        known = module in places
        places.setdefault(module, []).append(place)
        if known or closed(module):
            return
        for name, child in vars(module)["_modules"].items():
            if child is not None:
                visit(child, Place(module, name, f"{place.path}.{name}" if place.path else name))

    visit(model, Place(None, "", ""))
    return places


def find_aliases(modules: Iterator[tuple[str, nn.Module]], wanted: set[nn.Module]) -> dict[nn.Module, str]:
    """Attributes, outside the registered submodules, that hold one of the wanted modules or a method of it.

    Such an attribute would go on to the original, which no longer follows the model to another device or dtype.
    """
    aliases: dict[nn.Module, str] = {}
    for path, module in modules:
        for name, value in vars(module).items():
            if name in ("_modules", "_parameters", "_buffers", "_original") or "hook" in name:
                continue
            for held in _held(value, 3):
                if held in wanted and held is not module:
                    aliases.setdefault(held, f"{path}.{name}" if path else name)
    return aliases


def _held(value: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(value, nn.Module):
        yield value
    elif isinstance(value, MethodType) and isinstance(value.__self__, nn.Module):
        yield value.__self__
    elif depth and isinstance(value, partial):
        yield from _held((value.func, value.args, value.keywords), depth)
    elif depth and isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            yield from _held(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from _held(item, depth - 1)


def compiled_here(place: Place) -> bool:
    """Whether the place is in ``torch.compile(module)``, which goes on to call the module that it was given."""
    return any(c.__name__ == "OptimizedModule" for c in type(place.parent).__mro__)
