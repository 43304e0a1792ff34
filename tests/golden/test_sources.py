"""The kernels of the catalogue are printed as they were: no rearrangement of the package changes a source."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("triton")
from tests.golden import sources

OLD = json.loads(sources.STORED.read_text())


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_printed_kernels_are_as_they_were() -> None:
    """A change that means to print other kernels writes the list anew: `python -m tests.golden.sources --write`."""
    changed = sources.differences(OLD, {backend: sources.printed(backend) for backend in OLD})
    assert not changed, "\n".join(changed)


def test_a_changed_source_is_seen() -> None:
    assert sources.differences({"cpu": ["a", "b"]}, {"cpu": ["a", "c"]}) == ["cpu: 1 sources of 2 are gone, 1 are new"]
