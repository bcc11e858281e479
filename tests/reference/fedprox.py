"""FedProx, from its equation."""

from tests.reference.fedavg import NaiveFedAvg


class NaiveFedProx(NaiveFedAvg):
    """FedAvg's server; only the clients differ: local gradient plus mu (w - w_sent)."""
