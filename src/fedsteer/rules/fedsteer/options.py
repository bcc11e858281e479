"""Options of FedSteer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral

from fedsteer.errors import ConfigurationError, RoundRefused
from fedsteer.options import listed, numbers_by_client, option
from fedsteer.rules.options import WarmUpOptions
from fedsteer.steering.ids import ClientId, plain_id

AFTER_VISITS = ("intervals", "shrunk")
"""Estimated from earlier visits, of which a warm-up has none."""
DRIFT = 0.25
"""alpha, if clients can correct their gradients and nothing else was chosen."""


@dataclass(frozen=True, kw_only=True)
class FedSteerOptions(WarmUpOptions):
    """Options of FedSteer; the first ones say who forms the core set."""

    core_set: tuple[ClientId, ...] | None = option(None, "X: these clients, in column order")
    core_size: int = option(10, "k: columns of the basis, if core_set is not given", low=1)
    select: str = option(
        "search",
        "X: found in a warm-up, or by who comes first, by `frequencies`, or at random",
        choices=("search", "online", "frequent", "random"),
    )
    frequencies: Mapping[ClientId, float] | None = option(
        None, "for select='frequent': how often each client takes part, {id: p}"
    )
    swaps: int = option(5, "I_max: most swaps per search", low=0)
    candidates: int | None = option(None, "N_sub: random swap-in candidates per cycle", low=1)
    objective: str = option(
        "size",
        "w_i of the search: d_i; d_i^2 (1-p_i)/p_i; or d_i^2/p_i with unit targets",
        choices=("size", "variance", "authors"),
    )
    search_columns: tuple[int, int] | None = option(
        None, "search on these model weights only, (first, end); authors: the last bias"
    )
    warm_start: str = option(
        "updates",
        "columns when training begins: updates of the warm-up, or none",
        choices=("updates", "empty"),
    )
    reselect_every: int | None = option(None, "rounds between two searches in training", low=1)
    renew_after: int | None = option(
        None, "rounds after which an absent owner's column goes to a client of the round", low=1
    )
    sketch_width: int | None = option(
        None, "numbers kept per client for reselect_every; default 10 k", low=1
    )
    ridge: float = option(0.5, "lambda: keeps coordinates small and the system solvable", low=0.0)
    refresh: str = option(
        "after", "renew coordinates after or before the aggregation", choices=("after", "before")
    )
    refresh_all_every: int | None = option(
        None, "rounds after which all reachable clients renew their coordinates", low=1
    )
    coordinates: str = option(
        "ridge", "ridge, or own_scale |h_i| on the client's own column", choices=("ridge", "own")
    )
    own_scale: float = option(1.0, "beta of coordinates='own': 1 is FedVARP", low=0.0)
    magnitude: str = option(
        "fixed",
        "an estimate keeps its size, or follows that of the columns",
        choices=("fixed", "follow"),
    )
    basis: str = option(
        "unit", "columns h/|h|, or h/k as in the authors' code", choices=("unit", "mean")
    )
    drift: str | float = option(
        0.0,
        "alpha: share of their drift that clients take out; auto: .25 with local_rate, else 0",
        choices=("auto",),
        low=0.0,
        high=1.0,
    )
    local_rate: float | None = option(
        None, "eta of clients that add corrections, over 1 - momentum if they have any", above=0.0
    )
    newcomers: str = option(
        "zero",
        "what clients that never came are expected to send: zero, or a learnt share of the mean",
        choices=("zero", "learnt"),
    )
    solver: str = option("cholesky", "of the k x k system", choices=("cholesky", "gradient"))
    cache: str | None = option(
        None,
        "type of the stored columns; default: that of the updates",
        choices=("float16", "bfloat16", "float32", "float64"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.search_columns is not None:
            columns = listed("search_columns", self.search_columns, "two whole numbers: first, end")
            whole = [isinstance(column, Integral) for column in columns]
            if whole != [True, True]:
                raise ConfigurationError(
                    f"search_columns must be a pair: first, end; not {self.search_columns!r}"
                )
            object.__setattr__(self, "search_columns", tuple(map(int, columns)))
        if self.core_set is not None:
            try:
                owners = tuple(map(plain_id, listed("core_set", self.core_set, "clients")))
            except RoundRefused as refused:
                raise ConfigurationError(f"core_set: {refused}") from None
            if not owners or len(set(owners)) < len(owners):
                raise ConfigurationError("core_set must name at least one client, each once")
            object.__setattr__(self, "core_set", owners)
        if self.warms_up and self.objective != "size" and self.probabilities in AFTER_VISITS:
            raise ConfigurationError(
                f"objective={self.objective!r} needs p_i in the warm-up, of which "
                f"probabilities={self.probabilities!r} knows nothing by then; 'visits' does"
            )
        if self.frequencies is not None:
            numbers_by_client("frequencies", self.frequencies, low=0.0)
        if self.core_set is None and self.select == "frequent" and not self.frequencies:
            raise ConfigurationError("select='frequent' needs frequencies={client: p, ...}")
        if self.drift not in (0.0, "auto") and self.local_rate is None:
            raise ConfigurationError("drift needs local_rate, and clients that add the correction")
        if self.alpha and (self.refresh == "before" or self.coordinates == "own"):
            raise ConfigurationError('drift needs refresh="after" and coordinates="ridge"')
        if self.basis == "mean" and self.magnitude == "follow":
            raise ConfigurationError("magnitude='follow' needs basis='unit'")
        if self.coordinates == "own" and (self.core_set is None or self.reselect_every):
            raise ConfigurationError(
                "coordinates='own' needs core_set, and no reselect_every: a client that takes "
                "over a column has no coordinate on it until its next visit"
            )

    @property
    def alpha(self) -> float:
        """The share of their drift that clients take out of their gradients."""
        if isinstance(self.drift, str):
            return 0.0 if self.local_rate is None else DRIFT
        return self.drift

    @property
    def warms_up(self) -> bool:
        return self.core_set is None and self.select == "search"

    @property
    def width(self) -> int:
        """Numbers per sketch."""
        return self.sketch_width or 10 * len(self.core_set or range(self.core_size))
