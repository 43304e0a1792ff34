"""C text that every kernel has: exported functions, division into chunks, checks of indices, unused columns."""

from __future__ import annotations

from collections.abc import Iterable

from ...forms.program import Slot

#: Status that ``run`` returns: success, no memory for scratch, tables that do not belong to the graph.
DONE, NO_MEMORY, WRONG_TABLES = range(3)

#: Includes of every source; -std=c11 declares clocks only if _POSIX_C_SOURCE is defined.
INCLUDES = """#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200112L
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>"""
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
    """Lines joined to one text, indented by ``by`` spaces."""
    return ("\n" + " " * by).join(lines)


def run_function(lines: Iterable[str]) -> str:
    """The exported C functions of a kernel: ``run`` for given chunks, ``work`` for chunks from a shared counter.

    ``work`` also measures, in nanoseconds, the processor time of all threads together, and the longest time that one
    thread had no processor since the call began. Systems without these clocks measure nothing.
    """
    return f"""EXPORT int64_t run(const int64_t *arg, int64_t begin, int64_t end) {{
  {indent(lines, 2)}
}}
typedef struct {{ const int64_t *arg; int64_t chunks, next, status, begun, busy, lost; }} Job;
#ifdef CLOCK_THREAD_CPUTIME_ID
static int64_t now(clockid_t clock) {{
  struct timespec t = {{0, 0}};
  clock_gettime(clock, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}}
#endif
EXPORT void work(void *data) {{
  Job *const job = data;
#ifdef CLOCK_THREAD_CPUTIME_ID
  const int64_t before = now(CLOCK_THREAD_CPUTIME_ID);
#endif
  for (;;) {{
    const int64_t chunk = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
    if (chunk >= job->chunks) break;
    const int64_t status = run(job->arg, chunk, chunk + 1);
    if (status) __atomic_store_n(&job->status, status, __ATOMIC_RELAXED);
  }}
#ifdef CLOCK_THREAD_CPUTIME_ID
  const int64_t busy = now(CLOCK_THREAD_CPUTIME_ID) - before, lost = now(CLOCK_MONOTONIC) - job->begun - busy;
  __atomic_fetch_add(&job->busy, busy, __ATOMIC_RELAXED);
  int64_t most = __atomic_load_n(&job->lost, __ATOMIC_RELAXED);
  while (lost > most && !__atomic_compare_exchange_n(&job->lost, &most, lost, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
#endif
}}
"""


def gaps(slots: Iterable[Slot], width: int) -> list[Slot]:
    """The columns of a row that no slot covers, as slots of one component."""
    out, position = [], 0
    for start, stop in [*sorted((slot.start, slot.stop) for slot in slots), (width, width)]:
        if start > position:
            out.append(Slot(position, start - position, 1))
        position = max(position, stop)
    return out
