"""Readers of what comes from outside: images, traces, experiments, settings."""

from __future__ import annotations

import gzip
import json
import lzma
import pickle
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from pathlib import Path
from unittest.mock import patch

from fedsteer.data.catalogue import CATALOGUE
from fedsteer.data.files import File
from fedsteer.data.loading import load
from fedsteer.participation import read_trace
from fedsteer.simulate.cells import plan_cells
from fedsteer.simulate.experiment_files import load_experiment, parse_settings, settings_toml
from tests.data.made_files import contents_for, idx_bytes, images_and_labels, write
from tests.fuzz.judge import Reader
from tests.participation.test_trace import FEDSCALE, FLASH_DAY, FLASH_OPEN
from tests.simulate.small import AS_TOML

CONTENT = idx_bytes(images_and_labels(20, 10, 0)[0])
PACKED = {".gz": gzip.compress(CONTENT, mtime=0), ".xz": lzma.compress(CONTENT)}


def images(name: str, data: bytes, folder: Path) -> None:
    """The first byte says which file of the data set has the rest of the input as its content."""
    contents = contents_for(name)
    chosen = list(contents)[data[0] % len(contents) if data else 0]
    entry = write(folder, name, entry_packing(name), contents | {chosen: data[1:]})
    with patch.dict(CATALOGUE, {name: entry}):
        dataset = load(name, folder=folder)
    assert dataset.shape and len(dataset.train()[0]) == len(dataset.train_labels)
    assert len(dataset.test()[0]) == len(dataset.test_labels)


def entry_packing(name: str) -> str:
    return CATALOGUE[name].files[0].packings[0]


def image_seeds(name: str) -> list[bytes]:
    return [bytes([at]) + content for at, content in enumerate(contents_for(name).values())]


def packed_images(data: bytes, folder: Path) -> None:
    """The first byte says how the rest is packed."""
    ending = list(PACKED)[data[0] % len(PACKED) if data else 0]
    path = folder / f"images{ending}"
    path.write_bytes(data[1:])
    digest = f"sha256:{sha256(CONTENT).hexdigest()}"
    assert File("images", size=len(CONTENT), checksum=digest).read(path) == CONTENT


def trace(ending: str, data: bytes, folder: Path) -> None:
    path = folder / f"trace{ending}"
    path.write_bytes(data)
    found = read_trace(path, round_seconds=10.0)
    assert len(found.probabilities) == found.clients
    assert all(0 <= client < found.clients for client in found.present(7))


def experiment(data: bytes, folder: Path) -> None:
    path = folder / "own.toml"
    path.write_bytes(data)
    found = load_experiment(str(path))
    path.write_text(settings_toml(found))
    assert load_experiment(str(path), {"name": found.name}) == found


def settings(data: bytes, folder: Path) -> None:
    """Each line is what follows a --set; the rules are made, as a comparison does at once."""
    pairs = data.decode("utf-8", "surrogateescape").splitlines()
    found = load_experiment("digits", parse_settings(pairs))
    if found.partition.clients < 10_000:
        plan_cells(found, found.rules, folder, seeds=[0])


def traces(ending: str, *seeds: bytes) -> Reader:
    return Reader(partial(trace, ending), lambda: list(seeds))


def images_of(name: str) -> Reader:
    return Reader(partial(images, name), partial(image_seeds, name))


def only(*seeds: bytes) -> Callable[[], list[bytes]]:
    return lambda: list(seeds)


FLASH = {"b": {"messages": FLASH_DAY, "model": "x"}, "a": {"messages": FLASH_OPEN}}
PICKLES = [pickle.dumps(FEDSCALE, protocol=protocol) for protocol in range(5)]
SETTINGS = [
    b"training.rate=.5\nrun.rounds=7",
    b"participation.kind=markov\nparticipation.mean_on=3",
    b"options.fedsteer={core_size = 5, ridge = 1e-3}\nmodel.options.hidden=[8, 8]",
    b"partition.kind=dirichlet\npartition.alpha=0.1\nserver.method=adam\nserver.beta1=0.5",
    b'rules=["fedsteer:practical", "mine", "full"]\nvariants.mine={rule = "mifa"}',
]

READERS = {
    "images-idx": images_of("mnist"),
    "images-cifar": images_of("cifar-10"),
    "images-selection": images_of("emnist-bymerge"),
    "images-packed": Reader(packed_images, only(b"\0" + PACKED[".gz"], b"\1" + PACKED[".xz"])),
    "trace-csv": traces(".csv", b"client,start,end\n2,0,10\n0,30,40\n\n0,5,15.5\n"),
    "trace-json": traces(".json", b'{"1": [[0, 10], [20, 30.5]], "0": []}'),
    "trace-flash": traces(".json", json.dumps(FLASH).encode()),
    "trace-avt": traces(".avt", b"ab12\t2\t 0 15 30 40\n\nnever\t0\t\nc 2 10 20 20 30\n"),
    "trace-fedscale": traces(".pkl", *PICKLES),
    "experiment": Reader(experiment, lambda: [AS_TOML.encode()]),
    "settings": Reader(settings, only(*SETTINGS), names=False),
}
