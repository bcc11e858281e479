"""Server optimisers: what turns an aggregate into a step of the model.

With Delta the aggregate (a pseudo-gradient: w_sent - w_returned) and eta_s the server rate:

    sgd        w <- w - eta_s Delta
    momentum   m <- beta1 m + Delta;                          w <- w - eta_s m
    adam       m <- beta1 m + (1 - beta1) Delta, v <- beta2 v + (1 - beta2) Delta^2
    yogi       m as adam, v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)
               both                                           w <- w - eta_s m / (sqrt(v) + tau)

As in Reddi et al. 2021: no bias correction, tau about 1e-3; v starts at 0. The operators are common
to NumPy and torch, so the step runs on the model's device.

With average = R, a mean of the model over about R moves is kept beside it:

    a <- a + (w - a) / min(t, R)        after move t

It is often better than the last model if steps are long and the clients of a round differ. A step
whose result is not finite raises `Diverged`, and nothing has moved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedsteer.errors import Diverged, StateError
from fedsteer.options import check_options, option
from fedsteer.steering.component import Component
from fedsteer.steering.kernels import Array
from fedsteer.steering.state import State

METHODS = ("sgd", "momentum", "adam", "yogi")


def is_finite(array: Array) -> bool:
    """Whether all numbers are, in NumPy and in torch; of nan both make nan."""
    return math.isfinite(array.max()) and math.isfinite(array.min())


@dataclass
class Moments(Component):
    """First and second moment and the averaged model; None before the first step."""

    first: Array | None = None
    second: Array | None = None
    average: Array | None = None
    moves: int = 0  # in the average


@dataclass(frozen=True)
class ServerOptimiser:
    """Moves the model by an aggregate; goes with every rule, in the simulator and in Flower."""

    method: str = option("sgd", "or momentum, adam, yogi", choices=METHODS)
    rate: float = option(1.0, "of the step with the aggregate", above=0)
    beta1: float = option(
        0.9, "momentum, adam, yogi", low=0, below=1, only_if={"method": METHODS[1:]}
    )
    beta2: float = option(0.99, "adam, yogi", low=0, below=1, only_if={"method": METHODS[2:]})
    tau: float = option(
        1e-3,
        "adam, yogi: added to the root of the second moment",
        above=0,
        only_if={"method": METHODS[2:]},
    )
    average: int = option(0, "rounds that an averaged model remembers; 0: there is none", low=0)

    def __post_init__(self) -> None:
        check_options(self, "server.")

    def init(self) -> State:
        """The state before the first step."""
        return State(f"optimiser {self.method}", Moments())

    def step(
        self,
        state: State,
        model: Array,
        delta: Array,
        holds: Callable[[Array], bool] = is_finite,
    ) -> tuple[Array, State]:
        """The moved model (a new array) and the next state; `holds`: whether it can be used."""
        if state.rule != f"optimiser {self.method}":
            raise StateError(f"a state of {state.rule} was given to optimiser {self.method}")
        moments = state.memory
        assert isinstance(moments, Moments)
        with np.errstate(over="ignore", invalid="ignore"):  # it shows in the result
            moved, after = self._moved(moments, model, delta)
            if self.average:
                after.moves = moments.moves + 1
                before = moved if moments.average is None else moments.average
                after.average = before + (moved - before) / min(after.moves, self.average)
        kept = (after.first, after.second, after.average)
        if not (holds(moved) and all(is_finite(array) for array in kept if array is not None)):
            raise Diverged("after this step the model would not be finite in its type")
        state.consume()  # only now: an error leaves the state as it was
        return moved, State(state.rule, after)

    def averaged(self, state: State) -> Array | None:
        """The averaged model; None without `average` and before the first step."""
        return getattr(state.memory, "average", None)

    def _moved(self, moments: Moments, model: Array, delta: Array) -> tuple[Array, Moments]:
        if self.method == "sgd":
            step = delta if self.rate == 1 else self.rate * delta
            return model - step, Moments()
        first = delta * 0 if moments.first is None else moments.first
        if self.method == "momentum":
            first = self.beta1 * first + delta
            return model - self.rate * first, Moments(first=first)
        square = delta * delta
        second = delta * 0 if moments.second is None else moments.second
        first = self.beta1 * first + (1 - self.beta1) * delta
        if self.method == "adam":
            second = self.beta2 * second + (1 - self.beta2) * square
        else:
            signed = square * (second > square) - square * (second < square)
            second = second - (1 - self.beta2) * signed
        moved = model - self.rate * first / (second**0.5 + self.tau)
        return moved, Moments(first=first, second=second)
