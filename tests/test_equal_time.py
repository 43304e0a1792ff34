"""The comparison at equal time: finished points are kept, rates are chosen by validation, pages show the results."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

pytest.importorskip("lightning")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "examples" / "peers")
    import equal_time

    for name in ("equal_time", "networks"):
        monkeypatch.delitem(sys.modules, name)
    return equal_time


def result(model: str, frames: int | None, forces: float, **other: Any) -> dict[str, Any]:
    errors = {"energy": 2 * forces, "forces": forces}
    point = {"set": "ethanol_md", "frames": frames, "model": model, "seconds": 120.0, "rate": 0.01, "threads": 1}
    facts = {"steps": 1200, "failed": None, "parameters": 53072, "about": "small", "val": errors, "test": errors}
    return point | facts | other


def test_the_page_shows_the_stored_results(script: ModuleType) -> None:
    text = (ROOT / "docs" / "benchmarks" / "learning.md").read_text()
    seconds = {name: part.seconds for name, part in script.PARTS.items()}
    shown = text.partition(script.BEGIN)[2].partition(script.END)[0]
    assert shown == f"\n{script.page(script.read_results(script.RESULTS), seconds)}\n"


def test_of_several_rates_validation_chooses_and_failures_do_not_count(script: ModuleType) -> None:
    low = {"energy": 1.0, "forces": 1.0}
    results = [
        result("MACE", 50, 30.0, rate=0.01),
        result("MACE", 50, 40.0, rate=0.02, val=low),  # the better validation, not the better test
        result("MACE", 50, 5.0, rate=0.03, failed="loss not finite at step 3"),
        result("MACE", 50, 6.0, seconds=60.0, val=low),
        result("MACE", None, 7.0, val=low),
        result("MACE", None, 8.0, val=low, threads=2),
    ]
    assert script.chosen(results, 120.0, "curve") == {("ethanol_md", "MACE", 50): results[1]}
    assert script.chosen(results, 120.0, "table") == {("ethanol_md", "MACE", None): results[4]}


def test_picture_and_tables(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "benchmarks").mkdir()
    page = tmp_path / "benchmarks" / "learning.md"
    shutil.copy(ROOT / "docs" / "benchmarks" / "learning.md", page)
    before = page.read_text()
    results = [result("MACE", n, 1000 / n) for n in (50, 100)] + [result("SchNet", 100, 30.0)]
    molecules = result("SchNet", None, 0.0, set="mini_qm9 mu", test={"property": 0.25}, val={"property": 0.2})
    results += [result("MACE", None, 5.0), result("SchNet", None, 21.0), molecules]
    long = {"set": "mini_qm9 U0", "seconds": 9.0, "threads": 2, "test": {"property": 0.5}, "val": {"property": 0.4}}
    results.append(result("TFN", None, 0.0, **long))
    for _ in range(2):  # a second time replaces the first
        script.show(results, tmp_path, {"curve": 120.0, "table": 120.0, "long": 9.0})
    text = page.read_text()
    assert "| MACE | 20 | 10 |" in text
    assert "| SchNet | - | 30 |" in text
    assert "MACE of this package, small | **10** | **5** | 1,200 | 0.01 | 53,072 |" in text
    assert "SchNet of torch-geometric, small | 42 | 21 |" in text
    assert "small | **0.25** D |" in text
    assert "Trained for 9 s on 2 threads:" in text
    assert "TFN of this package, small | **0.5** meV |" in text
    assert text.partition(script.BEGIN)[0] == before.partition(script.BEGIN)[0]
    assert text.partition(script.END)[2] == before.partition(script.END)[2]
    assert (tmp_path / "images" / "ethanol_learning_curve.png").stat().st_size > 5000


def test_finished_points_are_kept_and_not_trained_again(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trained = []

    def train(point: Any, say: Any) -> dict[str, Any]:
        if len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(point)
        return point._asdict()

    path = tmp_path / "results.json"
    monkeypatch.setattr(script, "train", train)
    line = f"equal_time.py --part curve --model MACE --model NequIP --frames 50 --seconds 5 --results {path}"
    monkeypatch.setattr(sys, "argv", line.split())
    with pytest.raises(KeyboardInterrupt):
        script.main()
    assert [point.model for point in trained] == ["MACE"]
    trained[:] = []
    script.main()
    assert [point.model for point in trained] == ["NequIP"]
    kept = json.loads(path.read_text())["points"]
    assert [(point["model"], point["frames"], point["seconds"]) for point in kept] == [
        ("MACE", 50, 5.0),
        ("NequIP", 50, 5.0),
    ]
    script.main()
    assert "2 points, 0 to do" in capsys.readouterr().out


def test_every_point_has_a_model_that_learns_it(script: ModuleType) -> None:
    chosen = script.argparse.Namespace(set=None, model=None, frames=None, rate=None)
    points = [point for part in script.PARTS for point in script.points(part, None, chosen)]
    assert len(points) == len(set(points)) == 80
    assert {point.set for point in points} == set(script.SETS)
    assert sum(point.seconds for point in points) == 35 * 40 + 37 * 60 + 8 * 360


@pytest.mark.parametrize("name", ["ethanol_md", pytest.param("mini_qm9 U0", marks=pytest.mark.slow), "mini_qm9 mu"])
def test_a_point_is_trained(script: ModuleType, name: str) -> None:
    """With SchNet, which compiles nothing, and no step in the time: errors are equal to errors of a known predictor."""
    trained = script.train(script.Point(name, 50, "SchNet", 1e-9, 1e-3, 1), lambda spent: None)
    assert (trained["num_train"], trained["steps"], trained["failed"]) == (50, 0, None)
    more = script.train(script.Point(name, 50, "SchNet", 1.0, 1e-3, 1), lambda spent: None)
    assert more["steps"] > 0
    assert more["test"] != trained["test"]
    assert more["test"].keys() == {key for key, *_ in script.ERRORS[script.SETS[name].quantity]}


def test_shifts_scale_and_forces_of_another_package(script: ModuleType) -> None:
    class Springs(torch.nn.Module):
        def forward(self, batch: Any, pos: torch.Tensor) -> torch.Tensor:
            return pos.new_zeros(batch.num_graphs).index_add(0, batch.batch, pos.square().sum(1))

    batch = script.SETS["ethanol_md"].data(4.0, 50)
    batch.setup()
    batch = next(iter(batch.train_dataloader()))
    values = script.MODELS["SchNet"].make.__globals__["Peer"](Springs(), {1: -1.0, 6: -2.0, 8: -3.0}, 0.5, True)(batch)
    torch.testing.assert_close(values["forces"], -batch.pos, rtol=1e-6, atol=0)
    squares = torch.zeros(8).index_add(0, batch.batch, batch.pos.square().sum(1)).double()
    torch.testing.assert_close(values["energy"], 0.5 * squares - 13.0, rtol=1e-6, atol=0)
    zero = {"energy": torch.zeros(8, dtype=torch.float64), "forces": torch.zeros(72, 3)}
    atoms = torch.full((8,), 9.0, dtype=torch.float64)
    by_hand = batch.forces.norm(dim=1).mean() / 2 + (batch.energy.abs() / atoms / 2).mean()
    torch.testing.assert_close(script.loss_of(zero, batch, 2.0), by_hand, rtol=1e-6, atol=0)
