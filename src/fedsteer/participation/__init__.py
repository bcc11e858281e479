"""Which clients take part in each round: one file per process, and the table of their options.

    base             `Participation`, the protocol; options and draws that several share
    bernoulli        independent draws; full participation
    markov           bursts of presence and absence
    diurnal          day and night
    trace            recorded availability
    trace_files      `read_trace`: our own CSV and JSON, FedScale's pickle, FLASH's event log

Every process is a function of (seed, round): asking for a round twice, in another order or in
another process gives the same clients.
"""

from fedsteer.participation.base import Participation, ParticipationOptions
from fedsteer.participation.bernoulli import BernoulliOptions, EverybodyOptions, GroupsOptions
from fedsteer.participation.diurnal import DiurnalOptions
from fedsteer.participation.markov import MarkovOptions
from fedsteer.participation.trace_files import TraceOptions, read_trace

__all__ = ["PROCESSES", "GroupsOptions", "Participation", "ParticipationOptions", "read_trace"]

PROCESSES: dict[str, type[ParticipationOptions]] = {
    options.kind: options
    for options in (
        GroupsOptions,
        BernoulliOptions,
        MarkovOptions,
        DiurnalOptions,
        TraceOptions,
        EverybodyOptions,
    )
}
"""`participation.kind` -> its options. A new process is entered here."""
