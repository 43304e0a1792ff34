"""Errors that no other file's tests hold: packages of an extra that are missing, wherever they are imported."""

import pytest

from tests.fresh import fresh

#: What is missing, what then is imported or called, and the extra that brings it.
MISSING = (
    ("vesin", "import eqlayers.atoms.periodic", "train"),
    ("vesin", "import eqlayers.integrations.ase", "train"),
    ("ase", "import eqlayers.integrations.ase", "train"),
    ("vesin", "import eqlayers.simulate", "train"),
    ("ase", "import eqlayers.data", "train"),
    ("torch_geometric", "import eqlayers.data", "train"),
    ("torch_geometric", "import eqlayers.integrations.torch_geometric", "train"),
    *((name, "import eqlayers.train", "train") for name in ("lightning", "rich", "torchmetrics", "jsonargparse")),
    ("matplotlib", "LAYER.visualize()", "bench"),
    ("yaml", "from eqlayers.core.files.read_write import read_yaml; read_yaml('none.yaml', 'a suite')", "bench"),
)
PARTS = ("atoms.periodic", "integrations.ase", "integrations.torch_geometric", "data", "simulate", "train")
PROBE = """
import sys
import eqlayers.models
from eqlayers.errors import MissingPackageError
from eqlayers.nn import TensorProduct

LAYER = TensorProduct("0e", "0e", "0e", [(0, 0, 0, "uuu", False)])
GONE = tuple("eqlayers." + part for part in {parts!r})
for name, code, extra in {rows!r}:
    before = dict(sys.modules)
    for loaded in [m for m in sys.modules if m.split(".")[0] == name or m.startswith(GONE)]:
        del sys.modules[loaded]
    sys.modules[name] = None
    try:
        exec(code)
    except MissingPackageError as error:
        words = f"must find the packages of the extra `{{extra}}`, got: "
        assert words in str(error), error
        assert name in str(error), error
        assert str(error).endswith(f"Install them: pip install 'eqlayers[{{extra}}]'."), error
        assert isinstance(error, ModuleNotFoundError)
        assert error.name.split(".")[0] == name, (error.name, name)
    else:
        raise AssertionError((name, code))
    finally:
        sys.modules.clear()
        sys.modules.update(before)
"""


@pytest.mark.long
def test_a_missing_package_is_named_with_its_extra() -> None:
    """In a process of its own, which imports anew with the package gone."""
    pytest.importorskip("lightning")
    done = fresh(PROBE.format(rows=MISSING, parts=PARTS))
    assert done.returncode == 0, done.stderr[-3000:]
