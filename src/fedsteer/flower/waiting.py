"""Sending the messages of a round, and waiting until enough of them have been answered."""

import math
import time
from collections.abc import Sequence
from logging import INFO

from flwr.app import Message
from flwr.serverapp import Grid

from fedsteer.flower.asking import log

SHORTEST, LONGEST = 0.1, 3.0
"""Seconds between two looks at the replies, a tenth of the time waited so far within these."""


def is_enough(answered: int, asked: int, enough: float) -> bool:
    """Whether this many usable answers are the share `enough` of those asked."""
    return answered >= max(1, math.ceil(round(enough * asked, 9)))  # .7 * 10 is above 7


def send_and_wait(
    grid: Grid, messages: Sequence[Message], *, timeout: float | None, enough: float = 1.0
) -> list[Message]:
    """The replies that came before `timeout` seconds were over or `enough` had answered.

    Errors are replies, but no answers. Without an early close this is the Grid's own
    `send_and_receive`, which is also what the time limit means: no reply is fetched after it.
    """
    if not messages or enough >= 1.0:
        return list(grid.send_and_receive(messages, timeout=timeout)) if messages else []
    waiting = {name for name in grid.push_messages(messages) if name}  # None: it was not sent
    began, waited = time.monotonic(), 0.0
    replies: list[Message] = []
    while timeout is None or waited < timeout:
        came = list(grid.pull_messages(waiting))
        replies += came
        waiting -= {reply.metadata.reply_to_message_id for reply in came}
        answered = sum(not reply.has_error() for reply in replies)
        if not waiting:
            break
        if is_enough(answered, len(messages), enough):
            log(INFO, "fedsteer: closed after %s of %s answers", answered, len(messages))
            break
        left = math.inf if timeout is None else timeout - waited
        time.sleep(min(max(SHORTEST, waited / 10), LONGEST, left))
        waited = time.monotonic() - began
    return replies
