"""Prints C for weights that are interpolated in a table, and for gradients of the coefficients and the rows."""

from __future__ import annotations

from collections.abc import Sequence

from ...arithmetic.writer import Task


def print_tables(reads: int, width: int) -> str:
    """C functions on ``n`` weights of an edge, whose interval has ``reads`` rows of ``width`` columns in the table.

    ``combine`` interpolates weights, ``compare`` adds their gradient to the gradient of the coefficients, ``spread`` to
    the gradient of the rows, and ``spread_both`` does so for second derivatives along the coefficients.
    """
    load = " ".join(f"const T c{k} = c[{k}];" for k in range(reads))
    rows = [f"[u + {k * width}]" for k in range(reads)]
    combined = " + ".join(f"c{k} * t{row}" for k, row in enumerate(rows))
    sums = " ".join(f"T s{k} = 0;" for k in range(reads))
    dots = " ".join(f"s{k} += w[u] * t{row};" for k, row in enumerate(rows))
    put = " ".join(f"gc[{k}] += s{k};" for k in range(reads))
    spread = " ".join(f"gt{row} += c{k} * w[u];" for k, row in enumerate(rows))
    load_both = " ".join(f"const T c{k} = c[{k}], d{k} = dc[{k}];" for k in range(reads))
    both = " ".join(f"gt{row} += c{k} * dw[u] + d{k} * w[u];" for k, row in enumerate(rows))
    head = "static inline __attribute__((always_inline)) void"
    return f"""{head} combine(const T *restrict t, const T *restrict c, T *restrict w, int n) {{
  {load}
  for (int u = 0; u < n; u++) w[u] = {combined};
}}
{head} compare(const T *restrict t, const T *restrict w, T *restrict gc, int n) {{
  {sums}
  for (int u = 0; u < n; u++) {{ {dots} }}
  {put}
}}
{head} spread(const T *restrict w, const T *restrict c, T *restrict gt, int n) {{
  {load}
  for (int u = 0; u < n; u++) {{ {spread} }}
}}
{head} spread_both(const T *restrict w, const T *restrict dw, const T *restrict c, const T *restrict dc, T *restrict gt,
                 int n) {{
  {load_both}
  for (int u = 0; u < n; u++) {{ {both} }}
}}
"""


def combine_lines(task: Task, start: int, count: int) -> list[str]:
    """C lines that interpolate the weights of a path whose function does not."""
    if {"x", "y", "z"}.isdisjoint(task.results):
        return []
    names = [("c", "w"), *([("dc", "dw")] if "c" in task.tangents else [])]
    return [f"combine(t + {start}, {c}, s_{w} + {start}, {count});" for c, w in names]


def gradient_lines(task: Task, ranges: Sequence[tuple[int, int]]) -> list[str]:
    """C lines after some paths, which add the gradients of their weights to the results.

    ``ranges`` are first column and number of the weights of each path, in order; adjacent ranges share one loop.
    """
    joined: list[tuple[int, int]] = []
    for start, count in ranges:
        if joined and sum(joined[-1]) == start:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        else:
            joined.append((start, count))
    after = []
    for start, count in joined:
        if "c" in task.results:
            after.append(f"compare(t + {start}, s_gw + {start}, gc, {count});")
        if spreads_both(task):
            after.append(f"spread_both(s_vw + {start}, s_gw + {start}, c, dc, gt + {start}, {count});")
        elif "t" in task.results:
            after.append(f"spread(s_gw + {start}, c, gt + {start}, {count});")
    return after


def spreads_both(task: Task) -> bool:
    """Whether the gradient of the table's rows has two terms: second derivatives along the coefficients."""
    return task.order == 2 and "t" in task.results and "c" in task.tangents


def numbers_of_edge(traversal: str, reads: int) -> str:
    """C line with the number of an edge, its other node, and its interval in a table (by interval: its receiver)."""
    number = "e" if traversal == "by_place" else "edge"
    interval = f" const int64_t place = places[{number}]; (void)place;" if reads else ""
    return f"const int64_t edge = edges[e], other = others[e]; (void)edge; (void)other;{interval}"


def outside(traversal: str, reads: int) -> str:
    """C condition that is true if an index of a segment in the tables of a graph is out of range."""
    condition = "outside(edges, others, start, stop, count, nodes)"
    if not reads:
        return condition
    index = "places + start, NULL" if traversal == "by_place" else "places, edges + start"
    return f"{condition} || beyond({index}, stop - start, num_places)"
