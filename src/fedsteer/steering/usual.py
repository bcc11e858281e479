"""What is usual: the median of the latest numbers, which a single client cannot raise."""

from typing import Any

import numpy as np

from fedsteer.steering.kernels import Floats

LATEST = 100  # numbers that count


def middle(values: Floats) -> Any:
    """The median, in each column; the smaller one of two in the middle."""
    return np.sort(values, axis=0)[(len(values) - 1) // 2]
