"""Many values in one test: cheap cases of one fact, each of which is a subtest that fails by itself."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch

from eqlayers.errors import ConfigError

Test = Callable[..., None]


#: Seeds all random numbers of torch, which for each kind of device that is not there would format the stack of calls.
seeded = torch.manual_seed if torch.cuda.is_available() else torch.default_generator.manual_seed


def label(value: Any) -> str:
    """A short name of a value, for the report of a failure."""
    return str(getattr(value, "__name__", value))[:80]


def each(names: str, values: Iterable[Any], ids: Callable[[Any], Any] = label) -> Callable[[Test], Test]:
    """Run one test with every value of a parameter. The report lists the values that fail.

    Fixtures are made once for all values, but for the seed of random numbers, which is set before each. A test that
    needs a fresh fixture for each value keeps ``pytest.mark.parametrize``.

    Args:
        names: Arguments of the test, with commas between them.
        values: One value for each run, or one tuple if there are several names.
        ids: The label of a value in the report.
    """
    arguments = [name.strip() for name in names.split(",")]
    rows = list(values)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def run(subtests: pytest.Subtests, **fixtures: Any) -> None:
            if "subtests" in inspect.signature(test).parameters:
                fixtures["subtests"] = subtests
            for row in rows:
                values = dict(zip(arguments, row, strict=True)) if len(arguments) > 1 else {arguments[0]: row}
                with subtests.test(ids(row)):
                    seeded(0)
                    test(**fixtures, **values)

        signature = inspect.signature(test)
        kept = [one for one in signature.parameters.values() if one.name not in (*arguments, "subtests")]
        fixture = inspect.Parameter("subtests", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        run.__signature__ = signature.replace(parameters=[*kept, fixture])  # type: ignore[attr-defined]
        return run

    return decorate


def refused(
    names: str, rows: Iterable[Any], call: Callable[..., Any] = lambda call: call(), error: Any = ConfigError
) -> Test:
    """A test of calls that raise an error.

    Args:
        names: Of the values in a row, with commas between them: among them ``message``, a pattern, and ``error`` if
            rows have errors of their own. The call takes the others.
        rows: One tuple for each call.
        call: By default the function in the row.
        error: Of rows without.
    """
    arguments = [name.strip() for name in names.split(",")]

    @each("row", rows)
    def test(row: tuple[Any, ...]) -> None:
        values = dict(zip(arguments, row, strict=True))
        with pytest.raises(values.pop("error", error), match=values.pop("message")):
            call(*values.values())

    return test
