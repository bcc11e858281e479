"""Random numbers as a function of (seed, round, client, purpose).

Nothing in fedsteer draws from a global generator. Two draws with the same four coordinates are
equal, whatever was drawn before, in whichever process: this is what makes runs resumable and
comparisons between rules paired.
"""

from zlib import crc32

import numpy as np


def generator(
    seed: int, purpose: str, *, round: int = 0, client: int | str = 0
) -> np.random.Generator:
    """A fresh generator for one draw; `purpose` is a short constant such as "participation"."""
    key = client if isinstance(client, int) else crc32(client.encode()) + (1 << 32)
    return np.random.default_rng([seed, round, key, crc32(purpose.encode())])
