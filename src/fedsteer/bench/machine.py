"""On what it was measured."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any


def cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def facts() -> dict[str, Any]:
    """Processor, cores, Python, torch and the GPU, if there is one."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    return {
        "processor": _processor(),
        "cores": cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": gpu,
    }


def in_words(found: dict[str, Any]) -> str:
    """One line."""
    gpu = f", {found['gpu']}" if found["gpu"] else ", no GPU"
    return (
        f"{found['processor']}, {found['cores']} core(s){gpu}, "
        f"Python {found['python']}, torch {found['torch']}"
    )


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    if listing.exists():
        for line in listing.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
