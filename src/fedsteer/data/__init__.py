"""Named data sets, and partitions of them among clients.

    catalogue            `CATALOGUE`: every data set, its files, checksums and origin
    loading              `load`: from a name to a data set; `check`: is it here and intact?
                         `fetch`: download it
    embedded             `digits`, `made`: data sets without files
    dataset              `Dataset`: images and labels, scaled to [0, 1] on request
    files                unpacking and verifying files; IDX, CIFAR binary, index lists
    partition            `Partition`, `PartitionOptions`
    partition_*          `LabelGroups` (the paper's), `Dirichlet`, `Shards`, `Iid`

Everything is NumPy; scikit-learn and pooch are imported by the functions that need them.
"""

from fedsteer.data.catalogue import CATALOGUE
from fedsteer.data.dataset import Dataset
from fedsteer.data.embedded import digits, made
from fedsteer.data.loading import check, fetch, load
from fedsteer.data.partition import Partition, PartitionOptions
from fedsteer.data.partition_dirichlet import Dirichlet
from fedsteer.data.partition_groups import LabelGroups
from fedsteer.data.partition_iid import Iid
from fedsteer.data.partition_shards import Shards

__all__ = [
    "CATALOGUE",
    "PARTITIONS",
    "Dataset",
    "Dirichlet",
    "Iid",
    "LabelGroups",
    "Partition",
    "PartitionOptions",
    "Shards",
    "check",
    "digits",
    "fetch",
    "load",
    "made",
]

PARTITIONS: dict[str, type[PartitionOptions]] = {
    options.kind: options for options in (LabelGroups, Dirichlet, Shards, Iid)
}
"""`partition.kind` -> its options. A new partition is entered here."""
