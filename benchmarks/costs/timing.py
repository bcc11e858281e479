"""Measuring: time in turns, memory of the process, fresh processes with a number of threads."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def medians(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each, taken in turns: one of each, `repeats` times."""
    for function in functions.values():
        function()
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in taken.items()}


def resident() -> int | None:
    """Resident bytes of this process, None if the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """Most bytes this process ever held; getrusage would report a larger parent's."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def in_fresh_process(script: str, arguments: Sequence[str], threads: int) -> Any:
    """What `script` prints as JSON: BLAS reads its number of threads when it is loaded."""
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
    done = subprocess.run(
        [sys.executable, script, *arguments],
        env=os.environ | dict.fromkeys(names, str(threads)),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


def machine() -> dict[str, Any]:
    """Where this was measured."""
    from fedsteer.bench.machine import processor  # imports torch, which workers measure without

    return {"processor": processor(), "cores": os.cpu_count(), "python": platform.python_version()}


def version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed(name)
    except PackageNotFoundError:
        return "source tree"
