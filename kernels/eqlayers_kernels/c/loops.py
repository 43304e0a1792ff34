"""Pieces of C that every kernel has: its exported functions, the cut of segments into chunks, columns left free."""

from __future__ import annotations

from collections.abc import Iterable

from ..program import Slot

SEGMENT = """
static int64_t segment(const int64_t *ptr, int64_t segments, int64_t chunks, int64_t chunk) {
  /* first segment of a chunk: chunks have equal numbers of edges and segments together, as nearly as that goes */
  const int64_t total = ptr[segments] + segments, wanted = total * chunk / chunks;
  int64_t low = 0, high = segments;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ptr[middle] + middle < wanted) low = middle + 1; else high = middle;
  }
  return low;
}
"""


def indent(lines: Iterable[str], by: int) -> str:
    """Lines as text."""
    return ("\n" + " " * by).join(lines)


def run_function(lines: Iterable[str]) -> str:
    """The exported functions of a kernel: chunks of the rows, and all chunks that a thread can get hold of."""
    return f"""EXPORT int64_t run(const int64_t *arg, int64_t begin, int64_t end) {{
  {indent(lines, 2)}
}}
typedef struct {{ const int64_t *arg; int64_t chunks, next, status; }} Job;
EXPORT void work(void *data) {{
  Job *const job = data;
  for (;;) {{
    const int64_t chunk = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (chunk >= job->chunks) return;
    if (run(job->arg, chunk, chunk + 1)) __atomic_store_n(&job->status, 1, __ATOMIC_RELAXED);
  }}
}}
"""


def gaps(slots: Iterable[Slot], width: int) -> list[Slot]:
    """The columns that no slot covers."""
    out, position = [], 0
    for start, stop in [*sorted((slot.start, slot.stop) for slot in slots), (width, width)]:
        if start > position:
            out.append(Slot(position, start - position, 1))
        position = max(position, stop)
    return out
