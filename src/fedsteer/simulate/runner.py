"""One run on disk: records, checkpoints, resume, and a clean stop on Ctrl-C.

A checkpoint holds the simulation and the length of every record file at that moment. Resuming cuts
the files back to these lengths, so a run that was killed at any moment leaves the same records and
model, byte for byte, as one that was never interrupted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from fedsteer.errors import (
    ConfigurationError,
    DataError,
    FedsteerError,
    RoundRefused,
    TrainingFailed,
)
from fedsteer.records import RecordWriter, Run, write_checkpoint
from fedsteer.records.files import write_json
from fedsteer.records.names import ARRAYS, CHECKPOINT, FAILURE, MODEL
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.loop import RoundResult, Simulation
from fedsteer.simulate.manifest import environment, manifest, same_data, same_run
from fedsteer.simulate.world import build_world

PATIENCE = 5.0
"""Seconds to wait for a folder that is in use: workers outlive a killed parent for a moment."""


@dataclass(frozen=True)
class Progress:
    """How far a run is after a round."""

    trained: int  # training rounds so far ...
    rounds: int  # ... of so many
    number: int  # of the round, warm-up included
    phase: str
    active: int  # clients
    accuracy: float | None


Watch = Callable[[Progress], None]
"""Called after a round."""
Report = Callable[[Cell, Progress | None], None]
"""Called after a round of a cell, and with None when the cell is finished."""
GAVE_UP = (RoundRefused, TrainingFailed)
"""A run that cannot continue keeps the reason in its folder; the other runs go on."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM; the last finished round is on disk."""


class OpenRun:
    """A run in progress in its folder: keeps results, takes checkpoints, finishes."""

    def __init__(self, cell: Cell, simulation: Simulation, records: RecordWriter) -> None:
        self.cell, self.simulation, self.records = cell, simulation, records

    def keep(self, result: RoundResult) -> None:
        """Write down a finished round."""
        self.records.append("rounds", result.row)
        self.records.append("timing", result.timing)
        for row in result.clients:
            self.records.append("clients", row)
        every = self.cell.experiment.run.checkpoint_every
        if self.simulation.number % every == 0 and not self.simulation.finished:
            self.save()

    def save(self) -> None:
        """Take a checkpoint."""
        self.records.save(*self.simulation.pack())

    def finish(self) -> None:
        """All rounds are done."""
        simulation, folder = self.simulation, self.cell.folder
        # Only the model: the state of rules that keep an update of every client is large.
        write_checkpoint(folder / MODEL, {"model": simulation.model.cpu().numpy()}, {})
        if simulation.watched:
            arrays = {
                "coordinates": np.stack(simulation.watched),
                "watched": np.array(simulation.watch),
            }
            write_checkpoint(folder / ARRAYS, arrays, {})
        seconds = self.records.seconds
        self.records.finish({"finished": True} | simulation.result() | {"seconds": seconds})
        self.records.close()
        (folder / CHECKPOINT).unlink(missing_ok=True)

    def fail(self, error: FedsteerError) -> None:
        """The run cannot continue; its records stay, with the reason."""
        write_json(self.cell.folder / FAILURE, {"reason": str(error)})
        self.records.close()

    def progress(self, result: RoundResult) -> Progress:
        """How far the run is after this round."""
        return Progress(
            trained=self.simulation.trained,
            rounds=self.simulation.world.experiment.run.rounds,
            number=self.simulation.number,
            phase=result.diagnostics.phase,
            active=len(result.diagnostics.clients),
            accuracy=self.simulation.last.get("accuracy"),
        )


