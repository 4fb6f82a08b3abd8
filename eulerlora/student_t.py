"""Quantiles of Student's t distribution, without scipy."""

import math
from functools import cache

BISECTIONS = 60


@cache
def student_t_quantile(normal_quantile: float, degrees_of_freedom: int) -> float:
    """Returns the quantile of Student's t at the probability of a positive normal quantile.

    degrees_of_freedom: at least 1.
    """
    wanted = math.erf(normal_quantile / math.sqrt(2))
    low, high = 0.0, math.pi / 2
    for _ in range(BISECTIONS):
        angle = (low + high) / 2
        if _central_probability(angle, degrees_of_freedom) < wanted:
            low = angle
        else:
            high = angle
    return math.sqrt(degrees_of_freedom) * math.tan(low)


def _central_probability(angle: float, degrees_of_freedom: int) -> float:
    """Returns P(|T| < sqrt(degrees_of_freedom) tan(angle)); Abramowitz and Stegun, 26.7.3-4."""
    odd = degrees_of_freedom % 2
    sine, cosine = math.sin(angle), math.cos(angle)
    series, term = 0.0, cosine**odd
    for power in range(odd, degrees_of_freedom - 1, 2):
        series += term
        term *= cosine**2 * (power + 1) / (power + 2)
    return (angle + sine * series) * 2 / math.pi if odd else sine * series
