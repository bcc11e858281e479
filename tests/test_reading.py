"""Whatever a reader raises is told in one line that names the place."""

from __future__ import annotations

import pickle

import pytest

from fedsteer.errors import ConfigurationError, DataError, FedsteerError, RoundRefused
from fedsteer.reading import reading


def test_places_inside_each_other() -> None:
    outer, inner = reading("trace.csv", "a trace"), reading("line 3", "a number")
    with pytest.raises(DataError) as caught, outer, inner:
        int("three")
    said = "trace.csv: line 3 is not a number: invalid literal for int() with base 10: 'three'"
    assert str(caught.value) == said


@pytest.mark.parametrize("problem", [KeyError("a"), RecursionError(), MemoryError(), EOFError()])
def test_any_error_of_python(problem: Exception) -> None:
    place = reading("it", "TOML", error=ConfigurationError)
    with pytest.raises(ConfigurationError, match=r"^it is not TOML: \S+$"), place:
        raise problem


def test_a_file_that_cannot_be_opened() -> None:
    words = r"^it cannot be read: No such file or directory$"
    with pytest.raises(DataError, match=words), reading("it"), open("/nowhere/at/all"):
        pass


def test_our_errors_keep_their_type_and_name_a_place_once() -> None:
    words = r"^it: no clients$"
    with pytest.raises(RoundRefused, match=words) as caught, reading("it"), reading("it"):
        raise RoundRefused("no clients", clients=[3])
    assert caught.value.clients == (3,)


@pytest.mark.parametrize("problem", [NameError, AssertionError, ModuleNotFoundError])
def test_a_mistake_of_ours_is_not_the_files(problem: type[Exception]) -> None:
    with pytest.raises(problem), reading("it"):
        raise problem


def test_a_message_is_one_line_that_can_be_read() -> None:
    error = FedsteerError("a\nb\x1b[31m\ud800" + "x" * 5000 + "remedy")
    assert str(error).isprintable() and 900 < len(str(error)) <= 1000
    assert str(error).startswith("a b [31m") and str(error).endswith("remedy")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
