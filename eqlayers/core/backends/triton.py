"""Backend ``triton``: printed kernels for products, convolutions and formulas; CUDA and HIP tensors.

In a process that runs Triton's interpreter (``TRITON_INTERPRET=1``) CPU tensors are taken as well, when the backend is
named: the interpreter shows that a kernel is right, and is far too slow to be chosen by default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from eqlayers_kernels.forms.product import ProductForm
from eqlayers_kernels.triton import availability
from eqlayers_kernels.triton.print import groups
from eqlayers_kernels.triton.run.compiling import KernelError
from eqlayers_kernels.triton.run.edges import TraversalTables
from eqlayers_kernels.triton.run.forms import FormRunner
from eqlayers_kernels.triton.run.formula_run import FormulaRunner

from ..dtypes import DTYPES
from ..errors import BackendError
from ..forms.request import Request, Runner, Sizes
from .tables import by_traversal

#: Alignment in bytes of pointers in kernels with wide loads.
ALIGNMENT = 16


def refuse(request: Request) -> str | None:
    """None if Triton kernels can run the call, else the reason, a phrase that follows the backend's name."""
    device, form = request.device.type, request.form
    if device != "cuda" and not (device == "cpu" and availability.interpreted()):
        return f"needs CUDA or HIP tensors, got {device}"
    if (reason := availability.why_not()) is not None:
        return reason
    if request.dtype not in DTYPES:
        return f"needs {', '.join(str(d).removeprefix('torch.') for d in DTYPES)}, got {request.dtype}"
    return None if form is None or form.program is None else groups.why_not(form.program)


def only_named(request: Request) -> bool:
    """Whether another backend should run the call unless this backend is named: Triton's interpreter is slow."""
    return request.device.type == "cpu" or availability.interpreted()


def make_runner(request: Request) -> Runner:
    """Print the Triton kernels of a form; see :func:`eqlayers.core.backends.forms.run_form`.

    Calling the runner raises BackendError if they do not compile for the device.
    """
    reading, kernels = request.form.reading, _KERNELS[request.form.family](request)

    def run(operands: Sequence[Tensor], graph: Tensor | None, sizes: Sizes) -> Sequence[Tensor]:
        tables = None if graph is None else by_traversal(graph.contiguous(), sizes, reading)
        read = [aligned(tensor) for tensor in operands]
        try:
            return kernels(read, tables, sizes)
        except KernelError as error:
            raise BackendError(
                f"kernels of the {request.form.family} {request.key.partition('/')[0]} must compile for "
                f"{read[0].device}, with fewer registers if need be, got {error}. Pass backend='torch' to the layer, "
                f"which is slower and takes more memory, or install another release of Triton."
            ) from error

    return run


TablesOf = Mapping[str, TraversalTables] | None
Kernels = Callable[[Sequence[Tensor], TablesOf, Sizes], Sequence[Tensor]]


def _of_product(request: Request) -> Kernels:
    form: ProductForm = request.form
    task, on = form.task, availability.processor_of(request.device)
    options = not request.deterministic, form.reading
    runner = FormRunner(form.program, task, request.dtype, request.graph, form.shared, on, *options)
    read = [(pointer, task.names.index(pointer)) for pointer, _ in runner.inputs]

    def run(operands: Sequence[Tensor], tables: TablesOf, sizes: Sizes) -> list[Tensor]:
        results = runner({pointer: operands[number] for pointer, number in read}, tables)
        return [results[name] for name in task.results]

    return run


def _of_formula(request: Request) -> Kernels:
    runner = FormulaRunner(request.form, request.dtype, availability.processor_of(request.device))
    return lambda operands, tables, sizes: runner(operands, tables, sizes[0], sizes[1:3])


_KERNELS: dict[str, Callable[[Request], Kernels]] = {"product": _of_product, "formula": _of_formula}


def aligned(tensor: Tensor) -> Tensor:
    """Contiguous rows at a 16-byte aligned address, so that slices use the same compiled kernels."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()
