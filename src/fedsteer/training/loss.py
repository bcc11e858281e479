"""The loss of local training: cross entropy; logits of masked labels are set to 0 before it."""

import torch
from torch import Tensor
from torch.nn import functional as F


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor | None) -> Tensor:
    """The mean loss of one batch, for autograd."""
    return F.cross_entropy(logits if mask is None else logits * mask, labels)


def cross_entropy_gradient(
    logits: Tensor, labels: Tensor, weights: Tensor, masks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """(c,) losses of stacked batches and the (c, b, classes) gradient of the logits.

    dz = weight (softmax(z) - onehot). labels and weights are (c, b); a weight is 1/batch size, or
    0 for padding. masks are (c, classes).
    """
    if masks is not None:
        logits = logits * masks.unsqueeze(1)
    if logits.is_cuda:
        log_odds = torch.log_softmax(logits, dim=-1)
    else:  # several times faster along long columns than along short rows
        log_odds = torch.log_softmax(logits.mT.contiguous(), dim=-2).mT
    target = labels.unsqueeze(-1)
    losses = -(log_odds.gather(-1, target).squeeze(-1) * weights).sum(dim=1)
    back = log_odds.exp_()
    back.scatter_(-1, target, -1.0, reduce="add")
    back *= weights.unsqueeze(-1)
    if masks is not None:
        back *= masks.unsqueeze(1)
    return losses, back
