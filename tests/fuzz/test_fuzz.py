"""Readers under inputs that nobody meant: those that once broke one, and a few new ones.

`make fuzz MINUTES=10` tries many more and adds to the corpus what it finds.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.judge import Unfit, judge
from tests.fuzz.readers import READERS
from tests.fuzz.run import found_before

TRIES = 12


@pytest.mark.parametrize("name", READERS)
def test_valid_inputs_are_accepted(name: str, tmp_path: Path) -> None:
    for seed in READERS[name].seeds():
        assert judge(READERS[name], seed, tmp_path / "it") == ""


@pytest.mark.parametrize("name", READERS)
def test_what_once_broke_a_reader(name: str, tmp_path: Path) -> None:
    for data in found_before(name):
        judge(READERS[name], data, tmp_path / "it")


@pytest.mark.parametrize("name", READERS)
def test_a_few_new_inputs(name: str, tmp_path: Path) -> None:
    reader, random = READERS[name], Random(name)
    seeds = reader.seeds()
    for _ in range(TRIES):
        with suppress(Unfit):
            judge(reader, reader.mutated(random.choice(seeds), random), tmp_path / "it")
