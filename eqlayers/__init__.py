"""O(3)-equivariant layers for PyTorch: e3nn's numbers, derivatives of every order, fast on GPUs and CPUs.

Importing the package imports none of its parts: a name is imported at its first use. `eqlayers.Calculator`,
`eqlayers.data`, `eqlayers.simulate` and `eqlayers.train` need the extra `train`, so that `__all__` leaves them out.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # for type checkers and editors; _HOMES says the same to Python
    from e3nn.o3 import Irrep, Irreps

    from . import data as data
    from . import errors, functional, integrations, models, nn, o3, optim, sparse, testing
    from . import simulate as simulate
    from . import train as train
    from .core.graph import Graph
    from .core.memory import keep_memory, release_memory
    from .integrations import accelerate, deaccelerate
    from .integrations.ase import Calculator as Calculator
    from .irreps.instructions import paths
    from .irreps.layout import to_ir_mul, to_mul_ir
    from .models import Potential, compress, decompress, load_potential, save_potential
    from .native import deploy
    from .nn import (
        ElementwiseTensorProduct,
        FullTensorProduct,
        FullyConnectedTensorProduct,
        Linear,
        SO3Scale,
        TensorProduct,
        TensorProductConv,
        TensorSquare,
        explain,
    )
    from .sparse import SparseProductInfo, SparseScaleInfo

__all__ = [
    "ElementwiseTensorProduct",
    "FullTensorProduct",
    "FullyConnectedTensorProduct",
    "Graph",
    "Irrep",
    "Irreps",
    "Linear",
    "Potential",
    "SO3Scale",
    "SparseProductInfo",
    "SparseScaleInfo",
    "TensorProduct",
    "TensorProductConv",
    "TensorSquare",
    "accelerate",
    "compress",
    "deaccelerate",
    "decompress",
    "deploy",
    "errors",
    "explain",
    "functional",
    "integrations",
    "keep_memory",
    "load_potential",
    "models",
    "nn",
    "o3",
    "optim",
    "paths",
    "release_memory",
    "save_potential",
    "sparse",
    "testing",
    "to_ir_mul",
    "to_mul_ir",
]

#: Homes of the names that are no modules of the package; others are layers, of `eqlayers.nn`.
_HOMES = {
    "e3nn.o3": ("Irrep", "Irreps"),
    "eqlayers.core.graph": ("Graph",),
    "eqlayers.integrations": ("accelerate", "deaccelerate"),
    "eqlayers.integrations.ase": ("Calculator",),
    "eqlayers.irreps.layout": ("to_ir_mul", "to_mul_ir"),
    "eqlayers.irreps.instructions": ("paths",),
    "eqlayers.core.memory": ("keep_memory", "release_memory"),
    "eqlayers.models": ("Potential", "compress", "decompress", "load_potential", "save_potential"),
    "eqlayers.native": ("deploy",),
    "eqlayers.sparse": ("SparseProductInfo", "SparseScaleInfo"),
}
_EXTRA = ("Calculator", "data", "simulate", "train")

if not TYPE_CHECKING:  # a checker would take a module with __getattr__ to have every name

    def __getattr__(name):
        """A name at its first use, or an error that says where it is."""
        import sys
        from importlib import import_module
        from importlib.util import find_spec

        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None and not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
            value = import_module(f"{__name__}.{name}")
        elif home is not None or name in __all__:
            value = getattr(import_module(home or "eqlayers.nn"), name)
        else:
            from .hints.names import no_such_name

            raise no_such_name(__name__, name, sys._getframe(1))
        globals()[name] = value
        return value

    def __dir__():
        """The public names."""
        return sorted((*__all__, *_EXTRA))
