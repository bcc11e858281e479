"""Every data set by name, the files it consists of, and where they come from."""

from __future__ import annotations

from typing import Any

from fedsteer.data.embedded import MadeOptions, digits, made
from fedsteer.data.files import File
from fedsteer.data.formats import cifar_parts, emnist_selection, idx_parts
from fedsteer.data.source import Download, Source
from fedsteer.errors import unknown

_IDX_PARTS = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def _idx_files(*checksums: str) -> tuple[File, ...]:
    return tuple(File(*pair) for pair in zip(_IDX_PARTS, checksums, strict=True))


def _idx_downloads(place: str, *md5: str) -> tuple[Download, ...]:
    pairs = zip(_IDX_PARTS, md5, strict=True)
    return tuple(Download(f"{place}{part}.gz", f"md5:{digest}") for part, digest in pairs)


def _listed(sums: str, **how: Any) -> tuple[File, ...]:
    """Files from names, each followed by its SHA-256."""
    words = sums.split()
    pairs = zip(words[::2], words[1::2], strict=True)
    return tuple(File(name, f"sha256:{digest}", **how) for name, digest in pairs)


_CIFAR_10_FILES = """
data_batch_1.bin cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
data_batch_2.bin a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
data_batch_3.bin bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
data_batch_4.bin 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
data_batch_5.bin 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
test_batch.bin 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
"""
_EMNIST_BALANCED_FILES = """
emnist-balanced-train-images-idx3-ubyte
    74295e75e4e9fa2c102147460ee7eb763653d5132d883a84fb88932bfb8d2db4
emnist-balanced-train-labels-idx1-ubyte
    b46d41e5156a0a8aaaa4d18979fdd1588850fa8571018acffd5d93b325a7d6ed
emnist-balanced-test-images-idx3-ubyte
    117fc12b015e37ea98bfb2cbba3f77c3782c056cdbd219b87abfc8661d7135db
emnist-balanced-test-labels-idx1-ubyte
    a67cac948379b67270b9a4d0a01c8ec661598accf2f2b1964340b7c83cb175cd
"""
_EMNIST_BYMERGE_FILES = """
emnist-bymerge-test-images-idx3-ubyte
    68b2763a83f2661dace0df055282a50f4d4aea3dab401f2a04e2e7e2c5bc8590
emnist-bymerge-test-labels-idx1-ubyte
    17b8bd69b4e584fa425d7268b1f58882ef4bf7f241a6116fa606bb6d36839b5a
emnist-bymerge-supplement-images-idx3-ubyte
    6c2d1b09a924a7b80acc714dbcb8f2caf870eca2e61d47df8df827b41c49d983
emnist-bymerge-supplement-labels-idx1-ubyte
    3c26dd185c3a6c23c4f45713ef457dd711e8ef45917d0e8365f8931e2c8c93c4
balanced-subset-train-index.txt
    29de1311b1447259c2976e902b58cffb8651a4d8a1f35b918a22f41419467a22
balanced-subset-test-index.txt
    6ae27ec1042142d2bf14921a8ab994366a6e81c85a115ecec9f1c01c1a219cf3
"""

_SOURCES = (
    Source(
        name="digits",
        description="1,797 handwritten digits of 8x8, part of scikit-learn; half for testing",
        classes=10,
        make=digits,
    ),
    Source(
        name="made",
        description="made-up images (class prototypes plus noise) for smoke tests",
        classes=4,
        make=made,
        options=MadeOptions,
    ),
    Source(
        name="fashion-mnist",
        description="Fashion-MNIST, 28x28 gray: 60,000 + 10,000 pieces of clothing",
        classes=10,
        reader=idx_parts,
        files=_idx_files(
            "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
        ),
        # The package dataset-fashion-mnist of Debian and its relatives.
        system_folder="/usr/share/datasets/fashion-mnist",
        downloads=_idx_downloads(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    Source(
        name="mnist",
        description="MNIST, 28x28 gray: 60,000 + 10,000 handwritten digits",
        classes=10,
        reader=idx_parts,
        files=_idx_files(
            "md5:6bbc9ace898e44ae57da46a324031adb",
            "md5:a25bea736e30d166cdddb491f175f624",
            "md5:2646ac647ad5339dbf082846283269ea",
            "md5:27ae3e4e09519cfbb04c329615203637",
        ),
        downloads=_idx_downloads(
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    Source(
        name="cifar-10",
        description="CIFAR-10, 32x32 colour: 50,000 + 10,000 photographs, binary version",
        classes=10,
        reader=cifar_parts,
        files=_listed(_CIFAR_10_FILES, packings=("", ".xz")),
        subfolders=("cifar-10/cifar-10-batches-bin", "cifar-10-batches-bin"),
        downloads=(
            Download(
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
                "md5:c32a1d4ab5d03f1284b67883e8d87530",
                members=tuple(
                    f"cifar-10-batches-bin/{file.name}" for file in _listed(_CIFAR_10_FILES)
                ),
            ),
        ),
    ),
    Source(
        name="emnist-balanced",
        description="EMNIST 'balanced', 28x28 gray: 112,800 + 18,800 characters, official",
        classes=47,
        reader=idx_parts,
        files=_listed(_EMNIST_BALANCED_FILES, packings=(".gz",), of_packed=True),
        subfolders=("emnist",),
        downloads=(
            Download(
                "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
                "md5:58c8d27c78d21e728a6bc7b3cc06412e",
                members=tuple(f"gzip/{file.name}.gz" for file in _listed(_EMNIST_BALANCED_FILES)),
            ),
        ),
    ),
    Source(
        name="emnist-bymerge",
        description="from EMNIST ByMerge's test split, 36,942 + 6,157; not 'balanced'",
        classes=47,
        reader=emnist_selection,
        files=_listed(_EMNIST_BYMERGE_FILES),
        subfolders=("emnist",),
        instead="emnist-balanced",
    ),
)

CATALOGUE: dict[str, Source] = {source.name: source for source in _SOURCES}
NAMES: tuple[str, ...] = tuple(CATALOGUE)


def source_of(name: str) -> Source:
    """The data set called `name`, or an error that suggests the nearest name."""
    if name not in CATALOGUE:
        raise unknown("data set", name, CATALOGUE)
    return CATALOGUE[name]
