"""FedSteer, the rule of this package. Read `rule` first.

rule          Algorithm 1, step by step
columns       the basis: the core clients' latest updates
coordinates   the k numbers of every client, and their sum
geometry      what follows from the Gram matrix of the columns
ridge         small linear systems
roles         which clients of a round touch which columns
selection     who owns the columns before the first round
reselection   who owns them by `search`, Algorithm 2; loaded only by options that search
options       everything you can set
"""

from fedsteer.rules.fedsteer.rule import FedSteer, FedSteerMemory

__all__ = ["FedSteer", "FedSteerMemory"]
