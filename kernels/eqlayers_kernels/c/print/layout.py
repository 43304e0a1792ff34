"""Prints how kernels move rows: the change between layouts, stores past the caches, and early reads.

Memory has ``mul_ir`` or ``ir_mul``, kernels compute in ``ir_mul``. A block of ``dim`` components is transposed a vector
of channels at a time, with shuffles of pairs of registers; compilers turn strided loops over 5 or 7 components into
scalar code, several times slower. Results larger than the caches use non-temporal stores, which avoid reading the lines
first; operands are prefetched a block ahead, because blocks are too short for the processor to detect a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...forms.program import Slot
from .loops import INCLUDES

VECTOR_BYTES = (64, 32, 16)  # AVX-512, AVX, SSE and NEON

# Stores are compiler builtins: <immintrin.h> has 1.9 MB, and parsing it takes longer than the rest of a small kernel.
HEAD = """#if defined(__AVX512F__)
#define VECTOR 64
#define STORE __builtin_ia32_movntdq512
#elif defined(__AVX__)
#define VECTOR 32
#define STORE __builtin_ia32_movntdq256
#elif defined(__SSE2__)
#define VECTOR 16
#define STORE __builtin_ia32_movntdq
#else
#define VECTOR 16
#endif
#if defined(__SSE2__) && defined(__clang__)
typedef T ALIGNED __attribute__((vector_size(VECTOR), may_alias));
#define STORE_PAST_CACHES(to, v) __builtin_nontemporal_store((ALIGNED)(v), (ALIGNED *)(to))
#elif defined(__SSE2__)
typedef long long BITS __attribute__((vector_size(VECTOR)));
#define STORE_PAST_CACHES(to, v) STORE((BITS *)(to), (BITS)(v))
#else
#define STORE_PAST_CACHES(to, v) (*(V *)(to) = (v))
#endif
#define LANES ((int)(VECTOR / sizeof(T)))
typedef T V __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
typedef T V32 __attribute__((vector_size(32), aligned(sizeof(T)), may_alias));
typedef T V16 __attribute__((vector_size(16), aligned(sizeof(T)), may_alias));
typedef T V8 __attribute__((vector_size(8), aligned(sizeof(T)), may_alias));
#ifdef __has_builtin
#if __has_builtin(__builtin_shufflevector)
#define SHUFFLES 1
#endif
#endif
static inline void store_past_caches(const T *restrict from, T *restrict to, int64_t n) {
  int64_t i = 0;
  for (; i < n && (uintptr_t)(to + i) % VECTOR; i++) to[i] = from[i];
  for (; i + LANES <= n; i += LANES) STORE_PAST_CACHES(to + i, *(const V *)(from + i));
  for (; i < n; i++) to[i] = from[i];
}
static inline void fetch(const T *from, int64_t n) {
  for (int64_t i = 0; i < n; i += 64 / sizeof(T)) __builtin_prefetch(from + i, 0, 2);
}
static inline void finish_stores(void) {
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}
"""

#: Adds the sums of vectors to as many numbers.
SUMS = """static inline void add_sums(const T *vectors, T *to, int n) {
  for (int j = 0; j < n; j++) {
    T sum = 0;
    for (int l = 0; l < LANES; l++) sum += vectors[j * LANES + l];
    to[j] += sum;
  }
}
"""

#: Name and bytes of the C type of each dtype.
TYPES = {"float32": ("float", 4), "float64": ("double", 8)}


def head(ctype: str) -> str:
    """The beginning of every C source: includes, the type T of the numbers, and functions that move rows."""
    return f"""{INCLUDES}
typedef {ctype} T;
#define EXPORT __attribute__((visibility("default")))
{HEAD}"""


def wide(slot: Slot) -> bool:
    """Whether the layouts mul_ir and ir_mul of a block differ."""
    return slot.mul > 1 and slot.dim > 1


def print_transposes(inward: Iterable[int], outward: Iterable[int], item: int) -> str:
    """C functions ``in<dim>`` (mul_ir to ir_mul) and ``out<dim>`` (back) for blocks of ``dim`` components."""
    parts = [_function("in", dim, item) for dim in sorted(set(inward))]
    parts += [_function("out", dim, item) for dim in sorted(set(outward))]
    return "\n".join(parts)


def _function(name: str, dim: int, item: int) -> str:
    # element (m, u) lies at m * mul + u inside, and at u * dim + m outside
    inside, outside = "{}[{} * mul + u]", f"{{}}[u * {dim} + {{}}]"
    near, far = (outside, inside) if name == "in" else (inside, outside)
    tail = " ".join(f"{far.format('to', m)} = {near.format('from', m)};" for m in range(dim))
    variants = [
        f"#if VECTOR == {size}\n{_block(name, dim, size // item)}\n#endif" for size in VECTOR_BYTES if size // item > 1
    ]
    body = "\n".join(variants)
    return f"""static __attribute__((noinline))
