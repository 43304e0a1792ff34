"""Prints what weights from a table need: rows of it combined, and the gradients of coefficients and rows."""

from __future__ import annotations

from collections.abc import Sequence

from ...arithmetic.writer import Kind


def print_tables(reads: int, width: int) -> str:
    """Functions of ``n`` weights of an edge, of which the rows of its place in the table lie ``width`` apart.

    ``combine`` makes weights, ``compare`` adds their gradient to the gradient of the coefficients, ``spread`` to the
    gradient of the rows; so does ``spread_both`` with its derivative, where coefficients have tangents.
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


def table_lines(kind: Kind, ranges: Sequence[tuple[int, int]]) -> tuple[list[str], list[str]]:
    """Lines before and after some paths: the weights that they read are made, and what they found is added up.

    ``ranges`` are first column and number of the weights of each path, in order; neighbours are one loop, as short
    loops have long ends.
    """
    joined: list[tuple[int, int]] = []
    for start, count in ranges:
        if joined and sum(joined[-1]) == start:
            joined[-1] = joined[-1][0], joined[-1][1] + count
        else:
            joined.append((start, count))
    before, after = [], []
    for start, count in joined:
        if not {"x", "y", "z"}.isdisjoint(kind.results):
            before.append(f"combine(t + {start}, c, s_w + {start}, {count});")
            if "c" in kind.tangents:
                before.append(f"combine(t + {start}, dc, s_dw + {start}, {count});")
        if "c" in kind.results:
            after.append(f"compare(t + {start}, s_gw + {start}, gc, {count});")
        if spreads_both(kind):
            after.append(f"spread_both(s_vw + {start}, s_gw + {start}, c, dc, gt + {start}, {count});")
        elif "t" in kind.results:
            after.append(f"spread(s_gw + {start}, c, gt + {start}, {count});")
    return before, after


def spreads_both(kind: Kind) -> bool:
    """Whether rows get the gradient of weights times tangents of coefficients, and its derivative times these."""
    return kind.order == 2 and "t" in kind.results and "c" in kind.tangents


def numbers_of_edge(walk: str, reads: int) -> str:
    """The number of an edge, of the node at its other end, and of its place in a table (by places: its receiver)."""
    number = "e" if walk == "by_place" else "edge"
    place = f" const int64_t place = places[{number}]; (void)place;" if reads else ""
    return f"const int64_t edge = edges[e], other = others[e]; (void)edge; (void)other;{place}"


def outside(walk: str, reads: int) -> str:
    """Whether what the tables of a graph say of the edges of a segment lies outside what there is."""
    found = "outside(edges, others, start, stop, count, nodes)"
    if not reads:
        return found
    index = "places + start, NULL" if walk == "by_place" else "places, edges + start"
    return f"{found} || beyond({index}, stop - start, num_places)"
