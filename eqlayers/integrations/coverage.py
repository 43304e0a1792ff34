"""The share of a model's modules and parameters in layers that are known, and where the others are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.parameter import is_lazy

#: Kinds of module that the sentence names.
NAMED = 3


@dataclass(frozen=True)
class Coverage:
    """The part of a model that :func:`accelerate` knows, replaced or not; ``str`` gives one sentence.

    A module or parameter that is held in several places count once. What is inside of an e3nn layer (its generated
    code) or of TorchScript count as part of it.

    Attributes:
        modules, known_modules: Number of modules, and of those among them that are layers of e3nn or of eqlayers.
        parameters, known_parameters: Number of elements of all parameters, and of those in such layers.
        elsewhere: The other parameters: class of the module that holds them, and their number; most first.
    """

    modules: int
    known_modules: int
    parameters: int
    known_parameters: int
    elsewhere: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        text = (
            f"{self.known_modules:,} of {self.modules:,} modules and {self.known_parameters:,} of "
            f"{self.parameters:,} parameters are in layers that eqlayers knows"
        )
        if not self.known_modules:
            text = f"no layer of e3nn was found: {text}"
        if self.elsewhere:
            named = [f"{kind} ({numel:,})" for kind, numel in self.elsewhere[:NAMED]]
            text += f"; the other parameters are in {', '.join(named)}"
        if rest := self.elsewhere[NAMED:]:
            text += f" and {len(rest)} more kinds of module ({sum(numel for _, numel in rest):,})"
        return text


def cover(
    modules: Iterable[nn.Module], closed: Callable[[nn.Module], bool], known: Callable[[nn.Module], bool]
) -> Coverage:
    """Count modules and parameters; closed modules count with all that is inside."""
    seen: set[nn.Parameter] = set()
    count = {True: 0, False: 0}
    numel = {True: 0, False: 0}
    elsewhere: Counter[str] = Counter()
    for module in modules:
        here = known(module)
        count[here] += 1
        parameters = [p for p in module.parameters(recurse=closed(module)) if p not in seen and not is_lazy(p)]
        seen.update(parameters)
        size = sum(p.numel() for p in parameters)
        numel[here] += size
        if size and not here:
            elsewhere[_name(module)] += size
    return Coverage(sum(count.values()), count[True], sum(numel.values()), numel[True], tuple(elsewhere.most_common()))


def _name(module: nn.Module) -> str:
    """The class as one imports it."""
    if isinstance(module, torch.jit.ScriptModule):
        return f"{getattr(module, 'original_name', type(module).__name__)} in TorchScript"
    kind = type(module)
    home = "torch.nn" if kind.__module__.startswith("torch.nn.modules.") else kind.__module__
    return f"{home}.{kind.__qualname__}"
