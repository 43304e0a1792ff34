"""A plugin of pytest that prints the CPU seconds of all tests, and of the most expensive ones.

Time on the clock depends on what else the machine does; CPU seconds of a test and its child processes hardly do.
"""

from collections import defaultdict
from collections.abc import Iterator
from time import process_time
from typing import Any

import pytest

#: Share of the tests that counts as the most expensive; `--durations N` lists N of these.
EXPENSIVE = 0.06


def _cpu_seconds() -> float:
    """CPU seconds of this process and of its child processes that have ended."""
    try:
        import resource
    except ImportError:  # Windows
        return process_time()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process_time() + children.ru_utime + children.ru_stime


class CpuSeconds:
    """CPU seconds by test; a worker of pytest-xdist sends them inside its reports."""

    def __init__(self) -> None:
        self.reported = 0.0
        self.imports = 0.0  # and collection: of all processes in the one that prints
        self.seconds: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self.imports = self.reported = _cpu_seconds()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Iterator[None]:
        report: Any = yield
        now = _cpu_seconds()
        report.cpu_seconds, self.reported = now - self.reported, now
        return report

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.imports += getattr(node, "workeroutput", {}).get("cpu_imports", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_imports"] = self.imports

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += getattr(report, "cpu_seconds", 0.0)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        ordered = sorted(self.seconds.items(), key=lambda item: -item[1])
        if not ordered:
            return
        total = sum(self.seconds.values())
        expensive = ordered[: max(1, round(EXPENSIVE * len(ordered)))]
        share = sum(seconds for _, seconds in expensive) / total if total else 0.0
        terminalreporter.write_line(
            f"CPU seconds: {total:,.0f} in {len(ordered):,} tests, {len(expensive)} of which have {share:.0%}; "
            f"{self.imports:,.0f} in imports and collection"
        )
        for name, seconds in expensive[: config.getoption("durations") or 0]:
            terminalreporter.write_line(f"{seconds:8.2f} s  {name}")
