"""Student's t quantile against scipy."""

import pytest
from scipy.stats import norm, t

from eulerlora.sampling.adaptive import student_t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 7, 14, 30, 151])
@pytest.mark.parametrize("normal_quantile", [0.5, 1.96, 2.447])
def test_the_quantile_agrees_with_scipy(normal_quantile: float, freedom: int) -> None:
    expected = t.ppf(norm.cdf(normal_quantile), freedom)
    assert student_t_quantile(normal_quantile, freedom) == pytest.approx(expected, rel=1e-9)
