"""The limit of the machine that times are shares of: bytes, sums and products, and the peak of multiply-adds."""

from dataclasses import replace

import pytest
import torch

from eqlayers import TensorProduct
from eqlayers.bench import measure, roofline
from eqlayers.bench.layers.cases import LayerCase, read_layer_suite
from eqlayers.bench.layers.run import build
from eqlayers.bench.roofline import limit, operations, peak_rate, product_operations
from eqlayers.bench.run import run_suite
from eqlayers.layers.harmonics.lower import harmonics_formula

CPU = torch.device("cpu")
HARMONICS = LayerCase("a", "SphericalHarmonics", 5, options={"lmax": 3})


def test_what_takes_longer_binds() -> None:
    assert limit(100, 10, 10, 100) == (10.0, "bytes")
    assert limit(10, 1000, 10, 100) == (10.0, "operations")
    assert limit(10, 1000, 10, None) == (1.0, "bytes")


def test_operations_are_those_of_the_formulas() -> None:
    base = harmonics_formula((0, 1), False, "component")  # sqrt(3) times x, y, z, and 1
    # three products for the gradient g of a force, and three for what a gradient of that force is by g
    assert operations(base, [True], [False], [True]) == {"fwd": 3, "fwd+bwd": 6, "fwd+double": 9}
    counts = build(HARMONICS, CPU).operations
    assert counts["fwd"] < counts["fwd+bwd"] < counts["fwd+double"]
    assert build(replace(HARMONICS, rows=10), CPU).operations == {d: 2 * n for d, n in counts.items()}


def test_operations_of_products_are_of_channels_and_of_weights() -> None:
    def count(out: str, mode: str, weight: bool = True) -> tuple[int, ...]:
        layer = TensorProduct("4x1o", "1o", out, [(0, 0, 0, mode, weight)], internal_weights=False)
        return tuple(product_operations(layer.plan.form.program).values())

    apply, scale, mix = 2 * 3 * 4, 1 * 4, 2 * 1 * 4 * 8  # three pairs of components in four channels, to eight
    assert count("4x0e", "uvu", weight=False) == (apply, 2 * apply, 5 * apply)
    assert count("4x0e", "uvu") == (apply + scale, 2 * apply + 5 * scale, 5 * apply + 12 * scale)
    assert count("8x0e", "uvw") == (apply + mix, 3 * apply + 2 * mix, 7 * apply + 5 * mix)


def test_bytes_are_those_of_operands_and_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(measure.COPY_BYTES, "cpu", 2**20)
    suite = replace(read_layer_suite(), cases=(replace(HARMONICS, runs=1),))
    limits = run_suite(suite, peers=[])["cases"][0]["limits"]
    x, z = 5 * 3 * 4, 5 * 16 * 4
    assert limits["fwd"]["bytes"] == x + z
    assert limits["fwd+bwd"]["bytes"] == x + z + z + x
    assert limits["fwd+double"]["bytes"] == x + z + z + x + x + x + z


def test_the_peak_is_of_independent_multiply_adds() -> None:
    source = roofline.peak_source("float32")
    assert all(f"a{i} = a{i} * f + t;" in source for i in range(roofline.CHAINS))
    rates = {dtype: peak_rate(dtype, runs=3) for dtype in ("float32", "float64")}
    for rate in rates.values():
        assert rate is None or 1e9 < rate["median"] < 1e12


def test_no_peak_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roofline.compiler, "why_not", lambda: "needs a C compiler")
    assert peak_rate("float32") is None


def test_no_peak_of_types_that_kernels_do_not_compute_in() -> None:
    assert peak_rate("bfloat16") is None
