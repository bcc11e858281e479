"""The exceptions of fedsteer.

Each has a message of one line. The command line exits with code 2 if it was asked for something
that cannot work, and with 1 if a run failed after it had begun (RoundRefused, TrainingFailed). Any
other exception is a bug and keeps its traceback.
"""

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 1000  # characters of a message; a file may put anything into it


class FedsteerError(Exception):
    """Whatever fedsteer raises on purpose. Its message is one line of printable characters."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ConfigurationError(FedsteerError, ValueError):
    """An option, name or file that cannot work."""


class RoundRefused(FedsteerError, ValueError):
    """A round that cannot be used; nothing was written. `clients` are the ones at fault, if any."""

    def __init__(self, message: str, clients: Iterable[int | str] = ()) -> None:
        super().__init__(message)
        self.clients = tuple(clients)


class Diverged(RoundRefused):
    """A round refused because an update, or the aggregate, is not finite."""


class StateError(FedsteerError):
    """A state that is used up, belongs to another rule, or has another version."""


class DataError(FedsteerError):
    """A data file that is missing, damaged or not what it says it is."""


class DamagedRun(DataError):
    """What one run left cannot be continued from; it says nothing about other runs."""


class TrainingFailed(FedsteerError):
    """Local training or evaluation raised; the message names the client, if it was one's."""


def one_line(text: str) -> str:
    """Without control characters, and without the middle of what is too long to read."""
    line = printable(text)
    return line if len(line) <= LONGEST else f"{line[:600]} ... {line[-300:]}"


def printable(text: str) -> str:
    """A blank instead of every control character: no text steers a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def first_line(error: BaseException) -> str:
    """What an error of another library says, without the lines that explain it."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def extra(name: str) -> str:
    """How to install an extra; the package is on no index, and its name there may be another's."""
    return f"pip install '.[{name}]' in a clone of fedsteer"


CLOSE = 0.6  # a slip of the keyboard; what is less alike is another word


def unknown(kind: str, name: str, known: Iterable[str]) -> ConfigurationError:
    """The error for a name that does not exist, with the nearest one that does."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1, cutoff=CLOSE)
    hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(names)}"
    return ConfigurationError(f"unknown {kind} {name!r}; {hint}")


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that does not exist."""
    if name not in known:
        raise unknown(kind, name, known)
