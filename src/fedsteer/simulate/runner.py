"""One run on disk: records, checkpoints, resume, and a clean stop on Ctrl-C.

A checkpoint holds the simulation and how long every record file was when it was taken. Resuming
cuts the files back to that and goes on: after a kill at any moment the finished run leaves the
same records and model, byte for byte, as one that was never interrupted.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

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
from fedsteer.simulate.entries import Entry
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.happened import Happened
from fedsteer.simulate.loop import Simulation
from fedsteer.simulate.manifest import environment, manifest, same_data, same_run
from fedsteer.simulate.world import build_world

PATIENCE = 5.0
"""Seconds that a folder may still be in use: workers outlive a parent that was killed, not long."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands after a round."""

    trained: int
    rounds: int
    number: int
    phase: str
    active: int
    accuracy: float | None


Watch = Callable[[Progress], None]


class Interrupted(Exception):
    """Ctrl-C or a polite kill; the last finished round is on disk."""


class OpenRun:
    """A run that is under way in its folder: keeps what happens, checkpoints, comes to an end.

    Opening a folder that holds the same run goes on with it if `resume`, and is refused otherwise;
    `simulation` is None if it was finished already. `threads` overrides the static rule without
    being part of the experiment, for runs that another machine decided about.
    """

    def __init__(
        self,
        experiment: Experiment,
        entry: Entry,
        seed: int,
        folder: Path,
        resume: bool = False,
        threads: int = 0,
    ) -> None:
        self.folder, self.every = folder, experiment.run.checkpoint_every
        self.simulation: Simulation | None = None
        found = found_run(experiment, entry, seed, folder, resume)
        if found.finished:
            return

        def simulation(settings: Experiment) -> Simulation:
            world = build_world(settings, seed, entry.everybody)
            return Simulation(world, entry.build(experiment, seed, world.reported))

        settings = _as_before(experiment, found, threads)
        self.simulation = simulation(settings)
        self.records = RecordWriter(folder)
        try:
            self.records.claim(PATIENCE)
            # Another process may have been at work here while this one waited.
            found = found_run(experiment, entry, seed, folder, resume)
            if found.finished:
                self.close()
                self.simulation = None
                return
            if (now := _as_before(experiment, found, threads)) != settings:
                self.simulation = simulation(now)
            if (folder / CHECKPOINT).exists():
                same_data(found, self.simulation.world)
            resumed = self._restore()
            found.rows("rounds")  # raises where they are damaged: now, not after all rounds
        except BaseException:
            self.records.close()
            raise
        (folder / FAILURE).unlink(missing_ok=True)
        if not resumed:
            world = replace(self.simulation.world, experiment=experiment)
            self.records.manifest(manifest(world, entry), **environment(experiment.run.device))

    def keep(self, happened: Happened) -> None:
        """One finished round."""
        assert self.simulation is not None
        self.records.append("rounds", happened.row)
        self.records.append("timing", happened.timing)
        for row in happened.clients:
            self.records.append("clients", row)
        if self.simulation.number % self.every == 0 and not self.simulation.finished:
            self.save()

    def save(self) -> None:
        """A checkpoint of this very moment."""
        assert self.simulation is not None
        self.records.save(*self.simulation.pack())

    def finish(self) -> None:
        """All rounds are done."""
        simulation = self.simulation
        assert simulation is not None
        # The state of rules that keep an update of every client is large, and used up.
        write_checkpoint(self.folder / MODEL, {"model": simulation.model.cpu().numpy()}, {})
        if simulation.watched:
            arrays = {
                "coordinates": np.stack(simulation.watched),
                "watched": np.array(simulation.watch),
            }
            write_checkpoint(self.folder / ARRAYS, arrays, {})
        seconds = self.records.seconds
        self.records.finish({"finished": True} | simulation.result() | {"seconds": seconds})
        self.close()
        (self.folder / CHECKPOINT).unlink(missing_ok=True)

    def fail(self, error: FedsteerError) -> None:
        """The run cannot go on; its records so far stay, and why."""
        write_json(self.folder / FAILURE, {"reason": str(error)})
        self.close()

    def close(self) -> None:
        """Let go of the files."""
        if self.simulation is not None:
            self.records.close()

    def progress(self, happened: Happened) -> Progress:
        """Where the run stands after this round."""
        assert self.simulation is not None
        return Progress(
            trained=self.simulation.trained,
            rounds=self.simulation.world.experiment.run.rounds,
            number=self.simulation.number,
            phase=happened.told.phase,
            active=len(happened.told.clients),
            accuracy=self.simulation.last.get("accuracy"),
        )

    def _restore(self) -> bool:
        """Go back to the checkpoint, if there is one; else to an empty folder."""
        assert self.simulation is not None
        found = self.records.load()
        if found is None:
            self.records.erase()
            return False
        try:
            self.simulation.restore(found.arrays, found.run)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"{self.folder / CHECKPOINT} is damaged: {error!r}") from error
        self.records.rewind(found.offsets)
        return True


def run_entry(
    experiment: Experiment,
    entry: Entry,
    seed: int,
    folder: Path,
    *,
    resume: bool = False,
    watch: Watch | None = None,
    trackers: list[Callable[[Happened], None]] | None = None,
    stop: Callable[[], bool] | None = None,
    threads: int = 0,
) -> Run:
    """Run one entry under one seed into `folder`; a finished run is left as it is.

    `stop` is asked after every round, and ends the run as a Ctrl-C would.
    """
    run = OpenRun(experiment, entry, seed, folder, resume, threads)
    if run.simulation is None:
        return Run(folder)
    try:
        with polite() as stopping:
            for happened in run.simulation.rounds():
                run.keep(happened)
                for track in trackers or []:
                    track(happened)
                if watch is not None:
                    watch(run.progress(happened))
                if stopping() or (stop is not None and stop()):
                    run.save()
                    raise Interrupted
            run.finish()
    except (RoundRefused, TrainingFailed) as error:
        run.fail(error)
        raise
    finally:
        run.close()
    return Run(folder)


def found_run(experiment: Experiment, entry: Entry, seed: int, folder: Path, resume: bool) -> Run:
    """What is in the folder, if it may be gone on with: nothing, or this very run."""
    found = Run(folder)
    if found.finished or (folder / CHECKPOINT).exists():
        same_run(found, experiment, entry, seed)
        if not resume:
            raise ConfigurationError(
                f"{folder} already holds this run; --resume goes on with it, --out starts elsewhere"
            )
    return found


def _as_before(experiment: Experiment, found: Run, threads: int) -> Experiment:
    """Engine and threads of the run that is resumed, so that numbers do not change midway."""
    if not (found.folder / CHECKPOINT).exists():
        return experiment.changed({"run.threads": threads}) if threads else experiment
    engine = found.manifest["engine"]
    return experiment.changed({"run.engine": engine["name"], "run.threads": engine["threads"]})


@contextmanager
def polite() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM finish the round in hand first; a second Ctrl-C does not wait."""
    caught: list[int] = []

    def remember(number: int, frame: object) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    try:
        before = {
            number: signal.signal(number, remember) for number in (signal.SIGINT, signal.SIGTERM)
        }
    except ValueError:  # not in the main thread: whoever runs us decides about signals
        yield lambda: False
        return
    try:
        yield lambda: bool(caught)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
