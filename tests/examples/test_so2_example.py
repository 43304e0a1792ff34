"""The example of convolutions in the frames of edges ends with its check passed."""

import importlib.util
import sys
from pathlib import Path

import pytest
import torch


def test_so2_convolution(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).resolve().parents[2] / "examples" / "13_so2_convolution.py"
    spec = importlib.util.spec_from_file_location("example_13", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sizes = ["--degrees", "2", "--channels", "2", "--nodes", "5", "--edges", "12"]
    monkeypatch.setattr(sys, "argv", ["example", *sizes])
    threads = torch.get_num_threads()
    try:
        module.main()
    finally:
        torch.set_num_threads(threads)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")][2:] == ["2"]
    assert lines[-1].startswith("check passed: ")
