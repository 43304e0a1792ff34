"""Large pages are asked for where a result holds whole ones, and for these alone."""

import pytest

from eqlayers_kernels.c.run import memory
from tests.each import each

PAGE = 2 << 20


@each(
    "address, size, wanted",
    [
        (0, PAGE, [(0, PAGE)]), (16, 3 * PAGE, [(PAGE, 2 * PAGE)]), (PAGE - 1, PAGE + 1, [(PAGE, PAGE)]),
        (5 * PAGE + 16, 2 * PAGE - 17, []), (5 * PAGE + 16, 2 * PAGE - 16, [(6 * PAGE, PAGE)]), (64, 4096, []),
        (PAGE, 0, []),
    ],
)  # fmt: skip
def test_whole_pages_within_a_result_are_asked_for(address: int, size: int, wanted: list[tuple[int, int]]) -> None:
    asked: list[tuple[int, int]] = []

    def madvise(first: int, length: int, advice: int) -> int:
        assert advice == 14  # MADV_HUGEPAGE of Linux
        asked.append((first, length))
        return -1  # refused, which changes nothing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "_madvise", lambda: madvise)
        memory.advise_huge_pages(address, size)
        patch.setattr(memory, "_madvise", lambda: None)  # another system than Linux
        memory.advise_huge_pages(address, size)
    assert asked == wanted
