"""The machine a benchmark ran on."""

import platform
import re
from pathlib import Path
from typing import Any

import torch

from fedsteer.simulate.world import usable_cores


def facts() -> dict[str, Any]:
    """Processor, cores, Python, torch and the GPU, if there is one."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
    }


def in_words(found: dict[str, Any]) -> str:
    """`facts` in one line."""
    return (
        f"{found['processor']}, {found['cores']} core(s), {found['gpu'] or 'no GPU'}, "
        f"Python {found['python']}, torch {found['torch']}"
    )


def processor() -> str:
    """Its name as Linux knows it; elsewhere as Python does."""
    listing = Path("/proc/cpuinfo")
    named = re.search("model name.*?:(.*)", listing.read_text()) if listing.exists() else None
    return named[1].strip() if named else platform.processor() or platform.machine()
