"""One run on disk: records, checkpoints, resume, and a clean stop on Ctrl-C.

A checkpoint holds the simulation and the length of every record file at that moment. Resuming cuts
the files back to these lengths, so a run that was killed at any moment leaves the same records and
model, byte for byte, as one that was never interrupted.
"""

import logging
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedsteer.errors import (
    ConfigurationError,
    DamagedRun,
    DataError,
    FedsteerError,
    RoundRefused,
    TrainingFailed,
)
from fedsteer.reading import reading
from fedsteer.records import RecordWriter, Run, write_checkpoint
from fedsteer.records.files import filled, look, plain, write_json
from fedsteer.records.generations import Generations
from fedsteer.records.names import ARRAYS, FAILURE, MANIFEST, MODEL, remedy
from fedsteer.records.rows import Tracker
from fedsteer.simulate.cells import Cell
from fedsteer.simulate.loop import RoundResult, Simulation
from fedsteer.simulate.manifest import (
    environment,
    identity,
    manifest,
    refuse_another,
    refuse_other_data,
    same_run,
)
from fedsteer.simulate.world import build_world

PATIENCE = 5.0
"""Seconds to wait for a folder that is in use: workers outlive a killed parent for a moment."""


Progress = dict[str, Any]
"""The row of a run's last round, with the evaluation before it."""
Report = Callable[[Cell, Progress | None], None]
"""Called after a round of a cell, and with None when the cell is finished."""
KIND = "the manifest of this run"
GAVE_UP = (RoundRefused, TrainingFailed)
"""A run that cannot continue keeps the reason in its folder; the other runs continue."""


class Interrupted(Exception):
    """Ctrl-C or SIGTERM; the last finished round is on disk."""


@dataclass(frozen=True)
class OpenRun:
    """A run in progress in its folder: keeps results, takes checkpoints, finishes."""

    cell: Cell
    simulation: Simulation
    records: RecordWriter
    identity: dict[str, Any]  # for its checkpoints
    trackers: Sequence[Tracker] = ()

    def keep(self, result: RoundResult) -> None:
        """Write down a finished round."""
        self.records.append("rounds", result.row)
        self.records.append("timing", result.timing)
        for row in result.clients:
            self.records.append("clients", row)
        self.records.publish()
        for track in self.trackers:
            track(filled(result.row | result.timing))
        every = self.cell.experiment.run.checkpoint_every
        if self.simulation.number % every == 0 and not self.simulation.finished:
            self.save()

    def save(self) -> None:
        arrays, run = self.simulation.pack()
        self.records.save(arrays, run | {"identity": self.identity})

    def finish(self) -> None:
        simulation, folder = self.simulation, self.cell.folder
        # Only the model: the state of rules that keep an update of every client is large.
        models = {"model": simulation.model.cpu().numpy()}
        if simulation.averaged is not None:
            models["average"] = simulation.averaged.cpu().numpy()
        write_checkpoint(folder / MODEL, models, {})
        if simulation.watched:
            arrays = {
                "coordinates": np.stack(simulation.watched),
                "watched": np.array(simulation.watch),
            }
            write_checkpoint(folder / ARRAYS, arrays, {})
        seconds = self.records.seconds
        self.records.finish({"finished": True} | simulation.result() | {"seconds": seconds})
        self.records.forget()

    def fail(self, error: FedsteerError) -> None:
        """The run cannot continue; its records stay, with the reason."""
        give_up(self.cell.folder, str(error))
        self.records.close()


def give_up(folder: Path, reason: str) -> None:
    """Leave the reason in a run's folder, where it is found when all others are done."""
    write_json(folder / FAILURE, {"reason": reason})


def open_run(cell: Cell, resume: bool = False, trackers: Sequence[Tracker] = ()) -> OpenRun | None:
    """Start the run of a cell, or `resume` it if its folder holds it; None if it is finished.

    `DamagedRun` if it cannot be resumed.
    """
    found = found_run(cell, resume)
    if found.finished:
        Generations(cell.folder).forget()  # a kill may have come between the result and this
        return None
    settings = cell.experiment
    if found.resumable:  # numbers must not change midway
        with _of_this_run_alone(cell), reading(cell.folder / MANIFEST, KIND):
            engine = found.manifest["engine"]
            before = {"run.engine": engine["name"], "run.threads": engine["threads"]}
            settings = settings.changed(before)
    elif cell.torch_threads:
        settings = settings.changed({"run.threads": cell.torch_threads})
    world = build_world(settings, cell.seed, cell.rule.everybody)
    meant = found.preset_options
    spec = cell.rule if meant is None else replace(cell.rule, preset_options=meant)
    with nullcontext() if meant is None else reading(cell.folder / MANIFEST, KIND):
        rule = spec.build(cell.experiment, cell.seed, world.reported)
    simulation = Simulation(world, rule)  # a mistake shows before a folder is made
    records = RecordWriter(cell.folder, PATIENCE)
    with ExitStack() as unless_opened, _of_this_run_alone(cell):
        unless_opened.callback(records.close)
        found = found_run(cell, resume)  # another process may have written here meanwhile
        if found.finished:
            return None
        resumed = _restore(cell, simulation, records, found)
        unless_opened.pop_all()
    (cell.folder / FAILURE).unlink(missing_ok=True)
    as_asked = replace(world, experiment=cell.experiment)
    if not resumed:
        records.manifest(manifest(as_asked, cell.rule), **environment(cell.experiment.run.device))
    return OpenRun(
        cell=cell,
        simulation=simulation,
        records=records,
        identity=plain(identity(as_asked, cell.rule)),
        trackers=trackers,
    )


