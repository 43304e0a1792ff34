"""The machine and the source that a result was made with."""

import re
import subprocess

import pytest

from eqlayers.core import machine


def test_a_processor_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.cpu_model().strip()
    monkeypatch.setattr(machine.Path, "read_text", lambda self: "vendor_id: x\nmodel name\t: A CPU  \nmodel name: B\n")
    assert machine.cpu_model() == "A CPU"


def test_a_source_tree_has_a_commit_and_an_installed_package_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    commit = machine.source_commit()
    assert commit is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", commit)

    def fails(*args: object, **kwargs: object) -> None:
        raise subprocess.CalledProcessError(1, "git")

    monkeypatch.setattr(machine.subprocess, "run", fails)
    assert machine.source_commit() is None
