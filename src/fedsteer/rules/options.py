"""The options that all rules share."""

from __future__ import annotations

from dataclasses import dataclass

from fedsteer.options import check_options, option

LENGTH_OPTIONS = ("norm_bound", "step")
"""Options about the length of a step, which a rule that moves the model itself cannot have."""

FREE_OPTIONS = ("max_weight", "nobody_fresh", "bad_clients", "seed")
"""Of the options of every rule, those that may change while its state is in use."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of every rule."""

    probabilities: str | float = option(
        "known",
        "p_i: known with each round, estimated, or the fraction that the server samples",
        choices=("known", "intervals", "visits", "shrunk"),
        above=0.0,
        high=1.0,
    )
    interval_cap: int = option(50, "longest interval that probabilities='intervals' counts", low=1)
    max_weight: float | None = option(
        None, "cap on the weight d_i/p_i of a client; biased whenever it acts", above=0.0
    )
    norm_bound: float | None = option(
        None, "rho: the aggregate is at most rho times the mean norm of updates", above=0.0
    )
    update_bound: float | None = option(
        None, "updates this many times as long as the usual ones are shortened", above=0.0
    )
    size_bound: float | None = option(
        None,
        "data points grow at most by this factor per visit; one odd report is left out",
        low=1.0,
    )
    leave_after: float | None = option(
        None, "usual intervals of silence after which a client leaves, until it returns", low=1.0
    )
    discount_estimates: bool = option(
        False, "estimates count less while far fewer clients come than 'shrunk' predicts"
    )
    step: str = option(
        "fixed",
        "aligned: steps grow while aggregates agree with earlier ones, and shrink otherwise",
        choices=("fixed", "aligned"),
    )
    nobody_fresh: str = option(
        "move", "in rounds without a fresh update: move the model or not", choices=("move", "hold")
    )
    bad_clients: str = option(
        "refuse",
        "if a client's input is unusable: refuse the round, or drop the client",
        choices=("refuse", "drop"),
    )
    seed: int = option(0, "seed of the rule's own random draws", low=0)

    def __post_init__(self) -> None:
        check_options(self)

    @property
    def warms_up(self) -> bool:
        """Whether training begins with a warm-up that waits for all clients."""
        return False


@dataclass(frozen=True, kw_only=True)
class WarmUpOptions(Options):
    """Options of rules that can begin with the paper's warm-up."""

    cycles: int = option(5, "T0: selection cycles of the warm-up", low=1)
    reinitialise: bool = option(True, "start the model anew after the warm-up, as the paper does")
