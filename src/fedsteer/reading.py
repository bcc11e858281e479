"""The one place where whatever a reader raises becomes an error of fedsteer.

    with reading(path, "a trace"):
        for number, line in enumerate(lines, start=1):
            with reading(f"line {number}", "a client number and two times"):
                ...

says "trace.csv: line 3 is not a client number and two times: not enough values to unpack".
"""

from collections.abc import Iterator
from contextlib import contextmanager

from fedsteer.errors import DataError, FedsteerError, first_line, one_line


@contextmanager
def reading(
    place: object, kind: str = "readable", error: type[FedsteerError] = DataError
) -> Iterator[None]:
    """Whatever goes wrong inside is told in one line that begins with the place.

    kind    what the content should have been, in words
    error   what is raised; an error of ours keeps its type
    """
    try:
        yield
    except FedsteerError as ours:
        if str(place) not in str(ours):
            ours.args = (one_line(f"{place}: {ours}"),)
        raise
    except (AssertionError, ImportError, NameError):  # our mistake, or a package that is missing
        raise
    except OSError as problem:
        raise error(f"{place} cannot be read: {problem.strerror or problem}") from problem
    except Exception as problem:  # content from outside can be wrong in any way there is
        raise error(f"{place} is not {kind}: {first_line(problem)}") from problem
