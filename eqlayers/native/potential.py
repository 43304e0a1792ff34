"""Native programs of potentials in Python: files that `deploy` wrote, called like the potentials that they are of."""

from __future__ import annotations

import _ctypes
import ctypes
import os
import platform
import struct
import tempfile
import threading
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from ..atoms.elements import symbols_of
from ..core.checks import check_choice, check_items, check_path, check_tensor, check_type
from ..core.errors import ConfigError, DataError, DTypeError, IndexRangeError, OutOfMemoryError, ShapeError
from ..models.potential import check_volume
from ..models.properties import pooled
from ..models.structures import Structures
from .files import FOOTER, MAGIC, VERSION, deploy

if TYPE_CHECKING:
    from ..models import Potential

#: Status of eqlayers.h -> class of error.
ERRORS = {1: OutOfMemoryError, 2: IndexRangeError, 3: IndexRangeError, 10: ShapeError, 11: IndexRangeError}
#: The processor of a library, and where its table of sections begins; bytes of a section; their number.
ELF = struct.Struct("<18xH20xQ10xHH")
#: Processor -> its number in a library.
MACHINES = {"x86_64": 62, "aarch64": 183}
OUTPUTS = ("energy", "energies", "forces", "virials", "stress")


class NativePotential:
    """A potential as a native program, from a file that :func:`eqlayers.deploy` wrote.

    It is called like a :class:`eqlayers.models.Potential` of the energy; results have no gradients. Several threads may
    call one. To open a file runs its code: open files of people that you trust.

    Args:
        path: Of the file.

    Attributes:
        species: Atomic numbers, ascending. cutoff: Angstrom. dtype: Of positions and forces.

    Raises:
        DataError: The file cannot be read, is no potential or was changed, or is of another version or processor.

    Example:
        >>> import tempfile
        >>> from eqlayers import deploy
        >>> from eqlayers.models import NequIP, Potential
        >>> potential = Potential(NequIP([1], hidden="4x0e + 4x1o", lmax=1, layers=1), species=[1]).eval()
        >>> native = NativePotential(deploy(potential, f"{tempfile.mkdtemp()}/hydrogen.so").path)
        >>> pair = Structures(torch.tensor([1, 1]), torch.eye(2, 3), torch.tensor([[0, 1], [1, 0]]))
        >>> torch.allclose(native(pair)["forces"], potential(pair)["forces"])
        True
    """

    properties = ("energy",)
    training = False
    device = torch.device("cpu")
    _content: bytes | None = None  # of a program without a file

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(check_path("path", path, "the path of a file that deploy wrote")).resolve()
        self.split = SimpleNamespace(tensors=())  # as of potentials of other properties
        self._library = _loaded(self.path, library_of(self.path))
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self._library, f"eqlayers_{name}")
            function.restype, function.argtypes = result, arguments
        self._open = _Open(self._library)
        self._handle = self._open.handle
        status = self._library.eqlayers_open(os.fsencode(self.path), ctypes.byref(self._handle))
        if status:
            self._raise(status)
        self.cutoff: float = self._library.eqlayers_cutoff(self._handle)
        self.dtype = torch.float32 if self._library.eqlayers_bytes(self._handle) == 4 else torch.float64
        numbers = ctypes.POINTER(ctypes.c_int64)()
        count = self._library.eqlayers_species(self._handle, ctypes.byref(numbers))
        self.species = tuple(numbers[n] for n in range(count))
        self._workspaces = threading.local()

    def __repr__(self) -> str:
        species = symbols_of(self.species)
        return f"NativePotential({self.path.name!r}, species {species}, cutoff {self.cutoff:g} A, {self.dtype})"

    def __deepcopy__(self, _: Any) -> NativePotential:
        return self  # which nothing changes

    def __reduce__(self) -> Any:
        return (NativePotential, (self.path,)) if self._content is None else (_of_content, (self._content,))

    def __del__(self) -> None:
        if opened := getattr(self, "_open", None):
            opened.use(-1)

    is_compiled = True

    def compile(self, *_: Any, **__: Any) -> None:
        """Do nothing: a program is compiled."""

    def _raise(self, status: int) -> NoReturn:
        sentence = self._library.eqlayers_sentence(status).decode()
        raise ERRORS.get(status, DataError)(f"{sentence}, got otherwise for {self.path}.")

    def evaluate(
        self, z: Tensor, vectors: Tensor, edge_index: Tensor, factors: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Energies of atoms ``[A]`` float64 in eV, and slopes ``[E, 3]``, derivatives of their sum by the vectors.

        Args:
            z: ``[A]`` int64 atomic numbers.
            vectors: ``[E, 3]`` Angstrom, from senders to receivers.
            edge_index: ``[2, E]`` int64, each pair in both directions.
            factors: ``[A]`` of the energies in the sum that slopes are derivatives of; None for ones.

        Raises:
            ShapeError, DTypeError, IndexRangeError: Tensors of other shapes or dtypes, unknown species, or ends of
                edges that are no atoms.
        """
        operands = {"z": (z, torch.int64), "vectors": (vectors, self.dtype), "edge_index": (edge_index, torch.int64)}
        operands |= {} if factors is None else {"factors": (factors, self.dtype)}
        for name, (t, dtype) in operands.items():
            if check_tensor(name, t, "of a structure").dtype != dtype or t.device.type != "cpu":
                raise DTypeError(f"{name} must be {dtype} on the CPU, got {t.dtype} on {t.device}. Convert it.")
        atoms, edges = len(z), edge_index.shape[-1]
        shapes = [list(t.shape) for t, _ in operands.values()]
        if shapes != [[atoms], [edges, 3], [2, edges], [atoms]][: len(shapes)]:
            raise ShapeError(
                f"z, vectors, edge_index and factors must be [A], [E, 3], [2, E] and [A], got {shapes}. Take all from "
                "one neighbour list."
            )
        energies, slopes = torch.empty(atoms, dtype=torch.float64), torch.empty(edges, 3, dtype=self.dtype)
        inputs = [t.detach().contiguous() for t, _ in operands.values()]
        pointers = [t.data_ptr() for t in (*inputs, energies, slopes)]
        pointers[3:3] = [0] * (factors is None)
        workspace = self._workspace().handle
        status = self._library.eqlayers_evaluate(self._handle, workspace, atoms, edges, *pointers)
        if status:
            self._raise(status)
        return energies, slopes

    def _workspace(self) -> _Workspace:
        """Memory of this thread, for torch's number of threads."""
        count, known = torch.get_num_threads(), getattr(self._workspaces, "last", None)
        if known is None or known.threads != count:
            known = self._workspaces.last = _Workspace(self._open, count)
            if not known.handle:
                self._raise(1)
        return known

    def __call__(
        self, structures: Structures, outputs: Iterable[str] | None = None, create_graph: bool | None = None
    ) -> dict[str, Tensor]:
        """Energies and their derivatives, with shapes and units of :meth:`eqlayers.models.Potential.forward`.

        Raises:
            ConfigError: An unknown output, or derivatives that can be differentiated (``create_graph``).
            ShapeError, DTypeError, IndexRangeError: As of a potential.
        """
        if create_graph:
            raise ConfigError("create_graph must be false for a native program, got True. Use the potential itself.")
        fix = "Make them: Structures(z, pos, edge_index), or collate(potential, atoms, neighbors)."
        checked = check_type("structures", structures, Structures, "Structures", fix).checked(self.dtype)
        listed = ("energy", "forces") if outputs is None else outputs
        wanted = [
            check_choice("outputs", name, OUTPUTS) for name in check_items("outputs", listed, "names", "Pass two.")
        ]
        if "stress" in wanted:
            check_volume(checked)
        src, dst = checked.edge_index.long()
        batch = checked.batch
        assert batch is not None
        if len(src) and not 0 <= int(checked.edge_index.min()) <= int(checked.edge_index.max()) < len(checked.z):
            self._raise(2)
        with torch.no_grad():
            vectors = checked.pos[dst] - checked.pos[src]
            if checked.shifts is not None and checked.cell is not None:
                shifts = checked.shifts.to(vectors.dtype)
                vectors = vectors + torch.bmm(shifts[:, None], checked.cell[batch[dst]])[:, 0]
            energies, slopes = self.evaluate(checked.z, vectors, torch.stack([src, dst]))
            results = {"energy": pooled(energies, batch, checked.num_graphs), "energies": energies}
            results["forces"] = (
                torch.zeros_like(checked.pos).index_add_(0, src, slopes).index_add_(0, dst, slopes, alpha=-1)
            )
            if "virials" in wanted or "stress" in wanted:
                products = -vectors[:, :, None] * slopes[:, None, :]
                virials = vectors.new_zeros(checked.num_graphs, 3, 3).index_add_(0, batch[dst], products)
                results["virials"] = virials = 0.5 * (virials + virials.mT)
                if "stress" in wanted and checked.cell is not None:
                    volume = torch.linalg.det(checked.cell).abs()[:, None, None]
                    results["stress"] = torch.where(volume > 0, -virials / volume, torch.nan)
        return {name: value for name, value in results.items() if name in wanted or name == "energy"}


def as_native(potential: Potential | NativePotential) -> NativePotential:
    """A potential as a native program for this process, without a file; errors as of :func:`eqlayers.deploy`.

    Example:
        >>> from eqlayers.models import NequIP, Potential
        >>> as_native(Potential(NequIP([1], hidden="4x0e + 4x1o", lmax=1, layers=1), species=[1])).species
        (1,)
    """
    if isinstance(potential, NativePotential):
        return potential
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:
        return _of_content(deploy(potential, Path(folder, "potential.so")).path.read_bytes())


def _of_content(content: bytes) -> NativePotential:
    """A native program without a file, from the bytes of one."""
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:
        file = Path(folder, "potential.so")
        file.write_bytes(content)
        native = NativePotential(file)
    native._content = content
    return native


class _Open:
    """A library and its potential, closed when no potential and no workspace uses it, in whatever order they end."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library, self.handle, self.users, self.lock = library, ctypes.c_void_p(), 1, threading.Lock()

    def use(self, more: int) -> None:
        """Count users; the last one closes."""
        with self.lock:
            self.users += more
            if not self.users:
                self.library.eqlayers_close(self.handle)
                _ctypes.dlclose(self.library._handle)  # ctypes keeps libraries for ever


class _Workspace:
    """Memory of calls of a potential that follow one another."""

    def __init__(self, potential: _Open, threads: int) -> None:
        self.potential, self.threads, self.handle = potential, threads, ctypes.c_void_p()
        potential.use(1)
        potential.library.eqlayers_workspace_new(potential.handle, threads, ctypes.byref(self.handle))

    def __del__(self) -> None:
        self.potential.library.eqlayers_workspace_free(self.handle)
        self.potential.use(-1)


_P, _I = ctypes.c_void_p, ctypes.c_int64
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "open": (ctypes.c_int, [ctypes.c_char_p, _P]),
    "close": (None, [_P]),
    "sentence": (ctypes.c_char_p, [ctypes.c_int]),
    "cutoff": (ctypes.c_double, [_P]),
    "bytes": (ctypes.c_int, [_P]),
    "species": (ctypes.c_int, [_P, _P]),
    "workspace_new": (ctypes.c_int, [_P, ctypes.c_int, _P]),
    "workspace_free": (None, [_P]),
    "workspace_bytes": (_I, [_P]),
    "evaluate": (ctypes.c_int, [_P, _P, _I, _I, *[_P] * 6]),
    "stages": (ctypes.c_int, [_P]),
    "exchange": (ctypes.c_int, [_P, ctypes.c_int, _P, _P]),
    "stage": (ctypes.c_int, [_P, _P, ctypes.c_int, _I, _I, _I, *[_P] * 7]),
}


def _loaded(path: Path, library: bytes) -> ctypes.CDLL:
    """A library from a copy: under the name of the file, an older library might be loaded already."""
    with tempfile.TemporaryDirectory(prefix="eqlayers-") as folder:
        copy = Path(folder, "potential.so")
        copy.write_bytes(library)
        try:
            return ctypes.CDLL(str(copy))
        except OSError as error:
            raise DataError(f"{path} must have been compiled for this system, got: {error}. Deploy it here.") from error


def library_of(path: Path) -> bytes:
    """The library in a file; DataError unless the file is a whole program of this version and processor."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} must be a readable file, got: {error}. Write it with deploy.") from error
    facts, sum_ = content[-FOOTER.size - 4 : -4], content[-4:]
    if len(facts) != FOOTER.size or FOOTER.unpack(facts)[0] != MAGIC:
        raise DataError(f"{path} must be a program that deploy wrote, got another file. Write it with deploy.")
    if struct.unpack("<I", sum_)[0] != zlib.crc32(content[:-4]):
        raise DataError(f"{path} must be a program as deploy wrote it, got a file that was changed. Write it again.")
    _, version, _, needed, _, size, start, *_ = FOOTER.unpack(facts)
    if version != VERSION:
        raise DataError(f"{path} must be of version {VERSION}, got {version}. Write it again with deploy.")
    library = content[: max(size, 0)]
    sections, length, count = ELF.unpack_from(library)[1:] if 64 <= size <= start <= len(content) else (size, 1, 1)
    if sections + length * count > size:  # the loader would read them
        raise DataError(f"{path} must have a whole library, got facts of another file. Write it again with deploy.")
    _check_processor(path, library, needed)
    return library


def _check_processor(path: Path, library: bytes, needed: int) -> None:
    """Raise DataError if this processor is another one or lacks instructions that a program needs."""
    machine, here = ELF.unpack_from(library)[0], platform.machine()
    if machine != MACHINES.get(here, machine):
        made_for = next((name for name, number in MACHINES.items() if number == machine), f"number {machine}")
        raise DataError(f"{path} must be of a processor {here}, got one of {made_for}. Deploy it for this target.")
    has = torch.backends.cpu.get_cpu_capability()
    for bit, name in ((2, "AVX512"), (1, "AVX2")):
        if needed & bit and has not in ("AVX512", name):
            raise DataError(f"{path} must run on a processor with {name}, got {has}. Deploy it for another target.")
