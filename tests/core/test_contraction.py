"""Contractions of two operands prepared once give what torch.einsum gives, for any letters and any number of rows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eqlayers.core.contraction import Contraction, contraction

SIZES = {"n": 5, "i": 2, "j": 3, "k": 4, "a": 3, "b": 2, "c": 5}
LETTERS = st.lists(st.sampled_from(sorted(SIZES)), unique=True, max_size=5).map("".join)


@st.composite
def specs(draw: st.DrawFn) -> str:
    first, second = draw(LETTERS), draw(LETTERS)
    known = sorted(set(first + second))
    out = "".join(draw(st.permutations(known)))[: draw(st.integers(0, len(known)))]
    return f"{first},{second}->{out}"


@given(specs(), st.sampled_from([0, 1, 5, 8]))
@settings(derandomize=True, database=None, deadline=None, max_examples=150)
def test_equals_einsum(spec: str, rows: int) -> None:
    sizes = SIZES | {"n": rows}
    first, second = spec.partition("->")[0].split(",")
    torch.manual_seed(2)
    x, y = (torch.randn([sizes[c] for c in letters], dtype=torch.float64) for letters in (first, second))
    want, got = torch.einsum(spec, x, y), contraction(spec, SIZES)(x, y)
    assert got.shape == want.shape
    assert torch.allclose(got, want, rtol=0, atol=1e-13)


@pytest.mark.parametrize("specs", [["nia", "nj", "ijk"], ["ijk", "nia", "njab"], ["nia", "njb", "ijk", "nab"]])
@pytest.mark.parametrize("result", ["nkb", "k", "nka", "bkn"])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_several_operands_are_contracted_two_at_a_time(specs: list[str], result: str, rows: int) -> None:
    """Letters that no operand has are left out of the result; the rows may be summed."""
    result = "".join(letter for letter in result if any(letter in spec for spec in specs))
    made = Contraction(specs, result, SIZES)
    torch.manual_seed(3)
    sizes = SIZES | {"n": rows}
    tensors = [torch.randn([sizes[letter] for letter in spec], dtype=torch.float64) for spec in specs]
    want = torch.einsum(f"{','.join(specs)}->{result}", tensors)
    torch.testing.assert_close(made(*tensors), want, rtol=0, atol=1e-12)
    assert len(made.equations) == len(specs) - 1
    assert made.operations > 0
