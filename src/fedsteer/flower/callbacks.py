"""Your functions that are told every round; what they raise never ends a run."""

from collections.abc import Iterable
from logging import WARNING
from typing import Any

from fedsteer.errors import ConfigurationError
from fedsteer.flower.asking import log
from fedsteer.options import listed
from fedsteer.records.files import filled
from fedsteer.records.rows import Tracker


class Callbacks:
    """Calls each function with a row of its own, and logs the first exception of each."""

    def __init__(self, functions: Iterable[Tracker] = ()) -> None:
        self.functions: tuple[Tracker, ...] = listed("callbacks", functions, "functions")
        for function in self.functions:
            if not callable(function):
                raise ConfigurationError(f"callbacks must be functions, not {function!r}")
        self._failed: set[int] = set()

    def tell(self, row: dict[str, Any]) -> None:
        for place, function in enumerate(self.functions):
            try:
                function(filled(row))
            except Exception as error:
                if place not in self._failed:
                    self._failed.add(place)
                    name = getattr(function, "__qualname__", repr(function))
                    words = "fedsteer: the callback %s raised %r; rounds go on, this is said once"
                    log(WARNING, words, name, error, exc_info=error)
