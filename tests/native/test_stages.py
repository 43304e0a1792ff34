"""A structure that processes share, stage by stage, and threads: the numbers of one process."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path

import pytest
import torch
from ase import Atoms
from ase.build import bulk
from torch import Tensor

from eqlayers import deploy
from eqlayers.models import Potential
from eqlayers.native import NativePotential
from eqlayers.native.program import CProgram

from .conftest import NETWORKS, SPECIES, edges_of, made, rattled

pytestmark = pytest.mark.kernels


def crystal(times: tuple[int, int, int] = (2, 2, 2)) -> Atoms:
    """A rattled crystal of several species."""
    atoms = rattled(bulk("Cu", cubic=True) * times)
    atoms.numbers[::3], atoms.numbers[1::5] = 8, 1
    return atoms


class Process:
    """One of several that share a structure: some atoms, and ghosts of others."""

    def __init__(
        self, native: NativePotential, owned: Tensor, z: Tensor, vectors: Tensor, ends: Tensor, factors: Tensor
    ) -> None:
        self.native = native
        self.edges = torch.isin(ends[1], owned).nonzero()[:, 0]
        senders = ends[0, self.edges].unique()
        self.ids = torch.cat([owned, senders[~torch.isin(senders, owned)]])
        where = torch.full((len(z),), -1)
        where[self.ids] = torch.arange(len(self.ids))
        self.local, self.z, self.vectors = len(owned), z[self.ids], vectors[self.edges].contiguous()
        self.factors = factors[self.ids]
        self.ends = where[ends[:, self.edges]].contiguous()
        self.energies, self.slopes = torch.zeros(self.local, dtype=torch.float64), torch.zeros_like(self.vectors)
        self.workspace = ctypes.c_void_p()
        native._library.eqlayers_workspace_new(native._handle, 1, ctypes.byref(self.workspace))

    def stage(self, number: int, columns: int) -> Tensor:
        """The rows after a stage."""
        inputs = self.z, self.vectors, self.ends, self.factors
        pointers = [t.data_ptr() for t in (*inputs, self.energies, self.slopes)]
        rows, atoms = ctypes.c_void_p(), len(self.z)
        status = self.native._library.eqlayers_stage(
            self.native._handle,
            self.workspace,
            number,
            self.local,
            atoms,
            len(self.edges),
            *pointers,
            ctypes.byref(rows),
        )
        assert status == 0
        if not columns:
            assert not rows
            return self.energies
        if not atoms:
            return torch.zeros(0, columns, dtype=self.native.dtype)
        kind = ctypes.c_float if self.native.dtype is torch.float32 else ctypes.c_double
        return torch.frombuffer((kind * (atoms * columns)).from_address(rows.value or 0), dtype=self.native.dtype).view(
            atoms, columns
        )

    def free(self) -> None:
        """Give memory back."""
        self.native._library.eqlayers_workspace_free(self.workspace)


def exchanges(native: NativePotential) -> list[tuple[int, int, int]]:
    """After each stage: how rows are exchanged, their numbers of columns, and whether they are gradients."""
    found = []
    for stage in range(native._library.eqlayers_stages(native._handle)):
        columns, gradients = ctypes.c_int64(), ctypes.c_int(-1)
        how = native._library.eqlayers_exchange(native._handle, stage, *map(ctypes.byref, (columns, gradients)))
        found.append((how, columns.value, gradients.value))
    return found


def shared(native: NativePotential, owners: Tensor, structure: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Energies and slopes by as many processes as there are owners."""
    z, vectors, *_ = structure
    processes = [Process(native, (owners == rank).nonzero()[:, 0], *structure) for rank in range(int(owners.max()) + 1)]
    for stage, (how, columns, _) in enumerate(exchanges(native)):
        rows = [process.stage(stage, columns) for process in processes]
        if not how:
            continue
        whole = torch.zeros(len(z), columns, dtype=native.dtype)
        for process, mine in zip(processes, rows, strict=True):
            whole.index_add_(0, process.ids, mine) if how == 2 else whole.index_copy_(
                0, process.ids[: process.local], mine[: process.local]
            )
        for process, mine in zip(processes, rows, strict=True):
            mine[: process.local] = whole[process.ids[: process.local]]
            mine[process.local :] = whole[process.ids[process.local :]] if how == 1 else torch.nan  # are not read
    energies, slopes = torch.zeros(len(z), dtype=torch.float64), torch.zeros_like(vectors)
    for process in processes:
        energies[process.ids[: process.local]], slopes[process.edges] = process.energies, process.slopes
        process.free()
    return energies, slopes


def keeping(most: int, patch: pytest.MonkeyPatch) -> None:
    """Programs whose tiles keep so many bytes from stage to stage."""
    text = CProgram.text
    old, new = (f"KEPT_AT_MOST = {size}" for size in (512 << 20, most))
    patch.setattr(CProgram, "text", lambda self: text(self).replace(old, new))


