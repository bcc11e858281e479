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


def still_at_work(grid: Grid, cut_off: dict[str, int]) -> set[int]:
    """The nodes of messages that were `cut_off` and are not answered yet; answers are let go.

    A node works on one message after the other, so a new one would wait behind the old, and the
    node would be late for ever. For a message that expired the SuperLink answers with an error.
    """
    for reply in grid.pull_messages(set(cut_off)) if cut_off else ():
        cut_off.pop(reply.metadata.reply_to_message_id, None)
    return set(cut_off.values())


def send_and_wait(
    grid: Grid,
    messages: Sequence[Message],
    *,
    timeout: float | None,
    enough: float = 1.0,
    cut_off: dict[str, int] | None = None,
) -> list[Message]:
    """The replies that came before `timeout` seconds were over or `enough` had answered.

    Errors are replies, but no answers. Without an early close this is the Grid's own
    `send_and_receive`, which is also what the time limit means: no reply is fetched after it.
    `cut_off` gets the messages that were not waited for, and their nodes.
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
            if cut_off is not None:
                sent = [message.metadata for message in messages]
                cut_off |= {m.message_id: m.dst_node_id for m in sent if m.message_id in waiting}
            break
        left = math.inf if timeout is None else timeout - waited
        time.sleep(min(max(SHORTEST, waited / 10), LONGEST, left))
        waited = time.monotonic() - began
    return replies
