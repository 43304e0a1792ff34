"""These tests run where sevenn is installed (`nox -s sevennet`), and are not collected elsewhere."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("sevenn") else ["test_*.py"]
