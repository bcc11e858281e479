"""Records that nobody writes to, at the price of ordinary ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar, dataclass_transform

if TYPE_CHECKING:
    T = TypeVar("T")

    @dataclass_transform(frozen_default=True, field_specifiers=(field,))
    def value(cls: type[T]) -> type[T]:
        """A frozen dataclass to type checkers, an ordinary one when the program runs.

        Freezing at run time makes every field four times as slow to set, and a step of the server
        makes eight such objects.
        """

else:
    value = dataclass
