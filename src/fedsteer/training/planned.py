"""Which batches of many clients go together, step after step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Integers = NDArray[np.int64]


def longest_first(schedules: Sequence[tuple[Integers, Integers]]) -> list[int]:
    """Longest first; clients of one length ordered by size, so that neighbours batch well."""
    lasts = [(-len(sizes), -int(sizes[-1])) for _, sizes in schedules]
    return sorted(range(len(lasts)), key=lambda i: (*lasts[i], i))


@dataclass(frozen=True)
class Group:
    """Neighbours whose batches go together in a step."""

    first: int
    last: int
    widest: int
    shares: Tensor  # (c, widest) weight of each point: 1/batch size, 0 for padding


class Planned:
    """The batches of many clients, longest schedule first, brought to the device once."""

    def __init__(
        self,
        schedules: Sequence[tuple[Integers, Integers]],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.dtype = dtype  # of the shares
        self.lengths = np.array([len(sizes) for _, sizes in schedules], np.int64)
        self.starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]]).astype(np.int64)
        self.sizes = np.concatenate([sizes for _, sizes in schedules])
        self.even = int(self.lengths[0]) == int(self.lengths[-1])  # all take as many steps
        table = np.zeros((len(self.sizes), max(rows.shape[1] for rows, _ in schedules)), np.int64)
        for start, (rows, _) in zip(self.starts.tolist(), schedules, strict=True):
            table[start : start + len(rows)] = rows[:, :1]
            table[start : start + len(rows), : rows.shape[1]] = rows
        self.table = torch.as_tensor(table, device=device)
        self.rows = torch.as_tensor(self.starts, device=device)
        self._sizes, self._groups = np.zeros(0, np.int64), list[Group]()

    def size(self, step: int, place: int) -> int:
        """How large a client's batch is."""
        return int(self.sizes[self.starts[place] + step])

    def points(self, step: int, group: Group) -> Tensor:
        """(c, widest) the batches of a group; padding repeats a point of the client at weight 0."""
        if self.even:  # a view
            by_step = self.table.view(len(self.lengths), -1, self.table.shape[1])
            return by_step[group.first : group.last, step, : group.widest]
        rows = self.rows[group.first : group.last] + step
        return self.table[rows, : group.widest]

    def groups(self, step: int, pads: bool) -> list[Group]:
        """Runs of neighbours with batches of equal size or, where it `pads`, about equal."""
        running = len(self.lengths) if self.even else int((self.lengths > step).sum())
        sizes = self.sizes[self.starts[:running] + step]
        if not np.array_equal(sizes, self._sizes):
            self._sizes = sizes
            cuts = [0, *_cuts(sizes.tolist(), pads), running]
            self._groups = [self._group(sizes, *ends) for ends in pairwise(cuts)]
        return self._groups

    def _group(self, sizes: Integers, first: int, last: int) -> Group:
        own = sizes[first:last, None]
        widest = int(own.max())
        shares = torch.as_tensor((np.arange(widest) < own) / own, dtype=self.dtype)
        return Group(first, last, widest, shares.to(self.table.device))


def _cuts(sizes: Sequence[int], pads: bool) -> list[int]:
    """Where sizes differ from those before: at all, or by more than a factor of two."""
    cuts = []
    low = high = sizes[0]
    for index, size in enumerate(sizes):
        low, high = min(low, size), max(high, size)
        if low * 2 < high if pads else low != high:
            cuts.append(index)
            low = high = size
    return cuts