void {name}{dim}(const T *restrict from, T *restrict to, int mul) {{
  int u = 0;
#ifdef SHUFFLES
  for (; u + LANES <= mul; u += LANES) {{
{body}
  }}
#endif
  for (; u < mul; u++) {{ {tail} }}
}}
"""


def _block(name: str, dim: int, lanes: int) -> str:
    """C lines that transpose one vector of channels: ``dim`` loads, shuffles, ``dim`` stores."""
    inside = [f"{m} * mul + u" for m in range(dim)]
    outside = [f"u * {dim} + {r * lanes}" for r in range(dim)]
    sources, targets = (outside, inside) if name == "in" else (inside, outside)
    lines = [f"const V s{n} = *(const V *)(from + {offset});" for n, offset in enumerate(sources)]
    for number, offset in enumerate(targets):
        origins = [_origin(name, dim, lanes, number, lane) for lane in range(lanes)]
        lines.append(f"*(V *)(to + {offset}) = {_gathered(origins, lanes)};")
    return "\n".join(f"    {line}" for line in lines)


def _origin(name: str, dim: int, lanes: int, vector: int, lane: int) -> tuple[int, int]:
    """(source vector, lane) of an element of a target vector."""
    if name == "in":
        return divmod(lane * dim + vector, lanes)
    channel, component = divmod(vector * lanes + lane, dim)
    return component, channel


def _gathered(origins: list[tuple[int, int]], lanes: int) -> str:
    """C expression of nested shuffles that collect the lanes ``origins`` (vector, lane) into one vector."""
    used = sorted({vector for vector, _ in origins})
    first, *others = used
    if not others:
        return f"__builtin_shufflevector(s{first}, s{first}, {', '.join(str(lane) for _, lane in origins)})"
    text, done = f"s{first}", {first}
    for number, vector in enumerate(others):
        index = []
        for position, (source, lane) in enumerate(origins):
            if source == vector:
                index.append(lanes + lane)
            elif source in done:
                index.append(lane if number == 0 else position)
            else:
                index.append(-1)  # filled by a later shuffle
        text = f"__builtin_shufflevector({text}, s{vector}, {', '.join(map(str, index))})"
        done.add(vector)
    return text


_SQUARES = """static inline __attribute__((always_inline)) void turn(V *v) {{
{steps}
}}
static inline __attribute__((always_inline)) void rows_in(const T *const *at, int start, T *to, const int dim) {{
  V v[LANES];
  for (int i = 0; i < dim; i += LANES) {{
    const int from = i + LANES <= dim ? i : dim - LANES;  // the last square overlaps the one before
    for (int l = 0; l < LANES; l++) v[l] = *(const V *)(at[l] + start + from);
    turn(v);
    for (int m = 0; m < LANES; m++) *(V *)(to + (from + m) * LANES) = v[m];
  }}
}}
static inline __attribute__((always_inline)) void rows_out(const T *from, T *const *at, int start, const int dim) {{
  V v[LANES];
  for (int i = 0; i < dim; i += LANES) {{
    const int to = i + LANES <= dim ? i : dim - LANES;
    for (int m = 0; m < LANES; m++) v[m] = *(const V *)(from + (to + m) * LANES);
    turn(v);
    for (int l = 0; l < LANES; l++) *(V *)(at[l] + start + to) = v[l];
  }}
}}
static inline __attribute__((always_inline)) void rows_add(const T *from, T *const *at, int start, const int dim) {{
  V v[LANES];
  int i = 0;
  for (; i + LANES <= dim; i += LANES) {{
    for (int m = 0; m < LANES; m++) v[m] = *(const V *)(from + (i + m) * LANES);
    turn(v);
    for (int l = 0; l < LANES; l++) *(V *)(at[l] + start + i) += v[l];  // rows may be the same
  }}
  for (; i < dim; i++)
    for (int l = 0; l < LANES; l++) at[l][start + i] += from[i * LANES + l];
}}
"""


def print_squares(item: int) -> str:
    """C functions that transpose rows to lanes and back, a square of LANES rows and components at a time.

    ``rows_in(at, start, to, dim)`` copies components ``start`` to ``start + dim`` of the rows at LANES addresses to
    ``to[component * LANES + row]``; ``rows_out`` and ``rows_add`` copy and add them back. ``dim`` is at least LANES.
    """
    variants = [
        f"#{'el' if n else ''}if defined(SHUFFLES) && VECTOR == {size}\n{_steps(size // item)}"
        for n, size in enumerate(VECTOR_BYTES)
    ]
    plain = """  for (int i = 0; i < LANES; i++)
    for (int j = 0; j < i; j++) { const T t = v[i][j]; v[i][j] = v[j][i]; v[j][i] = t; }"""
    return _SQUARES.format(steps="\n".join([*variants, "#else", plain, "#endif"]))


def _steps(lanes: int) -> str:
    """C lines that transpose LANES vectors in registers, one bit of the lane number at a time."""
    lines, half = [], 1
    while half < lanes:
        first = ", ".join(str(lanes + j - half if j & half else j) for j in range(lanes))
        second = ", ".join(str(lanes + j if j & half else j + half) for j in range(lanes))
        for a in range(lanes):
            if not a & half:
                b = a + half
                pair = f"const V a = v[{a}], b = v[{b}];"
                shuffles = [
                    f"v[{n}] = __builtin_shufflevector(a, b, {index});" for n, index in ((a, first), (b, second))
                ]
                lines.append(f"  {{ {pair} {' '.join(shuffles)} }}")
        half *= 2
    return "\n".join(lines)
