"""Named data sets and their division among clients.

    dataset              `Dataset`: images and labels, scaled to [0, 1] on request
    catalogue, entry     `NAMES`, `CATALOGUE`: what exists, its files, checksums and origin
    loading              `load`: from a name to a data set
    embedded             `digits`, `made`: data sets without files
    checking, fetching   `check`, `fetch`: verify what is on disk, download what is not
    files, formats       finding and unpacking files; IDX, CIFAR binary, index lists
    partition            `Partition`, `who_holds_what`
    partition_*, quotas  `label_groups` (the paper's), `dirichlet`, `shards`, `iid`

Everything is NumPy; scikit-learn and pooch are imported when a function needs them.
"""

from fedsteer.data.catalogue import CATALOGUE, NAMES
from fedsteer.data.checking import CheckReport, check
from fedsteer.data.dataset import Dataset
from fedsteer.data.embedded import digits, made
from fedsteer.data.fetching import fetch
from fedsteer.data.loading import load
from fedsteer.data.partition import Partition, who_holds_what
from fedsteer.data.partition_dirichlet import dirichlet
from fedsteer.data.partition_groups import label_groups
from fedsteer.data.partition_iid import iid
from fedsteer.data.partition_shards import shards

__all__ = [
    "CATALOGUE",
    "NAMES",
    "CheckReport",
    "Dataset",
    "Partition",
    "check",
    "digits",
    "dirichlet",
    "fetch",
    "iid",
    "label_groups",
    "load",
    "made",
    "shards",
    "who_holds_what",
]
