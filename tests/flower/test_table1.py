"""The app for the paper's Table 1 trains the same clients on the same batches as the simulator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedsteer.records import Run
from fedsteer.simulate.cells import Cell, find_rule
from fedsteer.simulate.experiment_files import load_experiment, parse_settings
from fedsteer.simulate.runner import run_cell
from tests.flower.fake import FakeGrid

APP = Path(__file__).resolve().parents[2] / "examples" / "flower-table1"
SETTINGS = "run.threads=1 run.rounds=6 run.evaluate_every=2 partition.clients=20"
CLIENTS = 20


@pytest.mark.parametrize(
    "rule", ["fedavg", "fedsteer:practical", "fedvarp", "scaffold", "fedprox", "full"]
)
def test_the_app_trains_as_the_simulator_does(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(APP)
    from flowertable1 import client_app, server_app  # type: ignore[import-not-found]

    config: dict[str, Any] = {"experiment": "digits", "settings": SETTINGS, "rule": rule}
    config |= {"seed": 1, "round-timeout": 60.0, "fedsteer-folder": str(tmp_path / "flower")}

    def client(number: int) -> Any:
        own = SimpleNamespace(run_config=config, node_config={"partition-id": number})
        return lambda message: client_app.train(message, own)

    grid = FakeGrid({100 + number: client(number) for number in range(CLIENTS)})
    server_app.main(grid, SimpleNamespace(run_config=config))

    experiment = load_experiment("digits", parse_settings(SETTINGS.split()))
    spec = find_rule(experiment, rule)
    run_cell(Cell(experiment=experiment, rule=spec, seed=1, folder=tmp_path / "simulator"))
    flower, simulator = (Run(tmp_path / name).rounds for name in ("flower", "simulator"))
    assert len(flower) == len(simulator) == 6
    for there, here in zip(flower, simulator, strict=True):
        assert there["active"] == here["active"] and there["fresh"] == here["fresh"]
        assert there["delta_norm"] == pytest.approx(here["delta_norm"], rel=1e-3)
        assert there.get("accuracy") == pytest.approx(here.get("accuracy"), abs=2e-3)
    assert Run(tmp_path / "flower").finished
