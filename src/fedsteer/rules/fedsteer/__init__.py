"""FedSteer, the rule of this package. Read `rule` first.

rule          Algorithm 1, step by step
columns       the basis: the core clients' latest updates, and what follows from its Gram matrix
coordinates   the k numbers of every client, and their sums
drift         what clients take out of their gradients
ridge         small linear systems
owners        who owns the columns, before the first round and after each
search        who owns them by Algorithm 2; loaded only by options that search
options       everything you can set
"""

from fedsteer.rules.fedsteer.rule import FedSteer, FedSteerMemory

__all__ = ["FedSteer", "FedSteerMemory"]
