"""The eight connection modes of a tensor product, described by the letters of their channel axes.

u are the channels of in1, v of in2, w of out; q are the pairs u < v of one multiplicity. Weight shape, fan-in,
multiplicity rule and the axes of the path all follow from the letters.
"""

from __future__ import annotations

from typing import NamedTuple

from ..core.errors import IrrepsError


class Mode(NamedTuple):
    """Channel letters of one mode."""

    name: str
    first: str
    second: str
    out: str
    weight: str
    fan: str  # the letters summed over: their extents multiply to the fan-in
    must_weight: bool  # the output has channels that only weights connect to the inputs

    @property
    def pairs(self) -> bool:
        """Whether both operands are read at the pairs u < v."""
        return "q" in self.first

    def extents(self, mul1: int, mul2: int, mul_out: int) -> dict[str, int]:
        """Length of each letter, from the multiplicities."""
        if self.pairs:
            return {"q": mul1 * (mul1 - 1) // 2, "w": mul_out}
        return {"u": mul1, "v": mul2, "w": mul_out}

    def weight_shape(self, mul1: int, mul2: int, mul_out: int) -> tuple[int, ...]:
        """e3nn's ``path_shape``."""
        extents = self.extents(mul1, mul2, mul_out)
        return tuple(extents[c] for c in self.weight)

    def fan_in(self, mul1: int, mul2: int, mul_out: int) -> int:
        """Number of products summed into one output channel."""
        extents = self.extents(mul1, mul2, mul_out)
        fan = 1
        for letter in self.fan:
            fan *= extents[letter]
        return fan

    def check(self, where: str, mul1: int, mul2: int, mul_out: int, has_weight: bool) -> None:
        """Raise unless the multiplicities obey the mode."""
        if (self.pairs or self.first == self.second) and mul1 != mul2:
            raise IrrepsError(
                f"{where}: mode {self.name!r} needs equal multiplicities of in1 and in2, got {mul1} and {mul2}. "
                f"Use 'uvw' or 'uvu', or make them equal."
            )
        if self.must_weight and not has_weight:
            raise IrrepsError(
                f"{where}: mode {self.name!r} needs has_weight=True, its weight makes the output channels, got False. "
                f"Give it a weight, or use 'uvuv' or 'uvu<v'."
            )
        extents = self.extents(mul1, mul2, mul_out)
        want = 1
        for letter in self.out:
            want *= extents[letter]
        if self.out == "w" and not has_weight:
            want = 1  # uuw without a weight sums u into one channel
        if mul_out != want:
            rule = "*".join(self.out) if self.out != "w" else "1 without a weight"
            raise IrrepsError(
                f"{where}: mode {self.name!r} needs the multiplicity {want} of out ({rule}), got {mul_out}. "
                f"Change irreps_out or the mode."
            )


#      name      in1  in2  out   weight fan   must_weight
_MODES = (
    Mode("uvw",   "u", "v", "w",  "uvw", "uv", True),
    Mode("uvu",   "u", "v", "u",  "uv",  "v",  False),
    Mode("uvv",   "u", "v", "v",  "uv",  "u",  False),
    Mode("uuw",   "u", "u", "w",  "uw",  "u",  False),
    Mode("uuu",   "u", "u", "u",  "u",   "",   False),
    Mode("uvuv",  "u", "v", "uv", "uv",  "",   False),
    Mode("uvu<v", "q", "q", "q",  "q",   "",   False),
    Mode("u<vw",  "q", "q", "w",  "qw",  "q",  True),
)  # fmt: skip

MODES: dict[str, Mode] = {mode.name: mode for mode in _MODES}
