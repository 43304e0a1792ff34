"""The command `eqlayers bench`: check layers against float64 references, time them beside peers, report goals.

Needs the extra `bench` (`pip install "eqlayers[bench]"`); `step` and `networks ours` also need `train`, for its
molecules.
"""

from __future__ import annotations

from .cases import Suite
from .products.problems import Problem, read_problems
from .products.suite import Case, read_suite
from .run import run_suite

__all__ = ["Case", "Problem", "Suite", "read_problems", "read_suite", "run_suite"]
