"""Helpers for clients: reporting an id, and the rules that change local training.

identity:  ClientApp(mods=[report_identity]) sends the node's partition id along
FedProx:   add `proximal_penalty(model, message, sent)` to the loss
SCAFFOLD and FedSteer with `local_rate`:
           call `add_correction(model, message)` between backward() and step(), report "num-steps"
privacy:   ClientApp(mods=[private_updates(Privacy(...))]) clips updates and adds noise

Other rules need nothing; FedAWE's clients receive the model they continue from as usual. Without
torch, use `proximal_strength(message)` and `correction(message)`.
"""

from collections.abc import Callable, Sequence
from glob import escape
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType
from numpy.typing import NDArray

from fedsteer.errors import ConfigurationError
from fedsteer.flower.asking import CORRECTION
from fedsteer.flower.metrics import number_in
from fedsteer.flower.model import Layout, to_named, to_record
from fedsteer.flower.releases import ARRAYS, CLIP, NOISE
from fedsteer.privacy import Privacy, release, secret_normals

Answer = Callable[[Message, Context], Message]
"""A ClientApp, as its mods see it."""


def report_identity(message: Message, context: Context, call_next: Answer) -> Message:
    """A client mod that adds the node's "client-id" or "partition-id" to every reply."""
    reply = call_next(message, context)
    name = context.node_config.get("client-id", context.node_config.get("partition-id"))
    if name is not None and reply.has_content():
        reply.content["identity"] = ConfigRecord({"client-id": str(name)})
    return reply


def private_updates(privacy: Privacy) -> Callable[[Message, Context, Answer], Message]:
    """A client mod for `where="client"`: no update leaves without being clipped and noised.

    Arrays that the server does not steer are sent back as they came.
    """

    def mod(message: Message, context: Context, call_next: Answer) -> Message:
        if message.metadata.message_type.partition(".")[0] != MessageType.TRAIN:
            return call_next(message, context)
        every = message.content.config_records
        told = [number_in(every, CLIP), number_in(every, NOISE)]
        if told != [privacy.clip, privacy.noise]:
            raise ConfigurationError(
                f"the server counts on clip and noise of {told}, this client was told to add "
                f"{[privacy.clip, privacy.noise]}: nothing is sent"
            )
        names: Any = next(config[ARRAYS] for config in every.values() if ARRAYS in config)
        arrays = to_named(_sent(message))
        layout = Layout(arrays, steer=[escape(name) for name in names], buffers=())
        before = layout.flatten(arrays)
        reply = call_next(message, context)
        if reply.has_content():
            ((name, record),) = reply.content.array_records.items()
            after = to_named(record)
            layout.check(after)
            update = release(before - layout.flatten(after), privacy, secret_normals)
            noised = layout.unflatten(before - update, layout.rest(arrays))
            reply.content[name] = to_record(noised)
        return reply

    return mod


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
    sent = _sent(message)
    _refuse_unknown_names(model, sent)
    return [
        _tensor(sent, name, parameter) if name in sent else parameter.detach().clone()
        for name, parameter in model.named_parameters()
    ]


def _sent(message: Message) -> ArrayRecord:
    """The model that a message carries."""
    records = message.content.array_records.items()
    return next(record for name, record in records if name != CORRECTION)


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
