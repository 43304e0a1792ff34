"""Commands beside e3nn 0.4, which mace-torch needs, and which reads a file that torch.load refuses since torch 2.6."""

import sys
import warnings
from pathlib import Path

import pytest
import torch

from eqlayers.cli.main import import_old_e3nn, main
from eqlayers.integrations import mace


@pytest.fixture
def old_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package that reads a file with slices as e3nn 0.4.4 does."""
    home = tmp_path / "old_package"
    (home / "o3").mkdir(parents=True)
    torch.save([torch.ones(2), slice(0, 3)], home / "o3" / "constants.pt")
    (home / "__init__.py").touch()
    (home / "o3" / "__init__.py").write_text(
        "import pathlib, torch\nfound = torch.load(pathlib.Path(__file__).with_name('constants.pt'))\n"
    )
    (tmp_path / "old_package-0.4.4.dist-info").mkdir()
    (tmp_path / "old_package-0.4.4.dist-info" / "METADATA").write_text("Name: old_package\nVersion: 0.4.4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "old_package", raising=False)
    monkeypatch.delitem(sys.modules, "old_package.o3", raising=False)
    return home.name


@pytest.mark.parametrize("variable", [None, "1"])
def test_commands_need_no_variable_for_an_old_e3nn(
    variable: str | None, old_package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no warning appears where it is set: warnings are errors here."""
    name = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
    monkeypatch.delenv(name, raising=False) if variable is None else monkeypatch.setenv(name, variable)
    allowed = set(torch.serialization.get_safe_globals())
    import_old_e3nn(old_package)
    assert sys.modules["old_package.o3"].found[1] == slice(0, 3)
    assert set(torch.serialization.get_safe_globals()) == allowed, "allowed for this file alone"
    import_old_e3nn("no_such_package")


def test_a_newer_e3nn_is_not_imported_early(old_package: str, tmp_path: Path) -> None:
    (tmp_path / "old_package-0.4.4.dist-info").rename(tmp_path / "old_package-0.6.0.dist-info")
    (tmp_path / "old_package-0.6.0.dist-info" / "METADATA").write_text("Name: old_package\nVersion: 0.6.0\n")
    import_old_e3nn(old_package)
    assert "old_package" not in sys.modules


def test_warnings_of_mace_about_its_own_files_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(args: list[str]) -> int:
        warnings.warn("Environment variable TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD detected, since the", stacklevel=1)
        warnings.warn("another one", stacklevel=1)
        return 0

    monkeypatch.setattr(mace, "run", run)
    with pytest.warns(UserWarning, match="another one") as seen:
        assert main(["mace", "train"]) == 0
    assert len(seen) == 1
