"""Updates that began from the model of an earlier round, though the client does not say so.

A client that was away and then trains the model it kept is easy to miss: its reply has the right
shape, and its difference to the model that was sent is mostly what that has moved in the meantime.

    a_s = |w_returned - w_s|        for the model w_s sent in round s

A reply is outdated if a_s < a_t / 5 for an earlier round s, and the update a_t is more than five
times as long as any this client has sent before. The second condition spares clients whose own
optimum the model was close to once: they return to it from everywhere, and always from as far.
Distances are those of a sample of the weights, so remembering models costs next to nothing. Nothing
of it is in the checkpoint: a restarted server learns anew.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedsteer.draws import generator
from fedsteer.steering.kernels.difference import Difference

SAMPLE = 4096
"""Weights that are looked at."""
ROUNDS = 50
"""Rounds whose models are remembered."""
APART = 5.0
"""An outdated update is so many times as long as usual, and as its distance to the old model."""


@dataclass
class SentModels:
    """Samples of the models of earlier rounds, and the longest update of every client."""

    dim: int
    models: deque[tuple[int, NDArray[Any]]] = field(default_factory=lambda: deque(maxlen=ROUNDS))
    longest: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = generator(0, "sample of a model")
        few = self.dim <= SAMPLE
        self.places = np.arange(self.dim) if few else draw.integers(0, self.dim, SAMPLE)

    def note(self, number: int, vector: NDArray[Any]) -> None:
        """This model is sent in round `number`."""
        self.models.append((number, vector[self.places]))

    def origin(self, client: str, update: NDArray[Any] | Difference) -> int | None:
        """The earlier round whose model this update began from; None: the latest."""
        *earlier, (_, sent) = self.models
        with np.errstate(over="ignore", invalid="ignore"):  # the rule checks that it is finite
            moved = update[self.places]
            length = float(np.linalg.norm(moved))
            usual = self.longest.get(client, np.inf)
            if length > APART * usual and earlier:
                returned = sent - moved
                apart = [float(np.linalg.norm(returned - model)) for _, model in earlier]
                nearest = int(np.argmin(apart))
                if APART * apart[nearest] < length:
                    return earlier[nearest][0]
        if np.isfinite(length):
            self.longest[client] = max(self.longest.get(client, 0.0), length)
        return None
