"""What a state is built of. `state` packs and unpacks it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass
class Component:
    """A part of a state. Subclasses are dataclasses and are found by their name when unpacked."""

    _kinds: ClassVar[dict[str, type[Component]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        known = Component._kinds.setdefault(cls.__name__, cls)
        if known.__module__ != cls.__module__:
            raise TypeError(
                f"{known.__module__} has a Component {cls.__name__} already, and checkpoints know "
                "them by that name"
            )
        Component._kinds[cls.__name__] = cls
