"""`make fuzz`: tries odd inputs on every reader, and keeps those that break one.

    python -m tests.fuzz.run --minutes 10 [--only trace-csv,report] [--engine atheris]

Each reader has a process of its own and an equal share of the time. Coverage guides the inputs
where atheris is installed; Hypothesis draws them otherwise. An input that breaks a reader is made
smaller and put into `corpus/<reader>`, and the exit code is 1; the tests replay the corpus.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

CORPUS = Path(__file__).with_name("corpus")
PATIENCE = 240  # seconds to import all, and to be late, before a process counts as stuck
SHRINKING = 5.0  # seconds for each find
LONGEST = 16_384  # bytes of an input


def found_before(name: str) -> list[bytes]:
    """The inputs that once broke a reader."""
    return [path.read_bytes() for path in sorted((CORPUS / name).glob("*"))]


class Trial:
    """One reader under many inputs."""

    def __init__(self, name: str, seconds: float, folder: Path) -> None:
        from tests.fuzz.readers import READERS

        self.name, self.reader, self.folder = name, READERS[name], folder
        self.deadline = time.monotonic() + seconds
        self.tried = self.accepted = self.refused = 0
        self.finds: dict[str, str] = {}  # where -> what
        self.seeds = [*self.reader.seeds(), *found_before(name)]

    @property
    def over(self) -> bool:
        return time.monotonic() > self.deadline

    def attempt(self, data: bytes) -> None:
        from tests.fuzz.judge import Broken, Unfit, judge

        (self.folder / "input").write_bytes(data)  # for the parent, if nothing ends it
        with suppress(Unfit):
            try:
                refused = bool(judge(self.reader, data, self.folder / "it"))
            except Broken as broken:
                if broken.where not in self.finds:
                    self.finds[broken.where] = str(broken)
                    keep(self.name, self._smaller(data, broken.where))
            else:
                self.refused += refused
                self.accepted += not refused
            self.tried += 1

    def _smaller(self, data: bytes, where: str) -> bytes:
        """The input without what the find does not need, as far as the time goes."""
        until, step = time.monotonic() + SHRINKING, max(1, len(data) // 2)
        while step and time.monotonic() < until:
            for at in range(0, len(data), step):
                less = data[:at] + data[at + step :]
                if time.monotonic() < until and less != data and self._breaks(less, where):
                    data = less
                    break
            else:
                step //= 2
        return data

    def _breaks(self, data: bytes, where: str) -> bool:
        from tests.fuzz.judge import Broken, Unfit, judge

        try:
            judge(self.reader, data, self.folder / "it")
        except Broken as broken:
            return broken.where == where
        except Unfit:
            pass
        return False

    def finish(self) -> None:
        """Tell the parent, and end at once: libFuzzer does not return."""
        told = {key: getattr(self, key) for key in ("tried", "refused", "accepted", "finds")}
        print(json.dumps(told), flush=True)
        os._exit(0)


def keep(name: str, data: bytes) -> None:
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / sha256(data).hexdigest()[:12]).write_bytes(data)


def guided(trial: Trial) -> None:
    """atheris: inputs that reach new lines are changed further."""
    import atheris

    def attempt(data: bytes) -> None:
        trial.attempt(data)
        if trial.over:
            trial.finish()

    def change(data: bytes, most: int, seed: int) -> bytes:
        random = Random(seed)
        if trial.reader.document or random.random() < 0.3:
            with suppress(ValueError, RecursionError):  # not a document
                return trial.reader.mutated(data, random)[:most]
        return bytes(atheris.Mutate(data, most))

    with tempfile.TemporaryDirectory() as seeds:
        for place, seed in enumerate(trial.seeds):
            Path(seeds, str(place)).write_bytes(seed)
        flags = ["-verbosity=0", "-rss_limit_mb=0", "-timeout=3600", f"-max_len={LONGEST}"]
        atheris.Setup(["fuzz", seeds, *flags], attempt, custom_mutator=change)
        atheris.Fuzz()


def drawn(trial: Trial) -> None:
    """Hypothesis: valid inputs, changed at random a few times over."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    @settings(
        max_examples=100,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(trial.seeds), st.integers(1, 4), st.randoms(use_true_random=True))
    def attempt(data: bytes, times: int, random: Random) -> None:
        for _ in range(times):
            with suppress(ValueError, RecursionError):
                data = trial.reader.mutated(data, random)[:LONGEST]
        if not trial.over:
            trial.attempt(data)

    while not trial.over:
        attempt()
    trial.finish()


def child(name: str, seconds: float, engine: str, folder: Path) -> None:
    if engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=["fedsteer", "tomllib"]):
            import tests.fuzz.readers  # noqa: F401
    warnings.simplefilter("error")  # a warning is a second line
    {"atheris": guided, "hypothesis": drawn}[engine](Trial(name, seconds, folder))


def in_a_process(name: str, seconds: float, engine: str) -> dict[str, Any]:
    """What a process that does nothing but try this reader found."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--child", name, "--engine", engine]
    with tempfile.TemporaryDirectory() as folder:
        more = ["--minutes", str(seconds / 60), "--folder", folder]
        process = subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True,
                                   stderr=subprocess.PIPE)  # fmt: skip
        try:
            out, err = process.communicate(timeout=seconds + PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            keep(name, Path(folder, "input").read_bytes())
            err = "nothing ended it"
        with suppress(IndexError, ValueError):
            return dict(json.loads(out.splitlines()[-1]))
    last = (err.strip() or "no reason given").splitlines()[-1]
    return {"tried": 0, "refused": 0, "accepted": 0, "finds": {"the process": last}}


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="for all readers together")
    parser.add_argument("--only", help="readers, with commas between")
    auto = "atheris" if find_spec("atheris") else "hypothesis"
    parser.add_argument("--engine", choices=("atheris", "hypothesis"), default=auto)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, 60 * options.minutes, options.engine, options.folder)
    from tests.fuzz.readers import READERS

    names = options.only.split(",") if options.only else list(READERS)
    print(f"{len(names)} readers, {options.minutes:g} minutes, {options.engine}")
    print(f"{'reader':<18}{'tried':>10}{'refused':>10}{'accepted':>10}{'failures':>10}")
    failures = 0
    for name in names:
        told = in_a_process(name, 60 * options.minutes / len(names), options.engine)
        counts = [told[key] for key in ("tried", "refused", "accepted")]
        print(f"{name:<18}" + "".join(f"{n:>10,}" for n in (*counts, len(told["finds"]))))
        for problem in told["finds"].values():
            print(f"    {problem}", flush=True)
        failures += len(told["finds"])
    if failures:
        print(f"{failures} failures; the inputs are in {CORPUS}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
