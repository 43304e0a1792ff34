"""The settings of `eqlayers bench layers`, and the limit of the machine that its times are shares of."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from eqlayers import TensorProduct
from eqlayers.bench import measure, roofline
from eqlayers.bench.layers import PAIRS
from eqlayers.bench.layers.cases import LayerCase, read_layer_suite
from eqlayers.bench.layers.run import build
from eqlayers.bench.roofline import limit, operations, peak_rate, product_operations
from eqlayers.bench.run import run_suite
from eqlayers.errors import ConfigError, EqlayersError
from eqlayers.layers.harmonics.lower import harmonics_formula

CPU = torch.device("cpu")
HARMONICS = LayerCase("a", "SphericalHarmonics", 5, options={"lmax": 3})


# ---- the limit ------------------------------------------------------------------------------------------------------


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


def test_operations_of_a_contraction_are_of_atoms_and_of_species(layer_config: Path) -> None:
    """Rows have the polynomials, species the sums of weights; both have channels."""
    (case,) = read_layer_suite(str(layer_config)).only("power/*").cases

    def count(**changes: int) -> int:
        rows = changes.pop("rows", case.rows)
        return build(replace(case, rows=rows, options={**case.options, **changes}), CPU).operations["fwd"]

    assert count(channels=4) == 2 * count()
    assert count(rows=5, elements=4) - count(rows=5) == count(elements=4) - count() > 0
    assert count(rows=5) - count(rows=4) == count(rows=4) - count() > 0


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


# ---- settings -------------------------------------------------------------------------------------------------------


def test_the_shipped_settings() -> None:
    suite = read_layer_suite()
    assert len({case.name for case in suite.cases}) == len(suite.cases)
    goals = {case.name: case.goals for case in suite.cases if case.goals}
    assert goals == {
        "harmonics/l3/E2000": {"ratio": {"fwd": 5.0, "fwd+bwd": 5.0}},
        "contraction/0e+1o-c3/N64": {"ratio": {"fwd": 100.0, "fwd+bwd": 50.0}},
    }
    degrees = {(c.options["lmax"], c.dtype) for c in suite.cases if c.layer == "SphericalHarmonics" and c.rows == 2000}
    assert degrees == {(l, dtype) for l in (1, 2, 3, 6) for dtype in ("float32", "float64")}
    catalogue = read_layer_suite("catalogue")
    assert {case.layer for case in (*suite.cases, *catalogue.cases)} == set(PAIRS)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("device: cpu", "device: gpu", "expected a device among cpu, cuda; got 'gpu'"),
        ("layer: EdgeGeometry", "layer: EdgeGeometri", "among .*; got 'EdgeGeometri'. Did you mean 'EdgeGeometry'"),
        ("    layer: SphericalHarmonics\n", "", "expected the key 'layer'|expected a key among"),
        ("rows: [4, 7]", "rows: [0]", r"rows must be a list of positive integers, got \[0\]"),
        ("lmax: [2]", "l_max: [2]", "got 'l_max'. Did you mean 'lmax'"),
        ("peers: [e3nn]\n", "peers: [einsum]\n", "expected a peer of SphericalHarmonics among e3nn, e3nn-compiled"),
        ("dtypes: [float32,", "dtypes: [float16,", "expected a dtype among float32, float64; got 'float16'"),
        ("goals: {ratio: {fwd: 100}}", "goals: {share: {fwd: 1}}", "expected a goal among ratio, memory; got 'share'"),
        ("goals: {ratio: {fwd: 100}}", "goals: {ratio: {bwd: 1}}", "must have keys among fwd, fwd"),
        ("in: 0e+1o", "in: 0e+1x", "in must be"),
    ],
)
def test_wrong_settings(old: str, new: str, message: str, layer_config: Path) -> None:
    text = layer_config.read_text()
    assert old in text
    layer_config.write_text(text.replace(old, new, 1))
    with pytest.raises(EqlayersError, match=message):
        read_layer_suite(str(layer_config))


def test_wrong_arguments(layer_config: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only must match a case of tiny, got 'x'\. The cases are small/l2/E4, "):
        read_layer_suite(str(layer_config)).only("x")
    suite = read_layer_suite(str(layer_config))
    with pytest.raises(ConfigError, match="Did you mean 'einsum'"):
        run_suite(suite, peers=["einsun"])
    with pytest.raises(ConfigError, match=r"backend must be one of .* got 'fast'"):
        run_suite(suite, backend="fast")
