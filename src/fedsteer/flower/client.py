"""What clients need for the two rules that change local training, and for telling who they are.

FedProx:   add `proximal_penalty(model, message, sent)` to the loss
SCAFFOLD:  call `add_correction(model, message)` between backward() and step(), report "num-steps"
identity:  ClientApp(mods=[report_identity]) sends the partition id of the node along

All other rules need nothing; FedAWE's clients simply receive the model they go on from. Clients
without torch take `proximal_strength(message)` and `correction(message)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError
from fedsteer.flower.payload import CORRECTION, to_named


def report_identity(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """A client mod: the node's "client-id" or "partition-id" travels with every reply."""
    reply = call_next(message, context)
    name = context.node_config.get("client-id", context.node_config.get("partition-id"))
    if name is not None and reply.has_content():
        reply.content["identity"] = ConfigRecord({"client-id": str(name)})
    return reply


def proximal_strength(message: Message) -> float:
    """FedProx's mu; 0 where none was sent."""
    for record in message.content.config_records.values():
        value = record.get("proximal-mu")
        if isinstance(value, (int, float)):
            return float(value)
    return 0.0


def proximal_penalty(model: Any, message: Message, sent: Sequence[Any]) -> Any:
    """(mu / 2) |w - w_sent|^2 for a torch module; 0 where no mu was sent.

    `sent` are the parameters at the start of training: `sent_parameters(model, message)`, made
    once.
    """
    strength = proximal_strength(message)
    if not strength:
        return 0.0
    terms = [((now - then) ** 2).sum() for now, then in zip(model.parameters(), sent, strict=True)]
    return 0.5 * strength * sum(terms)


def sent_parameters(model: Any, message: Message) -> list[Any]:
    """The parameters of the message, in the order of `model.parameters()`; those that were not sent
    (frozen ones, say) as they are."""
    records = message.content.array_records.items()
    sent = next(record for name, record in records if name != CORRECTION)
    _refuse_strangers(model, sent)
    return [
        _tensor(sent, name, parameter) if name in sent else parameter.detach().clone()
        for name, parameter in model.named_parameters()
    ]


def correction(message: Message) -> dict[str, NDArray[Any]] | None:
    """SCAFFOLD's c - c_i by the names of the model's arrays; None where nothing was sent."""
    record = message.content.array_records.get(CORRECTION)
    return None if record is None else to_named(record)


def add_correction(model: Any, message: Message) -> None:
    """gradient <- gradient + c - c_i for a torch module, after backward()."""
    record = message.content.array_records.get(CORRECTION)
    if record is None:
        return
    _refuse_strangers(model, record)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name in record:
            parameter.grad.add_(_tensor(record, name, parameter))


def _refuse_strangers(model: Any, record: ArrayRecord) -> None:
    """A name that this model does not have would silently be trained without."""
    every = {"remove_duplicate": False}  # of weights that are tied, a state_dict has both names
    known = {name for name, _ in model.named_parameters(**every)}
    known |= {name for name, _ in model.named_buffers(**every)}
    if strangers := [name for name in record if name not in known]:
        raise ConfigurationError(
            f"the message has an array named {strangers[0]!r}, which is none of this model's"
        )


def _tensor(record: ArrayRecord, name: str, like: Any) -> Any:
    import torch

    return torch.from_numpy(record[name].numpy().copy()).to(like)
