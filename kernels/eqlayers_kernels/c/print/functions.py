"""Prints sigmoid and hyperbolic tangent of vectors of lanes: C's own functions take one number at a time.

Both come from one exponential: the argument is cut into n ln 2 + r with an integer n and abs(r) <= ln 2 / 2, as in Cody
and Waite (1980), whose two parts of ln 2 are used; exp(r) - 1 is its Taylor series.
"""

from __future__ import annotations

import math

#: Keeps the order of sums, which other kernels leave to the compiler. It holds for the rest of the file, because
#: compilers do not inline functions with other options.
STRICT = """#ifdef __clang__
#pragma clang fp reassociate(off)
#else
#pragma GCC optimize("no-associative-math")
#endif
"""

#: Integer of the same size, bits of a mantissa, terms of the series, bounds of the argument of exp and of a hyperbolic
#: tangent (beyond them results differ in denormal numbers only), and the two parts of ln 2.
_CONSTANTS = {
    "float32": ("int32_t", 23, 7, (-87.0, 88.0), 20.0, (0.693359375, -2.12194440e-4)),
    "float64": ("int64_t", 52, 13, (-708.0, 709.0), 44.0, (6.93147180369123816490e-01, 1.90821492927058770002e-10)),
}


def functions(dtype: str) -> str:
    """C source of ``sigmoid(V)`` and ``hyperbolic_tangent(V)`` for vectors of 'float32' or 'float64'; NaN stays NaN."""
    integer, bits, terms, (low, high), end, (upper, lower) = _CONSTANTS[dtype]
    series = f"ALL((T){1 / math.factorial(terms)!r})"
    for k in range(terms - 1, 0, -1):
        series = f"({series} * r + (T){1 / math.factorial(k)!r})"
    return f"""{STRICT}typedef {integer} W __attribute__((vector_size(VECTOR), aligned(sizeof(T)), may_alias));
static inline V between(V q, T low, T high) {{
  const W under = (W)(q < low), over = (W)(q > high);  // neither of NaN
  q = (V)((under & (W)ALL(low)) | (~under & (W)q));
  return (V)((over & (W)ALL(high)) | (~over & (W)q));
}}
static inline V exponential(V q, V *minus_one) {{
  const V shifted = q * (T){1 / math.log(2)!r} + (T){1.5 * 2.0**bits!r};  // the last bits are the nearest integer
  const V n = shifted - (T){1.5 * 2.0**bits!r};
  const V r = (q - n * (T){upper!r}) - n * (T){lower!r};
  const V less = r * {series};
  const V power = (V)((W)ALL((T)1) + ((W)shifted << {bits}));
  *minus_one = power * less + (power - (T)1);
  return power * less + power;
}}
static inline V sigmoid(V x) {{
  V unused;
  return (T)1 / ((T)1 + exponential(between(-x, (T){low!r}, (T){high!r}), &unused));
}}
static inline V hyperbolic_tangent(V x) {{
  V e;
  exponential(between(x + x, (T){-2 * end!r}, (T){2 * end!r}), &e);
  return e / (e + (T)2);
}}
"""
