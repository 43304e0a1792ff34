"""Printed kernels against the interpreter: all modes, layouts, dtypes and requests; NaN, denormals, many paths."""

import itertools
from typing import Any

import numpy as np
import pytest

from eqlayers_kernels.arithmetic.writer import Task
from eqlayers_kernels.c.print.printer import TYPES, Kernel
from eqlayers_kernels.forms.program import LAYOUTS, Path, Program, Slot
from tests.each import each

FORWARD = Task(0, ("z",))
BACKWARD = Task(1, ("x", "y", "w"))
DOUBLE = Task(2, ("x", "y", "w", "z"), ("x", "y", "w"))
SMALL = (("uvu", (5, 2, 0), (3, 1, 3)), ("uvw", (2, 5, 9), (1, 3, 1)), ("uuu", (4, 4, 0), (1, 3, 1)))


def subsets(names: str, least: int = 1) -> list[tuple[str, ...]]:
    return [s for n in range(least, len(names) + 1) for s in itertools.combinations(names, n)]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("task", [FORWARD, BACKWARD, DOUBLE], ids=["values", "gradients", "second gradients"])
@pytest.mark.parametrize(
    ("layout", "dtype", "shared"),
    [("mul_ir", "float32", False), ("ir_mul", "float32", False), ("mul_ir", "float64", True)],
)
def test_all_modes(kernels: Any, layout: str, dtype: str, shared: bool, task: Task) -> None:
    """Where weights are shared, modes that can do without have none. Chunks and ways to store change no bit."""
    program = kernels.random_program(layout, not shared)
    kernel = Kernel(program, task, dtype, shared=shared)
    arrays = kernels.draw(program, dtype, shared=shared)
    once = kernels.check(kernel, arrays)
    for chunks, past in ((1, True), (3, False), (8, True)):
        again = kernels.check(kernel, arrays, chunks=chunks, workers=2, past=past)
        for name in once:  # a gradient that is summed over the rows is summed by chunk
            assert (shared and name == "w") or (once[name] == again[name]).all()


