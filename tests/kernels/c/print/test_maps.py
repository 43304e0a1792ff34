"""The kernel of linear maps against the interpreter: tasks, layouts, dtypes, tiles, margins."""

from typing import Any

import pytest

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.print.maps import MapKernel, matrix_path
from eqlayers_kernels.forms.program import LAYOUTS, Axis, Path, Program, Slot

#: Channels of x and of z, and components: more and fewer than a vector, one of each, and odd numbers.
PATHS = [(37, 18, 3), (1, 5, 1), (4, 1, 5), (3, 70, 1)]
TASKS = [
    Task(0, ("z",)),
    *(Task(1, results) for results in (("x",), ("w",), ("x", "w"))),
    *(Task(2, results, tangents) for results in (("x", "w", "z"), ("z",), ("x",)) for tangents in (("x", "w"), ("w",))),
    Task(2, ("w", "z"), ("x",)),
]


def program(layout: str) -> Program:
    """Paths with gaps between their columns; the last adds to the result of the first."""
    paths: list[Path] = []
    ends = [1, 1, 2]
    for u, v, dim in PATHS:
        axes = (Axis(u, x=1, w=v), Axis(v, w=1, z=1))
        terms = tuple((m, 0, m, 0.7) for m in range(dim))
        x, z = Slot(ends[0], u, dim), Slot(ends[2], v, dim)
        paths.append(Path(x, Slot(0, 1, 1), z, ends[1], tuple(a for a in axes if a.extent > 1), terms))
        ends = [x.stop + 1, ends[1] + u * v + 1, z.stop + 1]
    paths.append(paths[0]._replace(weight=ends[1], terms=tuple((m, 0, m, -1.3) for m in range(3))))
    return Program(tuple(paths), (ends[0], 1, ends[1] + 37 * 18, ends[2]), layout)


@pytest.mark.parametrize("task", TASKS, ids=lambda k: f"{k.order}-{''.join(k.results)}-{''.join(k.tangents)}")
@pytest.mark.parametrize(("layout", "dtype"), [("mul_ir", "float32"), ("ir_mul", "float32"), ("ir_mul", "float64")])
def test_every_task(kernels: Any, layout: str, dtype: str, task: Task) -> None:
    """Rows of y are not 1 here, as they are in layers; of 70 rows some fill tiles, and the last tile is smaller."""
    maps = program(layout)
    for rows in (1, 5, 70):
        kernels.check(MapKernel(maps, task, dtype, "rows"), kernels.draw(maps, dtype, rows=rows, shared=rows > 1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_of_ones_are_read_in_place(kernels: Any, layout: str) -> None:
    maps, task = program(layout), Task(1, ("x", "w"))
    arrays = kernels.draw(maps, "float64", rows=40, shared=True)
    arrays["y"][:] = 1.0
    kernels.check(MapKernel(maps, task, "float64", "rows"), arrays)


def test_what_is_no_map() -> None:
    (first, *_) = program("ir_mul").paths
    assert matrix_path(first) == (1, 2, 1, 37, 18, 3, 0.7)
    others = {
        "no weights": first._replace(weight=None, axes=first.axes[:1]),
        "two factors": first._replace(terms=((0, 0, 0, 1.0), (1, 0, 1, 2.0), (2, 0, 2, 1.0))),
        "turned components": first._replace(terms=((0, 0, 1, 1.0), (1, 0, 0, 1.0), (2, 0, 2, 1.0))),
        "channels of y": first._replace(y=Slot(0, 2, 1)),
        "weights of channels": first._replace(axes=(Axis(18, x=1, w=1, z=1),)),
    }
    assert {name: matrix_path(path) for name, path in others.items()} == dict.fromkeys(others)
    whole = program("ir_mul")
    assert MapKernel.of(whole, Task(1, ("x", "w")))
    assert not MapKernel.of(whole, Task(1, ("x", "y")))
    assert not MapKernel.of(whole, Task(2, ("x",), ("y",)))
