"""The strategy for a rule of the table, with the options that the simulator gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from fedsteer.flower import RuleStrategy, make_strategy
from fedsteer.simulate.cells import RuleSpec
from fedsteer.simulate.world import World


def strategy_of(world: World, spec: RuleSpec, config: Mapping[str, Any]) -> RuleStrategy:
    """`config` may add keys "fedsteer-..."."""
    rule = spec.build(world.experiment, world.seed, world.reported).options
    own = {entry.name: getattr(rule, entry.name) for entry in fields(rule)}
    del own["bad_clients"]  # a federation drops them
    server = world.experiment.server
    if own["probabilities"] == "known" and world.reported is not None:
        own["known_probabilities"] = dict(enumerate(world.reported.tolist()))
    return make_strategy(
        spec.name,
        config,
        preset=spec.preset,
        population=dict(enumerate(world.sizes.tolist())),
        min_available_nodes=len(world.sizes),
        fraction_evaluate=0.0,
        server_rate=server.rate,
        server_optimiser=server.method,
        server_average=server.average,
        experiment=world.experiment.name,
        **own,
    )
