"""Lines of Python of the package: the limits may fall and not rise."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KERNELS = "kernels/eqlayers_kernels"
#: What is counted -> its folders, folders in these that are left out, and the most lines, with some hundred to spare.
LIMITS = {
    "the package without the benchmark": (("eqlayers", KERNELS), ("eqlayers/bench",), 54_600),
    "the layers and what they run on": (
        (*(f"eqlayers/{name}" for name in ("core", "irreps", "layers", "sparse", "e3nn_compat")), KERNELS),
        (),
        27_800,
    ),
}


def lines_of(folders: tuple[str, ...], without: tuple[str, ...]) -> int:
    """Lines of the Python files in folders that are not empty; comments count."""
    paths = {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")}
    texts = ((ROOT / path).read_text() for path in paths if not path.startswith(without))
    return sum(len(text.splitlines()) for text in texts)


@pytest.mark.parametrize("part", LIMITS)
def test_lines_may_not_rise(part: str) -> None:
    folders, without, most = LIMITS[part]
    lines = lines_of(folders, without)
    print(f"{part}: {lines:,} lines, at most {most:,}")
    assert lines <= most, (
        f"{part} must have at most {most:,} lines, got {lines:,}: delete what new lines make superfluous"
    )
