"""Differential privacy for clients: an update is clipped and gets noise once, when it arrives.

    g~_i = g_i min(1, C / |g_i|) + z C N(0, I)        C is `clip`, z is `noise`

All that a server does with g~_i, in this round or a later one, is post-processing and costs nothing
more. The neighbouring notion is replacement: whatever other data a client had, its clipped update
would differ by at most 2 C. That it takes part is no secret, so sampling amplifies nothing. One
release is thus a Gaussian mechanism of multiplier z / 2, and T releases of a client together are
exactly one of multiplier z / (2 sqrt(T)), also if each depends on those before it (Dong, Roth and
Su 2022). Its epsilon is that of Balle and Wang 2018, from the library dp-accounting.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError, extra
from fedsteer.options import check_options, default_of, option

SENSITIVITY = 2.0
"""Two updates of at most length 1 differ by at most this."""
BLOCK = 1 << 20  # weights that are worked on at once

Normals = Callable[[int], NDArray[np.float64]]
"""So many independent draws of a standard normal distribution."""


@final
@dataclass(frozen=True, kw_only=True)
class Privacy:
    """What is done to each update for its client's privacy; without a clip, nothing."""

    clip: float | None = option(None, "longer updates get this length; none: no privacy", above=0.0)
    noise: float = option(1.0, "standard deviation of the noise in each weight, in clips", low=0.0)
    delta: float = option(
        1e-5, "chance that epsilon does not hold; well below 1 / clients", above=0.0, below=1.0
    )
    budget: float | None = option(
        None, "a client whose epsilon would rise above this is not asked again", above=0.0
    )
    where: str = option(
        "server", "who clips and adds noise on Flower", choices=("server", "client")
    )

    def __post_init__(self) -> None:
        check_options(self, "privacy.")
        if not self.on and any(getattr(self, e.name) != default_of(e) for e in fields(self)):
            raise ConfigurationError("privacy needs privacy.clip, the length of the longest update")

    @property
    def on(self) -> bool:
        """Whether anything is done."""
        return self.clip is not None


def release(update: NDArray[Any], privacy: Privacy, normals: Normals) -> NDArray[Any]:
    """A (d,) update as the rest of the world may see it; all nan if it is not finite."""
    clip = privacy.clip
    if clip is None:
        return update
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(sum(float(np.square(block).sum()) for _, block in _blocks(update)))
    if not math.isfinite(norm):
        return np.full_like(update, np.nan)
    result, factor = np.empty_like(update), clip / max(norm, clip)
    for place, block in _blocks(update):
        noise = privacy.noise * clip * normals(len(block)) if privacy.noise else 0.0
        result[place] = factor * block + noise
    return result


def _blocks(update: NDArray[Any]) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Parts of a vector in float64: a copy of all of it would be large."""
    for start in range(0, len(update), BLOCK):
        place = slice(start, start + BLOCK)
        yield place, update[place].astype(np.float64)


def secret_normals(count: int) -> NDArray[np.float64]:
    """Draws that nobody can repeat, made from the random bytes of the operating system.

    NumPy's generators are not made for secrets: from some of their numbers, such as the noise of
    weights that did not move, the others can be computed.
    """
    half = (count + 1) // 2
    bits = np.frombuffer(os.urandom(16 * half), np.uint64) >> np.uint64(11)
    uniform = (bits + 0.5) * 2.0**-53  # in (0, 1)
    length, angle = np.sqrt(-2.0 * np.log(uniform[:half])), 2.0 * np.pi * uniform[half:]
    return np.concatenate([length * np.cos(angle), length * np.sin(angle)])[:count]


def epsilon(privacy: Privacy, releases: int) -> float:
    """What so many releases of one client cost it together."""
    if not releases or not privacy.noise:
        return math.inf if releases else 0.0
    try:
        from dp_accounting import get_epsilon_gaussian
    except ModuleNotFoundError:
        raise ConfigurationError(
            f"epsilon is computed by dp-accounting: {extra('privacy')}"
        ) from None
    multiplier = privacy.noise / SENSITIVITY / math.sqrt(releases)
    return float(get_epsilon_gaussian(multiplier, privacy.delta))


@final
class Ledger:
    """How often each client has released an update, and what that cost it."""

    def __init__(self, privacy: Privacy) -> None:
        self.privacy = privacy
        self.releases: Counter[Any] = Counter()
        self._cost = cache(lambda releases: epsilon(privacy, releases))
        if privacy.on and not self.within("anybody"):
            raise ConfigurationError(
                f"a single release costs epsilon {self._cost(1):.4g}, more than privacy.budget = "
                f"{privacy.budget:g}: it needs more privacy.noise"
            )

    def within(self, client: Any) -> bool:
        """Whether the budget has room for another release of this client."""
        if not self.privacy.on:
            return True
        after = self._cost(self.releases[client] + 1)
        return self.privacy.budget is None or after <= self.privacy.budget

    def count(self, clients: Iterable[Any]) -> None:
        """Each of them releases an update."""
        if self.privacy.on:
            self.releases.update(clients)

    def columns(self, client: Any = None) -> dict[str, float]:
        """What the records say of this client, or of the one that released most often."""
        if not self.privacy.on:
            return {}
        most = max(self.releases.values(), default=0)
        return {"epsilon": self._cost(most if client is None else self.releases[client])}

    def pack(self) -> list[Any]:
        return [[client, count] for client, count in self.releases.items()]

    def restore(self, packed: Iterable[Any]) -> None:
        """Take in counts that were packed; of two counts of a client the larger one holds."""
        self.releases |= Counter({client: count for client, count in packed})
