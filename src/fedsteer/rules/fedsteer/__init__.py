"""FedSteer, the rule of this package. Read `rule` first.

rule          Algorithm 1, step by step
columns       the basis: the core clients' latest updates, and what follows from its Gram matrix
memory        everything it remembers, and what it expects of clients by it
coordinates   the k numbers of every client, and their sums
drift         what clients take out of their gradients
newcomers     what is expected of clients that never came
ridge         small linear systems
owners        who owns the columns, before the first round and after each
search        who owns them by Algorithm 2; loaded only by options that search
options       everything you can set
"""

from fedsteer.rules.fedsteer.memory import FedSteerMemory
from fedsteer.rules.fedsteer.rule import FedSteer

__all__ = ["FedSteer", "FedSteerMemory"]