def _restore(cell: Cell, simulation: Simulation, records: RecordWriter, found: Run) -> bool:
    """Go back to the checkpoint in the folder; without one, to the beginning."""

    def belongs(path: Path, run: dict[str, Any]) -> None:
        if (whose := look(run, "identity")) is None:
            raise ConfigurationError(f"{path} is not a checkpoint of the simulator")
        refuse_another(path, whose, cell)
        refuse_other_data(path, whose, simulation.world)

    try:
        checkpoint = records.load(belongs)
    except ConfigurationError as error:  # the folder is this run's, but not its checkpoint
        raise DataError(str(error)) from error
    if checkpoint is None:
        records.erase()
        return False
    refuse_other_data(cell.folder, found.manifest, simulation.world)
    with reading(f"the checkpoint in {cell.folder}", "one of this run"):
        simulation.restore(checkpoint.arrays, checkpoint.run)
    if checkpoint.warning:
        logging.getLogger("fedsteer").warning("fedsteer: %s", checkpoint.warning)
    records.rewind(checkpoint.offsets)
    return True


@contextmanager
def _of_this_run_alone(cell: Cell) -> Iterator[None]:
    """What is wrong with the files of one run says nothing about other runs."""
    try:
        yield
    except DamagedRun:
        raise
    except DataError as error:
        raise DamagedRun(f"{error}; {remedy(cell.folder)}") from error


def run_cell(
    cell: Cell,
    *,
    resume: bool = False,
    watch: Callable[[Progress], None] = lambda progress: None,
    trackers: Sequence[Tracker] = (),
    stop: Callable[[], bool] | None = None,
) -> Run:
    """One run, here and now; a finished run is left as it is.

    `stop` is asked after every round and ends the run as a Ctrl-C would.
    """
    run = open_run(cell, resume, trackers)
    if run is not None:
        with closing(run.records):
            run_together([run], lambda cell, progress: watch(progress), stop)
    return Run(cell.folder)


def run_together(
    runs: Sequence[OpenRun],
    report: Callable[[Cell, Progress], None],
    stop: Callable[[], bool] | None = None,
) -> None:
    """Open runs, round by round to their end; the engine of the first trains for all."""
    left = list(runs)
    with polite(stop) as stopping:
        while True:
            for run in left:
                if run.simulation.finished:
                    run.finish()
            left = [run for run in left if not run.simulation.finished]
            if not left:
                return
            left = _one_round(left, report)
            if stopping():
                for run in left:
                    run.save()
                raise Interrupted


def _one_round(runs: Sequence[OpenRun], report: Callable[[Cell, Progress], None]) -> list[OpenRun]:
    """One round of every run; those that can continue."""
    engine = runs[0].simulation.world.engine
    try:
        asked = [run.simulation.ask() for run in runs]
        trained = engine.train_orders([order for one in asked for order in one.orders])
    except GAVE_UP as error:
        for run in runs:
            run.fail(error)
        return []
    left, first = [], 0
    for run, one in zip(runs, asked, strict=True):
        last = first + len(one.orders)
        part = trained.part(slice(first, last))
        first = last
        try:
            result = run.simulation.absorb(one, part)
        except GAVE_UP as error:  # one run that diverges must not cost the others
            run.fail(error)
            continue
        run.keep(result)
        report(run.cell, run.simulation.last | result.row)
        left.append(run)
    return left


def found_run(cell: Cell, resume: bool) -> Run:
    """What is in the cell's folder; refused unless it is nothing or this run, to be resumed."""
    found = Run(cell.folder)
    with _of_this_run_alone(cell):
        begun = found.finished or found.resumable
        if begun:
            same_run(found, cell)
        if begun and not resume:
            raise ConfigurationError(
                f"{cell.folder} already holds this run; "
                "--resume continues it, --out starts elsewhere"
            )
    return found


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
