"""The reference engine: one client at a time, gradients by autograd, batch after batch.

Slow and obvious. It trains any network under any option, and it names the client that fails.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from fedsteer.errors import FedsteerError, TrainingFailed, first_line
from fedsteer.gpu.precision import precision
from fedsteer.training.engines.base import Engine, Losses, naming
from fedsteer.training.local import Descent, LocalTraining, Order
from fedsteer.training.loss import cross_entropy
from fedsteer.training.networks import Network


class SequentialEngine(Engine):
    """Trains clients one after the other."""

    name = "sequential"

    @classmethod
    def supports(cls, network: Network, options: LocalTraining, device: str) -> str | None:
        """Everything: this engine defines what an option means."""
        return None

    def _train(self, orders: Sequence[Order]) -> tuple[Tensor, Losses]:
        updates, losses = self.no_updates(len(orders)), np.zeros(len(orders))
        own_gpu = [updates.device] if updates.is_cuda else []
        for place, order in enumerate(orders):
            # Dropout and the like draw from torch's generator: seed it for this client alone.
            with (
                naming(order.client),
                torch.random.fork_rng(devices=own_gpu),
                precision(self.exact, updates),
            ):
                torch.manual_seed(int(order.draw("network").integers(2**63)))
                updates[place], losses[place] = self._train_one(order)
        return updates, losses

    def _train_one(self, order: Order) -> tuple[Tensor, float]:
        descent = Descent(self.options, [order])
        mask = self.data.label_masks(self.options, [order])
        total = 0.0
        for images, labels in self.data.batches(self.options, order):
            leaf = descent.weights.detach().requires_grad_()
            loss = cross_entropy(self.network.logits(leaf[0], images), labels, mask)
            (gradient,) = torch.autograd.grad(loss, leaf)
            total += float(loss.detach())
            descent.step(gradient)
        return descent.update()[0], total


@contextmanager
def naming_by_reference(engine: Engine, orders: Sequence[Order]) -> Iterator[None]:
    """If clients fail when trained together, train them one by one to find the one at fault."""
    try:
        yield
    except FedsteerError:
        raise
    except torch.OutOfMemoryError as error:
        raise TrainingFailed(
            f"training {len(orders)} clients at once needs more memory than the GPU has "
            f"({first_line(error)}); fewer --jobs or --seeds need less, and so does "
            "run.engine=sequential"
        ) from error
    except Exception as error:
        SequentialEngine(engine.network, engine.data, engine.options, engine.exact).train_orders(
            orders
        )
        raise TrainingFailed(
            f"clients fail when trained together, though none does alone: {first_line(error)}; "
            "run.engine=sequential trains them one by one"
        ) from error
