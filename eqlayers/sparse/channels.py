"""Channel specs: the einsum over the dense axes of a sparse product, and the specs of its gradients.

A spec is written ``"u,uv->v"``: the channel axes of operand 1, of operand 2 and of the result. A product is linear in
both operands, so the spec of a gradient is a rotation of these three.
"""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from ..core.errors import ConfigError

_FORM = re.compile(r"([a-z]*),([a-z]*)->([a-z]*)")


class Channels(NamedTuple):
    """A parsed channel spec: the letters of operand 1, operand 2 and the result."""

    first: str
    second: str
    out: str

    def __str__(self) -> str:
        return f"{self.first},{self.second}->{self.out}"

    def rotate_to_first(self) -> Channels:
        """Spec of the gradient of operand 1, ``gx = y . gz``."""
        return Channels(self.second, self.out, self.first)

    def rotate_to_second(self) -> Channels:
        """Spec of the gradient of operand 2, ``gy = gz . x``."""
        return Channels(self.out, self.first, self.second)

    def canonical(self) -> Channels:
        """Rename the letters of a spec to a, b, c, ... in order of appearance (out counts last)."""
        return _canonical(self)


@cache
def _canonical(channels: Channels) -> Channels:
    names: dict[str, str] = {}
    for letter in "".join(channels):
        names.setdefault(letter, chr(ord("a") + len(names)))
    return Channels(*("".join(names[c] for c in part) for part in channels))


@cache
def parse(spec: str) -> Channels:
    """Read a channel spec such as ``"u,v->uv"``; ConfigError for repeated letters and letters of one operand only.

    Example:
        >>> parse("u,uv->v").rotate_to_first()
        Channels(first='uv', second='v', out='u')
    """
    match = _FORM.fullmatch(spec.replace(" ", ""))
    if match is None:
        raise ConfigError(
            f"channels must read like 'u,uv->v' with lower-case letters, got {spec!r}. Write one such spec."
        )
    channels = Channels(*match.groups())
    for part in channels:
        if len(set(part)) != len(part):
            raise ConfigError(
                f"channels must not repeat a letter within one operand, got {part!r} in {spec!r}. "
                f"Take the diagonal before the product."
            )
    for letter in sorted(set("".join(channels))):
        if sum(letter in part for part in channels) < 2:
            raise ConfigError(
                f"every letter of channels must occur in at least two of operands and result, got {letter!r} once in "
                f"{spec!r}. Sum or expand that axis outside the product."
            )
    return channels


class Sides(NamedTuple):
    """A named product that equals a spec after transposing the flagged ones of (operand 1, operand 2, result)."""

    op: str
    transposed: tuple[bool, bool, bool]


def lookup(channels: Channels, names: dict[str, str]) -> Sides | None:
    """The product among ``names`` (name -> spec) that equals ``channels`` up to transposed matrices, or None."""
    canonical = channels.canonical()
    for op, spec in names.items():
        for flips in _FLIPS:
            flipped = Channels(*(p[::-1] if f and len(p) == 2 else p for p, f in zip(parse(spec), flips, strict=True)))
            real = tuple(f and len(p) == 2 for p, f in zip(canonical, flips, strict=True))
            if flipped.canonical() == canonical and real == flips:
                return Sides(op, flips)
    return None


_FLIPS = tuple((a, b, c) for c in (False, True) for b in (False, True) for a in (False, True))
