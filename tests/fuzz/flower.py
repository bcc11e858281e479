"""What clients send on Flower, and the folder of a Flower run that is started again."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import config_record_to_proto, metric_record_to_proto

from fedsteer.errors import FedsteerError
from fedsteer.flower import FedSteer
from fedsteer.records import read_checkpoint, write_checkpoint
from fedsteer.records.names import BEFORE, CHECKPOINT
from tests.flower.fake import FakeGrid, arrays, drifting
from tests.fuzz.judge import Broken, Reader, Unfit
from tests.fuzz.records import document

INITIAL = {"w": np.zeros((2, 2), np.float32), "running_mean": np.zeros(2, np.float32)}
ORDER = {"metrics": MetricRecord, "config": ConfigRecord}
ON_THE_WIRE = {"metrics": metric_record_to_proto, "config": config_record_to_proto}


def npy(array: Any) -> bytes:
    file = BytesIO()
    np.save(file, np.asarray(array), allow_pickle=False)
    return file.getvalue()


def run_with(answer: Callable[[Message], Message]) -> None:
    """Two rounds in which one of three clients sends this; nothing that it sends may end them."""
    grid = FakeGrid({1: answer, 2: drifting(2), 3: drifting(3)})
    try:
        with quietly():
            FedSteer(core_size=2).start(grid, arrays(**INITIAL), num_rounds=2)
    except FedsteerError as error:
        raise Broken(f"a reply ended the run: {error}", type(error).__name__) from error


def replies(data: bytes, folder: Path) -> None:
    """{"arrays": {name: {"dtype", "values"}}, "metrics": {...}, "config": {...}, "error": text}."""
    found = document(data)

    def answer(message: Message) -> Message:
        try:
            if isinstance(found.get("error"), str):
                return Message(Error(code=1, reason=found["error"]), reply_to=message)
            content = RecordDict()
            for name, kind in ORDER.items():
                if name in found:
                    content[name] = kind(found[name])
                    ON_THE_WIRE[name](content[name])
            if "arrays" in found:
                named = {
                    name: Array(np.asarray(one["values"], one["dtype"]))
                    for name, one in found["arrays"].items()
                }
                content["arrays"] = ArrayRecord(named)
            return Message(content, reply_to=message)
        except Exception as error:  # Flower itself does not send this
            raise Unfit from error

    run_with(answer)


def array_bytes(data: bytes, folder: Path) -> None:
    """The bytes of an array, as a client that does not use NumPy may write them."""

    def answer(message: Message) -> Message:
        wrong = Array(dtype="float32", shape=(2, 2), stype="numpy.ndarray", data=data)
        content = RecordDict(
            {
                "arrays": ArrayRecord({"w": wrong, **arrays(running_mean=np.ones(2, np.float32))}),
                "metrics": MetricRecord({"num-examples": 5, "partition-id": 1}),
            }
        )
        return Message(content, reply_to=message)

    run_with(answer)


REPLY = {
    "arrays": {
        "w": {"dtype": "float32", "values": [[0.5, 1.0], [0.0, -1.0]]},
        "running_mean": {"dtype": "float32", "values": [0.5, 0.25]},
    },
    "metrics": {"num-examples": 12, "partition-id": 1, "train_loss": 0.5, "num-steps": 4, "acc": 1},
    "config": {"client-id": "phone", "model-version": 1},
}


@cache
def stopped() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-")) / "flower"
    start(folder)
    return folder


def start(folder: Path) -> None:
    grid = FakeGrid({client: drifting(client) for client in (1, 2, 3)})
    with quietly():
        FedSteer(core_size=2, folder=folder).start(grid, arrays(**INITIAL), num_rounds=2)


@contextmanager
def quietly() -> Iterator[None]:
    """Flower tells every round."""
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


def resumed(data: bytes, folder: Path) -> None:
    """The JSON in the header of the checkpoint; its checksum is right."""
    meta = document(data)
    if not isinstance(meta, dict):
        raise Unfit
    shutil.copytree(stopped(), folder / "run")
    found, _ = read_checkpoint(stopped() / CHECKPOINT)
    (folder / "run" / CHECKPOINT).unlink()  # else it would be used instead
    write_checkpoint(folder / "run" / BEFORE, found, meta)
    start(folder / "run")


def resumed_seeds() -> list[bytes]:
    return [json.dumps(read_checkpoint(stopped() / CHECKPOINT)[1]).encode()]


READERS = {
    "flower-replies": Reader(
        replies, lambda: [json.dumps(REPLY).encode(), b'{"error": "no power"}'], document=True
    ),
    "flower-arrays": Reader(array_bytes, lambda: [npy(INITIAL["w"]), npy(np.ones((2, 2)))]),
    "flower-resume": Reader(resumed, resumed_seeds, document=True),
}
