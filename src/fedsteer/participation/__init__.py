"""Who is there each round.

    base             `Participation`: the protocol every process follows
    bernoulli        `Bernoulli`, `group_probabilities`: independent draws, weak and powerful
    markov           `Markov`: bursts of presence and absence
    diurnal          `Diurnal`: day and night
    everybody        `Everybody`: full participation
    trace            `Trace`: recorded availability
    trace_files      `read_trace`: CSV and JSON of our own, FedScale's pickle, FLASH's event log
    view             `ProbabilityView`: what a rule is told of the probabilities

All of them are functions of (seed, round): asking for a round twice, or in another order, or in
another process gives the same clients.
"""

from fedsteer.participation.base import Participation
from fedsteer.participation.bernoulli import Bernoulli, group_probabilities
from fedsteer.participation.diurnal import Diurnal
from fedsteer.participation.everybody import Everybody
from fedsteer.participation.markov import Markov
from fedsteer.participation.trace import Trace
from fedsteer.participation.trace_files import read_trace
from fedsteer.participation.view import ProbabilityView

__all__ = [
    "Bernoulli",
    "Diurnal",
    "Everybody",
    "Markov",
    "Participation",
    "ProbabilityView",
    "Trace",
    "group_probabilities",
    "read_trace",
]
