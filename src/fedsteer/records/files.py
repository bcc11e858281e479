"""JSON files and atomic writes: a kill leaves the old file or the new one, never half of one.

What the disk refuses is said with the name of the file.

Records of other programs may lack keys, so everything is looked up with `look` and `number`, which
give None for what is missing.
"""

import errno
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP)
"""What file systems answer on which folders cannot be synced."""
DEEPEST = 50  # lists and tables inside each other
ODD = re.compile(r"[^\t\n -~\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that HTML, SVG or UTF-8 cannot hold: controls and halves of surrogate pairs."""
MAY_BE_ODD = re.compile(rf"\\[bfru]|{ODD.pattern}")
"""In JSON they are escaped, most of them."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Errors of reading, writing and syncing do not say which file it was; here they do."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_atomically(
    path: Path, content: bytes | memoryview, *, before: Path | None = None
) -> None:
    """Write next to the target, flush to disk, then rename over it.

    The file that was there stays as `before`. A kill may leave it under that name alone.
    """
    make_folder(path.parent)
    new = path.with_name(path.name + ".new")
    try:
        with naming(path):  # the disk is full, or the target is a folder
            with open(new, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if before is not None and path.exists():
                os.replace(path, before)
            os.replace(new, path)
            fsync_folder(path.parent)
    except OSError:
        with suppress(OSError):
            new.unlink(missing_ok=True)
        raise


def make_folder(folder: Path) -> None:
    """With those above it; a power loss does not undo it."""
    made = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for place in made:
        fsync_folder(place.parent)


def fsync_folder(folder: Path) -> None:
    """Without this, a power loss may undo that a file was made, renamed or removed."""
    if os.name != "posix":  # elsewhere folders cannot be opened
        return
    with naming(folder):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        except OSError as error:
            if error.errno not in NO_SYNC:
                raise
        finally:
            os.close(handle)


def write_json(path: Path, value: Any) -> None:
    """Write one JSON document, indented for people."""
    write_atomically(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def json_object(text: bytes) -> dict[str, Any]:
    """The JSON object in these bytes; characters that break other formats are replaced."""
    decoded = text.decode("utf-8-sig")
    found = json.loads(decoded)
    if not isinstance(found, dict):
        raise ValueError("it holds something else")
    plain_row = decoded.count("[") + decoded.count("{") < DEEPEST and not MAY_BE_ODD.search(decoded)
    return found if plain_row else _cleaned(found)


def _cleaned(value: Any, left: int = DEEPEST) -> Any:
    if not left:  # Python itself gives up at some depth, elsewhere
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(entry, left - 1) for key, entry in value.items()}
    if isinstance(value, list):
        return [_cleaned(entry, left - 1) for entry in value]
    return ODD.sub("\ufffd", value) if isinstance(value, str) else value


def utc_now() -> str:
    """The time as ISO text, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def rounded(value: Any, digits: int = 4) -> Any:
    """`digits` significant digits, without a needless ".0"; None stays None."""
    if value is None:
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short


def plain(value: Any) -> Any:
    """Convert to JSON: arrays become lists, nan becomes null, floats keep nine digits.

    Nine digits round-trip float32 exactly.
    """
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value


def filled(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row as JSON; keys without a value are left out."""
    return {key: value for key, value in plain(dict(row)).items() if value is not None}


def look(value: Any, *keys: str) -> Any:
    """`value[key][key]...`, or None if there is no such thing."""
    for key in keys:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def table(value: Any, *keys: str) -> dict[str, Any]:
    """The table found there, or an empty one."""
    found = look(value, *keys)
    return found if isinstance(found, dict) else {}


def number(value: Any, *keys: str) -> float | None:
    """The finite number found there, or None."""
    found = look(value, *keys)
    if isinstance(found, bool) or not isinstance(found, (int, float)):
        return None
    try:
        wide = float(found)
    except OverflowError:  # a whole number of hundreds of digits
        return None
    return wide if math.isfinite(wide) else None
