"""Many runs round by round together, the clients of all of them trained at once.

On a GPU ten clients of one run leave the chip idle; ten clients each of a hundred runs do not. Runs
may differ in rule, seed, partition and participation; network, images and local training must be
the same. Every run keeps its own records and checkpoints, as if it had been alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from fedsteer.errors import ConfigurationError, RoundRefused, TrainingFailed
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.loop import Asked, Simulation
from fedsteer.simulate.runner import Interrupted, OpenRun, Progress, polite
from fedsteer.training import Trained
from fedsteer.training.orders import Order, Together

Watch = Callable[[int, Progress], None]
"""Called with the place of a run and where it stands."""


def run_together(
    runs: Sequence[OpenRun], watch: Watch | None = None, stop: Callable[[], bool] | None = None
) -> None:
    """All open runs to their end; `Interrupted` after a clean stop, which `stop` can ask for."""
    open_runs = {place: run for place, run in enumerate(runs) if run.simulation is not None}
    if not open_runs:
        return
    try:
        engine = _shared_engine([_simulation(run) for run in open_runs.values()])
        with polite() as stopping:
            while open_runs:
                _one_round(engine, open_runs, watch)
                for place in [p for p, run in open_runs.items() if _simulation(run).finished]:
                    open_runs.pop(place).finish()
                if (stopping() or (stop is not None and stop())) and open_runs:
                    for run in open_runs.values():
                        run.save()
                    raise Interrupted
    finally:
        for run in open_runs.values():
            run.close()


def alike(one: Experiment, other: Experiment) -> bool:
    """Whether clients of the two do the same kind of work."""

    def kind(experiment: Experiment) -> tuple[object, ...]:
        run = experiment.run
        work = (experiment.data, experiment.model, experiment.training)
        return *work, run.device, run.precision

    return kind(one) == kind(other)


def batches_that_fit(dim: int, clients: int, count: int, room: int) -> int:
    """How many of `count` runs to take at once where each may hold an update of every client.

    If not all fit, they are taken in batches of about equal size.
    """
    most = max(1, room // (4 * dim * (clients + 8)))
    batches = -(-count // most)
    return max(1, -(-count // max(1, batches)))


def _one_round(engine: Together, runs: dict[int, OpenRun], watch: Watch | None) -> None:
    asked: dict[int, Asked] = {}
    orders: list[Order] = []
    for place, run in runs.items():
        simulation = _simulation(run)
        asked[place] = question = simulation.ask()
        own = simulation.world.engine
        assert isinstance(own, Together)
        orders += own.orders(simulation.model, question.jobs, question.drawn, question.proximal)
    try:
        trained = engine.carry_out(orders, _simulation(next(iter(runs.values()))).model)
    except torch.OutOfMemoryError as error:
        raise TrainingFailed(
            f"the clients of {len(runs)} runs at once need more memory than the GPU has "
            f"({str(error).splitlines()[0]}); fewer --jobs or --seeds need less"
        ) from error
    first = 0
    for place, run in list(runs.items()):
        last = first + len(asked[place].jobs)
        part = Trained(
            trained.updates[first:last], trained.steps[first:last], trained.losses[first:last]
        )
        first = last
        try:
            happened = _simulation(run).absorb(asked[place], part)
        except RoundRefused as error:  # one run that diverges must not cost the others
            runs.pop(place).fail(error)
            continue
        run.keep(happened)
        if watch is not None:
            watch(place, run.progress(happened))


def _shared_engine(simulations: Sequence[Simulation]) -> Together:
    """Any of their engines, if all of them do the same kind of work."""
    first = simulations[0].world
    for simulation in simulations:
        world = simulation.world
        if not isinstance(world.engine, Together):
            raise ConfigurationError("lock-step needs run.engine=stacked or captured")
        if not alike(world.experiment, first.experiment):
            raise ConfigurationError("runs in lock-step must share data, model and training")
        if world.engine.name != first.engine.name:
            raise ConfigurationError(
                f"some of these runs began with the engine {world.engine.name!r}, others have "
                f"{first.engine.name!r}: --set run.engine= chooses one for all that are new"
            )
    assert isinstance(first.engine, Together)
    return first.engine


def _simulation(run: OpenRun) -> Simulation:
    assert run.simulation is not None
    return run.simulation