# of order 2: every single result and every single tangent; test_every_request has the rest
REQUESTS = [
    *(Task(1, results) for results in subsets("xyw")[:5]),
    *(Task(2, (result,), ("x", "y", "w")) for result in "xywz"),
    *(Task(2, ("x", "y", "w", "z"), (tangent,)) for tangent in "xyw"),
]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("task", REQUESTS, ids=lambda k: f"{k.order}-{''.join(k.results)}-{''.join(k.tangents)}")
def test_only_what_is_wanted(kernels: Any, task: Task) -> None:
    program = kernels.random_program("ir_mul", False, SMALL)
    kernels.check(Kernel(program, task, "float64"), kernels.draw(program, "float64"), chunks=2)


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_request(kernels: Any, layout: str, shared: bool) -> None:
    mixing = (("uvw", (4, 1, 3), (1, 1, 3)), ("uuw", (4, 4, 2), (1, 3, 1)), ("uvw", (2, 3, 5), (1, 1, 1)))
    program = kernels.random_program(layout, True, (*SMALL, *mixing), seed=5)
    arrays = kernels.draw(program, "float32", shared=shared)
    for results, tangents in itertools.product(subsets("xywz"), subsets("xyw")):
        kernels.check(Kernel(program, Task(2, results, tangents), "float32", shared=shared), arrays)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_multiplicities(kernels: Any, layout: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    specs = []
    for mode, _, _ in kernels.SPECS:
        u, v, w = (int(n) for n in rng.choice([1, 2, 3, 4, 7, 8, 9, 16, 17], size=3))
        equal = mode in ("uuw", "uuu", "uvu<v", "u<vw")
        u = max(u, 2) if "<" in mode else u
        specs.append(
            (mode, (u, u if equal else v, w), tuple(int(d) for d in rng.choice([1, 3, 5, 7, 9, 11, 13], size=3)))
        )
    program = kernels.random_program(layout, bool(seed % 2), specs, seed, gap=seed - 1)
    for task in (FORWARD, BACKWARD, DOUBLE):
        kernels.check(Kernel(program, task, "float32"), kernels.draw(program, "float32"), past=True)


def many_paths(kernels: Any, count: int, layout: str = "ir_mul") -> Program:
    """Paths of degrees up to 6, no two alike."""
    dims = itertools.cycle([(13, 13, 13), (1, 13, 13), (13, 11, 1), (11, 9, 7), (5, 3, 13)])
    specs = [("uvu", (3, 1, 0), next(dims)) for _ in range(count * 3 // 4)]
    return kernels.random_program(layout, True, specs, gap=0)


def test_degree_six(kernels: Any) -> None:
    program = many_paths(kernels, 8, "mul_ir")
    assert max(path.z.dim for path in program.paths) == 13
    kernels.check(Kernel(program, BACKWARD, "float32"), kernels.draw(program, "float32", rows=2))


def test_hundreds_of_paths_are_several_units(kernels: Any) -> None:
    """Each function is in one unit; the driver, in the first, declares all."""
    kernel = Kernel(many_paths(kernels, 300), DOUBLE, "float32")
    assert len(kernel.program.paths) == 300
    assert len(kernel.sources) > 4
    sizes = [source.count(";") for source in kernel.sources[1:]]
    assert max(sizes) < 2000, "units should be about equally long: they are compiled side by side"
    names = [line for source in kernel.sources for line in source.splitlines() if "noinline" in line]
    assert len(names) == len(set(names)) == 300
    assert all("EXPORT int64_t run" not in source for source in kernel.sources[1:])


@pytest.mark.slow
@pytest.mark.parametrize("task", [FORWARD, BACKWARD, DOUBLE], ids=["values", "gradients", "second gradients"])
def test_hundreds_of_paths_are_right(kernels: Any, task: Task) -> None:
    kernel = Kernel(many_paths(kernels, 300), task, "float32")
    assert len(kernel.sources) > 1
    kernels.check(kernel, kernels.draw(kernel.program, "float32", rows=2))


def test_two_units_are_right(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("eqlayers_kernels.c.print.printer.UNIT_STATEMENTS", 60)
    kernel = Kernel(kernels.random_program("ir_mul", True, SMALL), BACKWARD, "float64")
    assert len(kernel.sources) > 1
    kernels.check(kernel, kernels.draw(kernel.program, "float64"))


def test_equal_paths_are_one_function(kernels: Any) -> None:
    first = kernels.random_program("ir_mul", True, SMALL[:1]).paths[0]
    moved = first._replace(z=first.z._replace(start=40), weight=11)
    sources = Kernel(Program((first, moved), (20, 2, 30, 60), "ir_mul"), FORWARD, "float64").sources
    assert sum(source.count("noinline") for source in sources) == 1


def test_equal_kernels_print_equal_sources_others_print_others(kernels: Any) -> None:
    def sources(layout: str = "mul_ir", task: Task = BACKWARD, dtype: str = "float32", **how: Any) -> tuple[str, ...]:
        return Kernel(kernels.random_program(layout, True, SMALL, how.pop("seed", 0)), task, dtype, **how).sources

    assert sources() == sources()
    others = [
        sources("ir_mul"), sources(task=Task(1, ("x",))), sources(dtype="float64"), sources(traversal="by_src"),
        sources(shared=True), sources(seed=1), sources(task=Task(2, ("x", "y", "w"), ("x",))),
    ]  # fmt: skip
    assert len({sources(), *others}) == 1 + len(others)


def test_names_tell_what_a_kernel_does(kernels: Any) -> None:
    program = kernels.random_program("ir_mul", True, SMALL)
    assert Kernel(program, DOUBLE, "float64", "by_src").name == "double_backward_by_src_float64"


def test_coefficients_are_printed_exactly(kernels: Any) -> None:
    """A product by 1 of every coefficient gives it back, to the last bit."""
    values = [1 / 3, -(2**0.5), 1e-300, np.nextafter(1, 2), 0.1]
    terms = tuple((i, 0, i, float(v)) for i, v in enumerate(values))
    program = Program((Path(Slot(0, 1, 5), Slot(0, 1, 1), Slot(0, 1, 5), None, (), terms),), (5, 1, 0, 5), "ir_mul")
    arrays = {"x": np.ones((1, 5)), "y": np.ones((1, 1)), "w": np.ones((1, 0))}
    assert kernels.run(Kernel(program, FORWARD, "float64"), arrays)["z"][0].tolist() == values


@each("bad", [np.nan, np.inf, -np.inf])
@each("layout", LAYOUTS)
def test_nan_and_infinity_reach_what_depends_on_them_and_nothing_else(kernels: Any, layout: str, bad: float) -> None:
    """By the interpreter: coefficients that are not zero decide. No other channel, path or row."""
    program = kernels.random_program(layout)
    kernel = Kernel(program, FORWARD, "float32")
    clean = kernels.draw(program, "float32")
    for name, row in (("x", 1), ("y", 2), ("w", 4)):
        arrays = {n: a.copy() for n, a in clean.items()}
        path = program.paths[0]
        columns = {"x": path.x.columns(layout)[path.terms[0][0], 7], "y": path.y.start + path.terms[0][1]}
        arrays[name][row, columns.get(name, 11)] = bad
        with np.errstate(invalid="ignore"):
            value = kernels.expected(program, FORWARD, arrays)["z"][0]
        got = kernels.run(kernel, arrays)["z"]
        touched = ~np.isfinite(value)
        assert touched.any()
        assert touched.any(1).tolist() == [i == row for i in range(5)]
        np.testing.assert_array_equal(~np.isfinite(got), touched)
        if np.isnan(bad):  # inf * (a - b) is inf, and inf * a - inf * b is not
            np.testing.assert_array_equal(np.isnan(got), touched)
        np.testing.assert_array_equal(got[~touched], kernels.run(kernel, clean)["z"][~touched])


def test_nan_in_a_cotangent_reaches_the_gradients_that_read_it(kernels: Any) -> None:
    program = kernels.random_program("mul_ir")
    arrays = kernels.draw(program, "float32")
    path = program.paths[1]
    arrays["g"][3, path.z.columns("mul_ir")[path.terms[0][2], 2]] = np.nan
    with np.errstate(invalid="ignore"):
        want = kernels.expected(program, BACKWARD, arrays)
    got = kernels.run(Kernel(program, BACKWARD, "float32"), arrays)
    for name in "xyw":
        assert np.isnan(want[name][0]).any()
        np.testing.assert_array_equal(np.isnan(got[name]), np.isnan(want[name][0]))


@pytest.mark.parametrize("dtype", TYPES)
def test_denormals_are_kept(kernels: Any, dtype: str) -> None:
    """Results below the smallest normal number are rounded to the grid of denormals, and not to zero."""
    shared = dtype == "float64"
    program, info = kernels.random_program("mul_ir", not shared), np.finfo(dtype)
    arrays = kernels.draw(program, dtype, shared=shared)
    arrays["x"] *= info.smallest_normal / 50
    value, size, count = kernels.expected(program, FORWARD, arrays)["z"]
    got = kernels.run(Kernel(program, FORWARD, dtype, shared=shared), arrays)["z"]
    # a factor that was rounded to the grid is multiplied by the others, all below 4
    assert (np.abs(got - value) <= (count + 5) * (info.eps * size + 64 * info.smallest_subnormal)).all()
    small = (np.abs(value) < info.smallest_normal / 2) & (np.abs(value) > info.smallest_normal / 8)
    assert small.sum() > 50
    assert (got[small] != 0).all()


def test_loading_a_kernel_leaves_the_processor_s_mode_alone(kernels: Any) -> None:
    kernels.run(
        Kernel(program := kernels.random_program("ir_mul", True, SMALL), FORWARD, "float64"),
        kernels.draw(program, "float64"),
    )
    assert (np.full(64, 1e-310) * np.full(64, 0.5) > 0).all()
