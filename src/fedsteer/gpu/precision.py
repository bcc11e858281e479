"""How exactly torch multiplies float32 numbers, whatever the program around us allows.

A program may let torch round the factors (`torch.set_float32_matmul_precision("high")` and its
kind). Torch has two sets of names for that; once both were used it refuses to read the older ones.
So where there are newer ones, only those are touched, and put back as they were.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

cudnn = torch.backends.cudnn
AS_IT_IS = nullcontext()


class Flag(NamedTuple):
    """One of torch's, and a value for it."""

    owner: Any
    name: str
    value: object


class Switch(NamedTuple):
    """What decides how one backend multiplies."""

    owner: Any
    name: str
    exact: object
    rounded: object

    def turned(self, exact: bool) -> Flag:
        """The flag as it is for exact products, or for rounded ones."""
        return Flag(self.owner, self.name, self.exact if exact else self.rounded)

    @property
    def rounds(self) -> bool:
        """Whether products are anything but exact now."""
        return getattr(self.owner, self.name) not in (self.exact, "none")


def _switches(newer: str, older: Any = None) -> list[Switch]:
    """Of these parts of torch.backends by their newer names; where torch has none, the older."""
    if hasattr(cudnn, "conv"):
        parts = [attrgetter(part)(torch.backends) for part in newer.split()]
        return [Switch(part, "fp32_precision", "ieee", "tf32") for part in parts]
    return [] if older is None else [Switch(older, "allow_tf32", False, True)]


MATRICES = _switches("cuda.matmul", torch.backends.cuda.matmul)
ON_THE_HOST = _switches("mkldnn.matmul")
CONVOLUTIONS = _switches("cudnn.conv cudnn.rnn", cudnn)


@contextmanager
def flags(wanted: list[Flag]) -> Iterator[None]:
    """Torch's flags, set like this as long as it lasts."""
    before = [Flag(owner, name, getattr(owner, name)) for owner, name, _ in wanted]
    try:
        for flag in wanted:
            setattr(*flag)
        yield
    finally:
        for flag in before:
            setattr(*flag)


@contextmanager
def precision(exact: bool, like: Tensor) -> Iterator[None]:
    """On a GPU: float32 products where `exact`, else tf32, and the same bits every time.

    Torch by itself allows tf32 in convolutions.
    """
    if not like.is_cuda:
        yield
        return
    same = Flag(cudnn, "benchmark", False), Flag(cudnn, "deterministic", True)
    products = [switch.turned(exact) for switch in (*MATRICES, *CONVOLUTIONS)]
    with flags([Flag(cudnn, "enabled", True), *same, *products]):
        yield


def exact_products(like: Any) -> AbstractContextManager[None]:
    """Where arrays like this one lie, torch rounds no factor of a product of matrices."""
    switches = MATRICES if like.device.type == "cuda" else ON_THE_HOST
    rounding = [switch for switch in switches if switch.rounds]
    return flags([switch.turned(exact=True) for switch in rounding]) if rounding else AS_IT_IS
