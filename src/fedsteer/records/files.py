"""Writing files so that a kill at any moment leaves the old or the new one, never half."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsteer.errors import DataError


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    """Write beside the target, flush to disk, then rename over it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(path.name + ".new")
    try:
        with open(beside, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:  # a full disk, or the target is a folder: nobody looks for the rest
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None


def write_json(path: Path, value: Any) -> None:
    """One JSON document, for people to read."""
    write_atomically(path, (json.dumps(plain(value), indent=2) + "\n").encode())


def read_json(path: Path) -> Any:
    """A JSON document; a damaged one is refused by name."""
    try:
        return parse_json(path.read_bytes(), path)
    except FileNotFoundError:
        raise DataError(f"{path} is missing") from None


def parse_json(content: bytes, path: Path) -> Any:
    """The document in `content`, which came from `path`."""
    try:
        return json.loads(content)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{path} is damaged: {error}") from None


def plain(value: Any) -> Any:
    """JSON has no nan and no NumPy: nan becomes null, arrays lists, floats keep nine digits.

    Nine digits are more than anyone reads and round-trip float32 exactly.
    """
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            return None
        return float(f"{value:.9g}")
    return value
