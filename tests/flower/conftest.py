"""Flower's own imports warn about its dependencies; ours are held to zero warnings."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("flwr", reason="Flower is not installed")
    import flwr.clientapp
    import flwr.serverapp.strategy  # noqa: F401


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "engine: SuperLink and SuperNodes as processes; `make test-engine` runs them"
    )
