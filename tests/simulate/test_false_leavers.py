"""In no setting of the matrix does an honest client count as gone, or an estimate count less."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedsteer import Round, make_rule
from fedsteer.simulate.experiment import Experiment
from fedsteer.simulate.paper_table import load_paper_table

SETTINGS = load_paper_table("matrix").experiments
DIM = 2


@pytest.mark.parametrize("experiment", SETTINGS, ids=[setting.name for setting in SETTINGS])
def test_no_honest_client_leaves(experiment: Experiment) -> None:
    participation, clients = experiment.participation, experiment.partition.clients
    if not all(Path(file).exists() for file in participation.files().values()):
        pytest.skip("needs the trace")
    process = participation.process(clients, seed=1)
    rule = make_rule("mifa", preset="practical")
    state = rule.init(DIM, [1.0] * clients)
    for number in range(1, experiment.run.rounds + 1):
        here = process.present(number).tolist()
        step = rule.step(
            state, Round(number=number, clients=here, updates=np.ones((len(here), DIM)))
        )
        state = step.state
        assert not step.diagnostics.gone
        assert step.diagnostics.trust == 1.0
