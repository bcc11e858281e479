"""Helpers for clients: reporting an id, and the rules that change local training.

identity:  ClientApp(mods=[report_identity]) sends the node's partition id along
FedProx:   add `proximal_penalty(model, message, sent)` to the loss
SCAFFOLD and FedSteer with `local_rate`:
           call `add_correction(model, message)` between backward() and step(), report "num-steps"

Other rules need nothing; FedAWE's clients receive the model they continue from as usual. Without
torch, use `proximal_strength(message)` and `correction(message)`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError
from fedsteer.flower.asking import CORRECTION
from fedsteer.flower.metrics import number_in


def report_identity(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A client mod that adds the node's "client-id" or "partition-id" to every reply."""
    reply = call_next(message, context)
    name = context.node_config.get("client-id", context.node_config.get("partition-id"))
    if name is not None and reply.has_content():
        reply.content["identity"] = ConfigRecord({"client-id": str(name)})
    return reply


def proximal_strength(message: Message) -> float:
    """FedProx's mu; 0 if the message has none."""
    return number_in(message.content.config_records, "proximal-mu") or 0.0


def proximal_penalty(model: Any, message: Message, sent: Sequence[Any]) -> Any:
    """(mu / 2) |w - w_sent|^2 for a torch module; 0 if the message has no mu.

    `sent` are the parameters before training. Make them once: `sent_parameters(model, message)`.
    """
    strength = proximal_strength(message)
    if not strength:
        return 0.0
    terms = [((now - then) ** 2).sum() for now, then in zip(model.parameters(), sent, strict=True)]
    return 0.5 * strength * sum(terms)


def sent_parameters(model: Any, message: Message) -> list[Any]:
    """The message's parameters in the order of `model.parameters()`.

    Parameters that were not sent, such as frozen ones, are taken from the model.
    """
    records = message.content.array_records.items()
    sent = next(record for name, record in records if name != CORRECTION)
    _refuse_unknown_names(model, sent)
    return [
        _tensor(sent, name, parameter) if name in sent else parameter.detach().clone()
        for name, parameter in model.named_parameters()
    ]


def correction(message: Message) -> dict[str, NDArray[Any]] | None:
    """What to add to the gradient, by array names; None if the message has none."""
    record = message.content.array_records.get(CORRECTION)
    return None if record is None else {name: array.numpy() for name, array in record.items()}


def add_correction(model: Any, message: Message) -> None:
    """gradient <- gradient + correction for a torch module, after backward()."""
    record = message.content.array_records.get(CORRECTION)
    if record is None:
        return
    _refuse_unknown_names(model, record)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name in record:
            parameter.grad.add_(_tensor(record, name, parameter))


def _refuse_unknown_names(model: Any, record: ArrayRecord) -> None:
    """A misnamed array would be ignored without a word."""
    every = {"remove_duplicate": False}  # a state_dict has both names of tied weights
    known = {name for name, _ in model.named_parameters(**every)}
    known |= {name for name, _ in model.named_buffers(**every)}
    if unknown := [name for name in record if name not in known]:
        raise ConfigurationError(
            f"the message has an array named {unknown[0]!r}, but the model has none of that name"
        )


def _tensor(record: ArrayRecord, name: str, like: Any) -> Any:
    import torch

    return torch.from_numpy(record[name].numpy().copy()).to(like)
