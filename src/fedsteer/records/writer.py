"""Appending what happens, so that a resumed run leaves the same bytes as an unbroken one."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import fedsteer
from fedsteer.errors import DataError
from fedsteer.records.claim import claim
from fedsteer.records.files import plain, write_json
from fedsteer.records.names import FORMAT, MANIFEST, RESULT, STREAMS, stream_file


class RecordWriter:
    """Three append-only files of a run. `offsets` go into the checkpoint; `rewind` goes back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._files: dict[str, IO[bytes]] = {
            name: (folder / stream_file(name)).open("ab") for name in STREAMS
        }

    def claim(self, patience: float = 0.0) -> None:
        """Refuse, after so many seconds, if another process has these files open and claimed."""
        claim(self._files["rounds"], self.folder, patience)

    def append(self, stream: str, row: Mapping[str, Any]) -> None:
        """One row to `rounds`, `clients` or `timing`; keys without a value are left out."""
        filled = {key: value for key, value in plain(dict(row)).items() if value is not None}
        self._files[stream].write((json.dumps(filled, separators=(",", ":")) + "\n").encode())

    def offsets(self) -> dict[str, int]:
        """Length of each file, everything so far safely on disk."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def rewind(self, offsets: Mapping[str, int]) -> None:
        """Drop whatever was written after these offsets."""
        for name, file in self._files.items():
            if file.seek(0, os.SEEK_END) < offsets[name]:
                raise DataError(f"{file.name} is shorter than its checkpoint says")
            file.truncate(offsets[name])
            file.seek(0, os.SEEK_END)

    def manifest(self, value: Mapping[str, Any], **environment: Any) -> None:
        """What is being run, by which version, when and where; `environment` adds to the latter.

        What `value` says of these itself stands.
        """
        here = {
            "python": platform.python_version(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
        }
        whole = {"format": FORMAT, "version": fedsteer.__version__, **value}
        whole.setdefault("environment", here | environment)
        whole.setdefault("created", datetime.now(UTC).isoformat(timespec="seconds"))
        write_json(self.folder / MANIFEST, whole)

    def finish(self, result: Mapping[str, Any]) -> None:
        """The run is complete."""
        self.offsets()
        write_json(self.folder / RESULT, result)

    def close(self) -> None:
        """Flush and close."""
        for file in self._files.values():
            file.close()

    def __enter__(self) -> RecordWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
