"""A matrix as a small PNG image, from blue (-1) over white to red (1).

The pixels are stored, not compressed: compression libraries differ in their bytes from machine to
machine, and a committed picture should not.
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

STEPS = 100  # either side of white
BLUE, WHITE, RED = ((33, 102, 172), (247, 247, 247), (178, 24, 43))


def embedded(values: NDArray[np.float64]) -> str:
    """A data address for an image of these values; those beyond -1 and 1 get the last colour."""
    return "data:image/png;base64," + base64.b64encode(to_png(values)).decode()


def to_png(values: NDArray[np.float64]) -> bytes:
    """One pixel per value, row by row."""
    steps = np.clip(np.rint(values * STEPS), -STEPS, STEPS).astype(np.int64) + STEPS
    rows = b"".join(b"\0" + line.tobytes() for line in steps.astype(np.uint8))
    height, width = steps.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)  # eight bits, palette
    chunks = [(b"IHDR", header), (b"PLTE", _palette()), (b"IDAT", _stored(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _palette() -> bytes:
    shares = np.linspace(0, 1, STEPS + 1)[:, None]
    cold = np.array(BLUE) + shares * (np.array(WHITE) - np.array(BLUE))
    warm = np.array(WHITE) + shares * (np.array(RED) - np.array(WHITE))
    colours: NDArray[np.uint8] = np.rint(np.concatenate([cold, warm[1:]])).astype(np.uint8)
    return bytes(colours.tobytes())


def _stored(content: bytes) -> bytes:
    """A zlib stream of stored blocks."""
    parts = [content[at : at + 65_535] for at in range(0, len(content), 65_535)] or [b""]
    blocks = [
        struct.pack("<BHH", place == len(parts) - 1, len(part), 65_535 - len(part)) + part
        for place, part in enumerate(parts)
    ]
    return b"\x78\x01" + b"".join(blocks) + struct.pack(">I", zlib.adler32(content))


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)
