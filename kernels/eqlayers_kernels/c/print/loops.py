"""Pieces of C that every kernel has: its exported functions, the cut and check of segments, columns left free."""

from __future__ import annotations

from collections.abc import Iterable

from ...forms.program import Slot

#: What ``run`` returns if all went well, if there was no room, and if the tables are not those of the graph.
DONE, NO_ROOM, NO_TABLES = range(3)

SEGMENT = """
static int64_t segment(const int64_t *ptr, int64_t segments, int64_t chunks, int64_t chunk) {
  /* first segment of a chunk: chunks have equal numbers of edges and segments together, as nearly as that goes; all
     chunks together have all segments, whatever ptr holds */
  if (chunk == 0 || chunk == chunks) return chunk ? segments : 0;
  const int64_t total = ptr[segments] + segments, wanted = total * chunk / chunks;
  int64_t low = 0, high = segments;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (ptr[middle] < wanted - middle) low = middle + 1; else high = middle;
  }
  return low;
}
static int outside(const int64_t *edges, const int64_t *others, int64_t start, int64_t stop,
                   int64_t count, int64_t nodes) {
  /* whether these edges of a node, or the nodes at their other ends, are not there to be read */
  if (start < 0 || stop < start || stop > count) return 1;
  int wrong = 0;
  for (int64_t e = start; e < stop; e++)
    wrong |= ((uint64_t)edges[e] >= (uint64_t)count) | ((uint64_t)others[e] >= (uint64_t)nodes);
  return wrong;
}
"""
OUTSIDE = """
static int beyond(const int64_t *index, const int64_t *edges, int64_t count, int64_t size) {
  /* whether one of these numbers, or of those of these edges, is none below size */
  int wrong = 0;
  for (int64_t e = 0; e < count; e++) wrong |= (uint64_t)index[edges == NULL ? e : edges[e]] >= (uint64_t)size;
  return wrong;
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
    const int64_t status = run(job->arg, chunk, chunk + 1);
    if (status) __atomic_store_n(&job->status, status, __ATOMIC_RELAXED);
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
