from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from fedsteer.data import CATALOGUE, check, digits, load, made
from fedsteer.data.files import File
from fedsteer.data.loading import searched_folders
from fedsteer.errors import ConfigurationError, DataError

from .made_files import contents_for, write

FILED = [name for name in CATALOGUE if CATALOGUE[name].files]


@pytest.fixture(autouse=True)
def _empty_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test of this file sees the data sets of the machine it runs on."""
    monkeypatch.delenv("FEDSTEER_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_every_name_is_described() -> None:
    assert {"digits", "made", "mnist", "fashion-mnist", "cifar-10"} <= set(CATALOGUE)
    assert all(CATALOGUE[name].description for name in CATALOGUE)


def test_unknown_name() -> None:
    with pytest.raises(ConfigurationError, match="did you mean 'fashion-mnist'"):
        load("fashion-minst")


def test_digits() -> None:
    dataset = load("digits")
    assert len(dataset.train_labels) + len(dataset.test_labels) == 1797
    assert dataset.shape == (1, 8, 8)
    difference = np.bincount(dataset.train_labels) - np.bincount(dataset.test_labels)
    assert set(difference) <= {0, 1}
    images, labels = dataset.train()
    assert images.dtype == np.float32 and labels.tolist() == dataset.train_labels.tolist()
    assert dataset.test()[0].min() == 0 and dataset.test()[0].max() == 1
    assert load("digits").checksums == dataset.checksums
    np.testing.assert_array_equal(load("digits").test_images, dataset.test_images)


def test_what_needs_no_files_needs_no_folder() -> None:
    assert load("digits", folder="").name == "digits" and check("made", folder="").dataset


def test_digits_without_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ConfigurationError, match="scikit-learn"):
        digits()
    assert check("digits").state == "missing"


def test_made_is_deterministic_and_learnable() -> None:
    dataset = made(classes=3, side=6, points=90, channels=2, seed=5)
    assert dataset.train_images.shape == (90, 2, 6, 6)
    assert np.bincount(dataset.train_labels).tolist() == [30, 30, 30]
    assert made(classes=3, side=6, points=90, channels=2, seed=5).checksums == dataset.checksums
    assert made(classes=3, side=6, points=90, channels=2, seed=6).checksums != dataset.checksums
    images, labels = dataset.train()
    centres = np.stack([images[labels == k].mean(axis=0) for k in range(3)])
    test_images, test_labels = dataset.test()
    distance = ((test_images[:, None] - centres) ** 2).sum(axis=(2, 3, 4))
    assert (distance.argmin(axis=1) == test_labels).mean() > 0.95


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 1},
        {"side": 0},
        {"points": 3},
        {"channels": 0},
        {"noise": -1.0},
        {"seed": -1},
        {"side": 100_000},
    ],
)
def test_made_refuses(options: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="made: "):
        made(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("packing", ["", ".gz", ".xz"])
@pytest.mark.parametrize("name", FILED)
def test_load_from_files(
    name: str, packing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if packing not in CATALOGUE[name].files[0].packings:
        pytest.skip("not packed this way")
    entry = write(tmp_path, name, packing, contents_for(name))
    monkeypatch.setitem(CATALOGUE, name, entry)
    dataset = load(name, folder=tmp_path)
    assert dataset.classes == entry.classes and set(dataset.checksums) == {
        file.name for file in entry.files
    }
    counts = {"cifar-10": (15, 3), "emnist-bymerge": (3, 2)}.get(name, (60, 50))
    assert (len(dataset.train_labels), len(dataset.test_labels)) == counts
    report = check(name, folder=tmp_path)
    assert report.state == "ok" and report.folder == tmp_path and not report.problem
    assert report.dataset is not None and len(report.dataset.train_labels) == counts[0]


def test_emnist_selection_follows_the_index_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "emnist-bymerge"
    monkeypatch.setitem(CATALOGUE, name, write(tmp_path, name, ".gz", contents_for(name)))
    dataset = load(name, folder=tmp_path)
    # The lists are 0 109 7 and 3 60; the first 60 images carry 0..46 0..12, the next 50 0..46 0..2.
    assert dataset.train_labels.tolist() == [0, 2, 7]
    assert dataset.test_labels.tolist() == [3, 0]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("mnist", "data"),
        ("mnist", "data/mnist"),
        ("emnist-bymerge", "data/emnist"),
        ("cifar-10", "data/cifar-10"),
        ("cifar-10", "data/cifar-10/cifar-10-batches-bin"),
        ("mnist", "cache/fedsteer/mnist"),
    ],
)
def test_places_searched(
    name: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSTEER_DATA", str(tmp_path / "data"))
    monkeypatch.setitem(CATALOGUE, name, write(tmp_path / place, name, "", contents_for(name)))
    report = check(name)
    assert report.state == "ok" and report.folder == tmp_path / place


def test_the_package_of_the_operating_system_comes_last() -> None:
    folders = searched_folders(CATALOGUE["fashion-mnist"])
    assert str(folders[-1]) == "/usr/share/datasets/fashion-mnist"
    assert folders[0].name == "fashion-mnist" and len(folders) == 2


def test_missing_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        load("mnist")
    assert str(tmp_path / "cache") in str(caught.value)
    assert "`fedsteer data fetch mnist`" in str(caught.value)
    assert check("mnist").state == "missing"
    with pytest.raises(DataError, match="cannot be downloaded"):
        load("emnist-bymerge", folder=tmp_path)


def test_an_incomplete_folder_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOGUE, "mnist", write(tmp_path, "mnist", ".gz", contents_for("mnist")))
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    assert check("mnist", folder=tmp_path).state == "missing"


def test_other_images_under_the_same_names_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "mnist", ".gz", contents_for("mnist"))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz: not the published file"):
        load("fashion-mnist", folder=tmp_path)
    assert check("mnist", folder=tmp_path).state == "damaged"


def test_other_images_under_the_same_names_do_not_hide_the_right_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = contents_for("mnist")
    first = next(iter(others))
    write(tmp_path / "data", "mnist", "", others | {first: others[first][:-1] + b"!"})
    entry = write(tmp_path / "cache" / "fedsteer" / "mnist", "mnist", "", others)
    monkeypatch.setitem(CATALOGUE, "mnist", entry)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FEDSTEER_DATA", str(tmp_path / "data"))
    assert load("mnist").name == "mnist"
    assert check("mnist").folder == tmp_path / "cache" / "fedsteer" / "mnist"


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        File("folder", 0, "sha256:0").read(tmp_path)
