"""A real browser for tests of pages: selenium with chromium; such tests are skipped without."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


@contextmanager
def browser(profile: Path) -> Iterator[Any]:
    """A headless chromium whose profile is in that folder."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    chromedriver = shutil.which("chromedriver")
    if chromium is None or chromedriver is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking",
                 "no-first-run", f"user-data-dir={profile}"):  # fmt: skip
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(executable_path=chromedriver)
    driver = webdriver.Chrome(options=options, service=service)
    driver.set_script_timeout(30)
    try:
        yield driver
    finally:
        driver.quit()


def show_as(driver: Any, width: int, dark: bool) -> None:
    """Set the width of the screen, a phone's below 500, and light or dark."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def load(driver: Any, address: str) -> None:
    """Go there, and be there: on a busy machine `get` may return while the old page still is."""
    driver.get(address)
    there = "return location.href === arguments[0] && document.readyState === 'complete'"
    waiting(driver).until(lambda _: driver.execute_script(there, address))


def waiting(driver: Any) -> Any:
    return importlib.import_module("selenium.webdriver.support.wait").WebDriverWait(driver, 30)
