"""What a thread of the fused kernel holds, and how many programs run at once.

Measured on an H200 at d = 11 million, k = m = 10, float32: a thread that reads two neighbours at
once needs half of the instructions (0.223 ms instead of 0.270), and the programs on a processor
must be a multiple of its four schedulers. If the sums do not fit into registers, torch does it.
"""

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from fedsteer.steering.kernels import Integers

LANES = 32  # threads of a program: one warp
SCHEDULERS = 4  # of a processor; each runs a share of its programs
REGISTERS, MOST_OF_A_THREAD, MOST_PROGRAMS = 65_536, 255, 32  # of a processor
MOST = 208  # sums and values a thread may hold
OTHERS = 16  # registers for everything else
PADDING = 5  # numbers of rows that vary are rounded up to a multiple: fewer kernels to compile


@dataclass(frozen=True)
class Plan:
    """How many rows the kernel is compiled for and how many neighbours a thread reads at once."""

    count: int  # updates, padded if that fits
    width: int  # rows of the basis, padded likewise if they are picked
    gram: bool  # whether g_i . g_l is asked for
    positions: int

    @cached_property
    def sums(self) -> int:
        """Running sums of a thread."""
        pairs = self.count * (self.count - 1) // 2 if self.gram else 0
        return self.width * self.count + self.count + pairs + 1

    @cached_property
    def values(self) -> int:
        """Numbers a thread reads at a time."""
        return self.positions * (self.width + self.count)

    @cached_property
    def programs(self) -> int:
        """Programs per processor: as many as there are registers for."""
        need = padded(self.sums + self.values + OTHERS, 8)  # registers come in eights
        most = min(REGISTERS // (LANES * need), MOST_PROGRAMS)
        return most // SCHEDULERS * SCHEDULERS

    @cached_property
    def registers(self) -> int:
        """The limit per thread to compile for."""
        return min(REGISTERS // (LANES * self.programs) // 8 * 8, MOST_OF_A_THREAD)

    @cached_property
    def places(self) -> Integers:
        """(count, count) index of the sum for g_i . g_l; off the diagonal only with `gram`."""
        i, l = np.indices((self.count, self.count))  # noqa: E741
        high, low = np.maximum(i, l), np.minimum(i, l)
        pairs = self.count + high * (high - 1) // 2 + low
        return self.width * self.count + np.where(i == l, i, pairs)


@lru_cache(maxsize=256)
def plan_for(count: int, width: int, *, picked: bool, gram: bool, divisor: int) -> Plan | None:
    """The plan that reads most neighbours at once; None if the sums do not fit.

    picked      whether `width` rows are picked from a larger basis
    divisor     how many neighbours can be read at once everywhere: 4, 2 or 1
    """
    wide = padded(width) if picked else width
    for positions in (4, 2, 1):
        for rows, columns in ((padded(count), wide), (count, width)):
            plan = Plan(count=rows, width=columns, gram=gram, positions=positions)
            if positions <= divisor and plan.sums + plan.values <= MOST:
                return plan
    return None


def padded(count: int, multiple: int = PADDING) -> int:
    """`count`, rounded up."""
    return -(-count // multiple) * multiple
