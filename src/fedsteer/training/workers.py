"""Threads that train clients side by side on a CPU, each on one core."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsteer.training.local import Trained

Order = TypeVar("Order")


@contextmanager
def side_by_side(tasks: int) -> Iterator[ThreadPoolExecutor]:
    """As many threads as torch was given (at most `tasks`), whose products take one core each.

    Torch gives the interpreter's lock back while it computes, so the threads do run together, and
    nobody waits for anybody in the middle of a product. Whatever fails ends them all first.
    """
    threads = torch.get_num_threads()
    # A thread's own number is set in it; what libraries hold for all threads is set with it.
    torch.set_num_threads(1)
    count = max(1, min(threads, tasks))
    workers = ThreadPoolExecutor(count, "client", torch.set_num_threads, (1,))
    try:
        yield workers
    finally:
        workers.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


def shared_out(
    carry_out: Callable[[Sequence[Order], Tensor], Trained], orders: Sequence[Order], like: Tensor
) -> Trained:
    """`carry_out` of all orders, every thread taking an equal share of them."""
    threads = min(torch.get_num_threads(), len(orders))
    if threads < 2:
        return carry_out(orders, like)
    shares = [slice(first, None, threads) for first in range(threads)]
    with side_by_side(threads) as workers:
        running = [workers.submit(carry_out, orders[share], like) for share in shares]
        parts = [part.result() for part in running]
    updates = like.new_empty((len(orders), parts[0].updates.shape[1]))
    steps, losses = np.zeros(len(orders), np.int64), np.zeros(len(orders))
    for share, part in zip(shares, parts, strict=True):
        updates[share], steps[share], losses[share] = part.updates, part.steps, part.losses
    return Trained(updates, steps, losses)
