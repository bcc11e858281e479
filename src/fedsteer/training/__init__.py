"""Local training: what a client does between receiving a model and returning an update.

local        the options of local training, an order, its batches, and one SGD step
loss         the cross entropy, for autograd and by formula
networks     networks as functions of one flat parameter vector
models       the paper's networks, an MLP, logistic regression, and any nn.Module of yours
layers       known layers, forward and backward by formula
engines      what trains many clients: start reading there
evaluate     accuracy and loss, per class and per group
"""

from fedsteer.training.engines import Engine, choose_engine, choose_threads, make_engine
from fedsteer.training.evaluate import evaluate
from fedsteer.training.local import LocalTraining, Order, Trained, TrainingData
from fedsteer.training.models import make_network
from fedsteer.training.networks import Network

__all__ = [
    "Engine",
    "LocalTraining",
    "Network",
    "Order",
    "Trained",
    "TrainingData",
    "choose_engine",
    "choose_threads",
    "evaluate",
    "make_engine",
    "make_network",
]