@pytest.mark.parametrize("name", [name for name in NETWORKS if name.startswith(("MACE", "NequIP"))])
def test_large_structures_keep_less_and_have_the_same_bits(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They run steps again in place of keeping results: in one tile and in several, on one thread and on two."""
    results, sizes, before = list[Tensor](), list[int](), torch.get_num_threads()
    for most in (512 << 20, 0):
        keeping(most, monkeypatch)
        native = NativePotential(deploy(made(name), tmp_path / f"{most}.so").path)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            pairs = [native.evaluate(*edges_of(native, crystal(times))) for times in ((2, 1, 1), (3, 3, 4))]
            results.append(torch.cat([one.flatten().double() for pair in pairs for one in pair]))
        sizes.append(native._library.eqlayers_workspace_bytes(native._workspace().handle))
    torch.set_num_threads(before)
    assert all(torch.equal(mine, results[0]) for mine in results[1:])
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_processes_share_a_structure(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At random, so that most senders are ghosts; one process has no atoms; one owner of all atoms."""
    if len(name) % 2:  # as large ones do
        keeping(0, monkeypatch)
    native = NativePotential(deploy(made(name), tmp_path / "shared.so").path)
    torch.manual_seed(0)
    *edges, factors = structure = (*edges_of(native, crystal()), torch.randn(32, dtype=native.dtype))
    wanted = native.evaluate(*structure)
    rest, summed = (native.evaluate(*edges, one)[1] for one in (1 - factors, None))
    torch.testing.assert_close(wanted[1] + rest, summed, rtol=0, atol=1e-12 * float(rest.abs().max()))
    assert all(gradients == (how == 2) for how, _, gradients in exchanges(native))  # features are copied to ghosts
    for owners in (torch.randint(0, 3, (32,)), torch.full((32,), 1), torch.arange(32)):
        for mine, theirs in zip(shared(native, owners, structure), wanted, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_threads_change_no_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    native = NativePotential(deploy(made("MACE, tables", dtype), tmp_path / "threads.so").path)
    before = torch.get_num_threads()
    try:
        for atoms in (crystal((4, 4, 9)), crystal((2, 1, 1)), Atoms()):
            structure = edges_of(native, atoms) if len(atoms) else empty(dtype)
            results = []
            for count in (1, 2, 3, 7):
                torch.set_num_threads(count)
                results.append(native.evaluate(*structure))
            for mine in results[1:]:
                assert all(map(torch.equal, mine, results[0]))
    finally:
        torch.set_num_threads(before)


def empty(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """A structure without atoms."""
    return torch.zeros(0).long(), torch.zeros(0, 3, dtype=dtype), torch.zeros(2, 0).long()


def test_an_order_of_atoms_and_edges_changes_nothing_but_rounding(tmp_path: Path) -> None:
    native = NativePotential(deploy(made("NequIP, tables"), tmp_path / "order.so").path)
    z, vectors, ends = edges_of(native, crystal((3, 3, 4)))
    energies, slopes = native.evaluate(z, vectors, ends)
    torch.manual_seed(1)
    atoms, edges = torch.randperm(len(z)), torch.randperm(len(vectors))
    where = torch.argsort(atoms)
    moved = native.evaluate(z[atoms].contiguous(), vectors[edges].contiguous(), where[ends[:, edges]].contiguous())
    torch.testing.assert_close(moved[0], energies[atoms], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(moved[1], slopes[edges], rtol=1e-11, atol=1e-11)


class Whole(torch.nn.Module):
    """A network whose energies depend on all atoms at once."""

    irreps_sh, cutoff, species = "0e", 4.0, tuple(SPECIES)

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3))
        self.embedding = torch.nn.Embedding(len(SPECIES), 3)

    def forward(self, atom_types, edges, graph):  # type: ignore[no-untyped-def]
        sums = torch.zeros(atom_types.shape[0], 3, dtype=edges.vectors.dtype).index_add(
            0, graph.ends[1], edges.vectors.tanh() * self.weight
        )
        kinds = self.embedding(atom_types)
        return ((sums + (kinds - kinds.mean(0))) ** 2).sum(1) + (sums.sum() ** 2).tanh()


def test_a_network_of_whole_structures(tmp_path: Path) -> None:
    """Cannot be divided: it has no stages, and one part is all of it."""
    potential = Potential(Whole(), SPECIES, subtract_isolated=False).double().eval()
    report = deploy(potential, tmp_path / "whole.so")
    assert "needs the whole structure, for aten.mean" in str(report)
    native = NativePotential(report.path)
    assert native._library.eqlayers_stages(native._handle) == 0
    from .conftest import batch_of

    batch = batch_of(potential, crystal((3, 3, 3)))
    wanted = potential(batch, ("energy", "forces"))
    for key, value in native(batch).items():
        torch.testing.assert_close(value, wanted[key].detach(), rtol=1e-12, atol=1e-12)


def test_threads_of_python_have_memory_of_their_own(tmp_path: Path) -> None:
    native = NativePotential(deploy(made("NequIP"), tmp_path / "a.so").path)
    structure = edges_of(native, crystal())
    wanted, wrong = native.evaluate(*structure), []

    def work() -> None:
        if not all(map(torch.equal, native.evaluate(*structure), wanted)):
            wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
