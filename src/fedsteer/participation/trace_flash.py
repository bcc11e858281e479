"""FLASH's event log, JSON; docs/traces.md says which events make a device available.

    {device: {"messages": "2020-01-28 07:14:02\\tscreen_unlock\\n...", ...}}

Lines are sorted by time. Second 0 is midnight before the first event of any device. All records
repeat after the same whole number of days, so day and night keep their hours.
"""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from fedsteer.errors import DataError
from fedsteer.participation.trace import Intervals
from fedsteer.reading import reading

# event -> (condition, its value from then on)
_EFFECTS = {
    "battery_charged_on": ("charging", True),
    "battery_charged_off": ("charging", False),
    "wifi": ("wifi", True),
    **dict.fromkeys(("2g", "3g", "4g", "5g", "unknown"), ("wifi", False)),
    "screen_lock": ("locked", True),
    "screen_unlock": ("locked", False),
}

Event = tuple[datetime, str]


def flash_intervals(content: dict[str, Any]) -> tuple[list[Intervals], float]:
    """The intervals of each device, and the length of all records."""
    logs = [_events(record, device) for device, record in content.items()]
    times = [moment for events in logs for moment, _ in events]
    if not any(event in _EFFECTS for events in logs for _, event in events):
        raise DataError("the log has no event about charging, Wi-Fi or the lock")
    midnight = min(times).replace(hour=0, minute=0, second=0)
    day = timedelta(days=1)
    length = ((max(times) - midnight) // day + 1) * day
    return [_available(events, midnight) for events in logs], length.total_seconds()


def _events(record: dict[str, Any], device: str) -> list[Event]:
    messages = record.get("messages")
    if not isinstance(messages, str):
        raise DataError(f"device {device}: has no messages")
    events = []
    for line in messages.splitlines():
        if not line.strip():
            continue
        moment, _, event = line.strip().partition("\t")
        with reading(f"device {device}", "a time and an event"):
            time = datetime.strptime(moment.strip(), "%Y-%m-%d %H:%M:%S")
        events.append((time, event.strip().lower()))
    # Stable: events of the same second keep their order.
    return sorted(events, key=lambda event: event[0])


def _available(events: list[Event], midnight: datetime) -> Intervals:
    """From every event that leaves all conditions true to the next; `Trace` joins what touches."""
    state = {"charging": False, "wifi": False, "locked": False}
    moments = []
    for moment, event in events:
        if event in _EFFECTS:
            condition, value = _EFFECTS[event]
            state[condition] = value
        moments.append(((moment - midnight).total_seconds(), all(state.values())))
    # Available for less than a second is not available.
    return [(now, later) for (now, on), (later, _) in pairwise(moments) if on and now < later]