def open_run(cell: Cell, resume: bool = False, torch_threads: int = 0) -> OpenRun | None:
    """Start the run of a cell, or `resume` it if its folder holds it; None if it is finished.

    `torch_threads` overrides the static rule without being part of the experiment, for runs that
    another machine decided about.
    """
    found = found_run(cell, resume)
    if found.finished:
        return None
    settings = _as_before(cell.experiment, found, torch_threads)
    simulation = _simulation(cell, settings)  # a mistake shows before a folder is made
    records = RecordWriter(cell.folder, PATIENCE)
    try:
        found = found_run(cell, resume)  # another process may have written here meanwhile
        if found.finished:
            records.close()
            return None
        if (now := _as_before(cell.experiment, found, torch_threads)) != settings:
            simulation = _simulation(cell, now)
        checkpoint = records.load()
        if checkpoint is None:
            records.erase()
        else:
            same_data(found, simulation.world)
            try:
                simulation.restore(checkpoint.arrays, checkpoint.run)
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise DataError(f"{cell.folder / CHECKPOINT} is damaged: {error!r}") from error
            records.rewind(checkpoint.offsets)
        found.rows("rounds")  # raises if they are damaged: now, not after all rounds
    except BaseException:
        records.close()
        raise
    (cell.folder / FAILURE).unlink(missing_ok=True)
    if checkpoint is None:
        world = replace(simulation.world, experiment=cell.experiment)
        records.manifest(manifest(world, cell.rule), **environment(cell.experiment.run.device))
    return OpenRun(cell, simulation, records)


def _simulation(cell: Cell, settings: Experiment) -> Simulation:
    world = build_world(settings, cell.seed, cell.rule.everybody)
    return Simulation(world, cell.rule.build(cell.experiment, cell.seed, world.reported))


def run_cell(
    cell: Cell,
    *,
    resume: bool = False,
    watch: Watch = lambda progress: None,
    trackers: Sequence[Callable[[RoundResult], None]] = (),
    stop: Callable[[], bool] | None = None,
    torch_threads: int = 0,
) -> Run:
    """One run, here and now; a finished run is left as it is.

    `stop` is asked after every round and ends the run as a Ctrl-C would.
    """
    run = open_run(cell, resume, torch_threads)
    if run is None:
        return Run(cell.folder)
    try:
        with polite(stop) as stopping:
            for result in run.simulation.rounds():
                run.keep(result)
                for track in trackers:
                    track(result)
                watch(run.progress(result))
                if stopping():
                    run.save()
                    raise Interrupted
            run.finish()
    except GAVE_UP as error:
        run.fail(error)
        raise
    finally:
        run.records.close()
    return Run(cell.folder)


def found_run(cell: Cell, resume: bool) -> Run:
    """What is in the cell's folder; refused unless it is nothing or this run, to be resumed."""
    found = Run(cell.folder)
    if found.finished or (cell.folder / CHECKPOINT).exists():
        same_run(found, cell)
        if not resume:
            raise ConfigurationError(
                f"{cell.folder} already holds this run; "
                "--resume continues it, --out starts elsewhere"
            )
    return found


def _as_before(experiment: Experiment, found: Run, torch_threads: int) -> Experiment:
    """With the engine and threads of the run to resume, so numbers do not change midway."""
    if not (found.folder / CHECKPOINT).exists():
        return experiment.changed({"run.threads": torch_threads}) if torch_threads else experiment
    engine = found.manifest["engine"]
    return experiment.changed({"run.engine": engine["name"], "run.threads": engine["threads"]})


@contextmanager
def polite(stop: Callable[[], bool] | None = None) -> Iterator[Callable[[], bool]]:
    """Whether to stop after this round, because of Ctrl-C, SIGTERM or `stop`.

    A second Ctrl-C does not wait.
    """
    caught: list[int] = []

    def remember(number: int, frame: object) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    with ExitStack() as handlers:
        with suppress(ValueError):  # not in the main thread, which handles signals
            for number in (signal.SIGINT, signal.SIGTERM):
                before = signal.signal(number, remember)
                handlers.callback(signal.signal, number, before)
        yield lambda: bool(caught) or (stop is not None and stop())
