"""Local training: what a client does between receiving a model and returning an update.

networks     flat parameter vectors and the modules that use them
models       the paper's networks, an MLP, logistic regression, and anybody's nn.Module
local        what local training is: epochs, batches, rate, ...; one SGD step, written once
orders       a client's work with all it takes: what engines are given
sequential   the reference: one client at a time, by autograd
stacked      many clients at once; finished ones drop out
formula      gradients of stacked plain networks by formula
vmapped      gradients of any other stacked network by torch.func
pointwise    wide dense networks: the first layer as a combination of the client's own points
captured     on a GPU: autograd's step as a CUDA graph, clients on several streams
threaded     one thread a client, side by side on the cores of a CPU
direct       gradients of one client of a plain network by formula
engines      which of them trains what, by a static rule
evaluate     accuracy and loss, per class and per group
"""

from fedsteer.training.engines import Engine, choose_engine, make_engine
from fedsteer.training.evaluate import Evaluation, evaluate
from fedsteer.training.local import Job, LocalTraining, Trained, TrainingData
from fedsteer.training.models import make_network
from fedsteer.training.networks import Network

__all__ = [
    "Engine",
    "Evaluation",
    "Job",
    "LocalTraining",
    "Network",
    "Trained",
    "TrainingData",
    "choose_engine",
    "evaluate",
    "make_engine",
    "make_network",
]
