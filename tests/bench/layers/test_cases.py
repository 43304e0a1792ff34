"""The settings of `eqlayers bench layers`, and what is answered where they are wrong."""

from pathlib import Path

import pytest
import torch

from eqlayers.bench.layers import PAIRS
from eqlayers.bench.layers.cases import LayerCase, read_layer_suite
from eqlayers.bench.run import run_suite
from eqlayers.errors import ConfigError, EqlayersError

CPU = torch.device("cpu")
HARMONICS = LayerCase("a", "SphericalHarmonics", 5, options={"lmax": 3})


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
    with pytest.raises(ConfigError, match=r"--only must .*got 'x'"):
        read_layer_suite(str(layer_config)).only("x")
    suite = read_layer_suite(str(layer_config))
    with pytest.raises(ConfigError, match="Did you mean 'einsum'"):
        run_suite(suite, peers=["einsun"])
    with pytest.raises(ConfigError, match=r"backend must be one of .* got 'fast'"):
        run_suite(suite, backend="fast")
