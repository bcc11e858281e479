"""The manifest of a run, and whether a folder holds the same run."""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedsteer.errors import ConfigurationError, DataError
from fedsteer.reading import reading
from fedsteer.records import Run
from fedsteer.records.files import look, plain
from fedsteer.records.names import MANIFEST
from fedsteer.simulate.cells import Cell, RuleSpec
from fedsteer.simulate.experiment import KINDS, Experiment
from fedsteer.simulate.world import World
from fedsteer.training.models import source_of

# Settings that do not change a run's numbers: `rule` holds the rule's options, and checksums say
# whether files are the same. The number of rounds does change them: a warm-up takes place in the
# rounds after the last one.
IGNORED = {
    *(f"experiment.{name}" for name in ("seeds", "rules", "variants", "options", "title", "tuned")),
    "experiment.run.checkpoint_every",
    "experiment.run.baseline",
    "experiment.data.folder",
    "rule.preset_options",
}


def same_run(found: Run, cell: Cell) -> None:
    """Refuse to mix two different runs in one folder."""
    if not (found.folder / MANIFEST).exists():
        raise DataError(f"{found.folder} has a checkpoint but no {MANIFEST}")
    refuse_another(found.folder, found.manifest, cell)


def refuse_another(place: Path, identity: Mapping[str, Any], cell: Cell) -> None:
    """Refuse a folder or checkpoint of another run than the cell's."""
    with reading(place, "of a run that this version knows"):
        before = _with_defaults(identity, cell.experiment)
    checked = _files(cell.experiment)
    rule = cell.rule.record()
    now = {"seed": cell.seed, "experiment": cell.experiment.as_dict(), "rule": rule}
    ignored = IGNORED | {f"experiment.participation.{key}" for key in checked if key in before}
    for name, value in now.items():
        apart = _difference(name, before.get(name), plain(value), ignored)
        if apart is not None:
            raise ConfigurationError(
                f"{place} holds a run with another {apart}; choose another --out"
            )
    for key, (path, checksum) in checked.items():
        if before.get(key, checksum) != checksum:
            raise ConfigurationError(
                f"{path} has changed since {place} was started; choose another --out"
            )


def refuse_other_data(place: Path, before: Mapping[str, Any], world: World) -> None:
    """Resume is refused if the data or the partition changed."""
    now = {"data": _data_record(world), "clients": _client_record(world)}
    for section, key in (("data", "checksums"), ("clients", "sizes"), ("clients", "holds")):
        known = look(before, section, key)
        if known is not None and known != plain(now[section].get(key)):
            raise ConfigurationError(
                f"{place} was started with other {section} ({key}): another file, or a "
                "version of fedsteer that divides them differently; choose another --out"
            )


def _with_defaults(manifest: Mapping[str, Any], experiment: Experiment) -> dict[str, Any]:
    """As today's version would have written it.

    A setting younger than the manifest had its default. Older manifests also name the settings of
    kinds that were not in use.
    """
    kinds = {name: type(getattr(experiment, name))() for name in KINDS}
    written = dict(manifest.get("experiment") or {})
    usual = plain(replace(Experiment(), **kinds).as_dict())
    for name, section in usual.items():
        old = written.get(name, {})
        if isinstance(section, dict) and isinstance(old, dict):
            known = {k: v for k, v in old.items() if k in section or name not in KINDS}
            written[name] = section | known
    return {**manifest, "experiment": usual | written}


def _difference(name: str, before: Any, now: Any, ignored: set[str]) -> str | None:
    """Where two settings differ, e.g. "experiment.partition.gamma (0.9, now 0.7)"."""
    if name in ignored:
        return None
    if isinstance(before, dict) and isinstance(now, dict):
        keys = {**before, **now}
        found = (_difference(f"{name}.{k}", before.get(k), now.get(k), ignored) for k in keys)
        return next((path for path in found if path is not None), None)
    return None if before == now else f"{name} ({before}, now {now})"


def manifest(world: World, rule: RuleSpec) -> dict[str, Any]:
    """What is being run, and what its numbers depend on."""
    engine = {
        "name": world.engine.name,
        "device": world.experiment.run.device,
        "threads": world.torch_threads,
    }
    numbers = {"engine": engine, "clients": _client_record(world), "dim": world.network.dim}
    return identity(world, rule) | numbers


def identity(world: World, rule: RuleSpec) -> dict[str, Any]:
    """What tells a run from others; in its manifest and in its checkpoints."""
    return {
        "rule": rule.record(),
        "seed": world.seed,
        "experiment": world.experiment.as_dict(),
        "data": _data_record(world),
        **{key: checksum for key, (_, checksum) in _files(world.experiment).items()},
    }


def _files(experiment: Experiment) -> dict[str, tuple[str, str]]:
    """The user's files that numbers depend on, with their checksums: those that participation
    reads, and the code of a network of the user's own."""
    paths = experiment.participation.files()
    if (code := source_of(experiment.model.name)) is not None:
        paths["model_code"] = code
    return {key: (path, _checksum(path)) for key, path in paths.items()}


def _checksum(path: str) -> str:
    with reading(path, error=ConfigurationError):
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def _data_record(world: World) -> dict[str, Any]:
    return {
        "name": world.dataset.name,
        "classes": world.dataset.classes,
        "checksums": dict(world.dataset.checksums),
        "label_groups": world.partition.label_groups,
    }


def _client_record(world: World) -> dict[str, Any]:
    """Who holds what; left out for populations too large to read."""
    count = world.partition.clients
    if count > 2_000:
        return {"count": count}
    return {
        "count": count,
        "sizes": world.sizes,
        "data_group": world.partition.groups.tolist(),
        "probabilities": world.participation.probabilities,
        "holds": world.partition.holds,
    }


def environment(device: str) -> dict[str, str]:
    """Libraries and device, which numbers and times may depend on."""
    name = str(torch.cuda.get_device_name(device)) if device != "cpu" else "cpu"
    return {"numpy": np.__version__, "torch": torch.__version__, "device": name}
