"""A real Chromium without a window, driven through the distribution's own driver.

Debian: ``apt-get install chromium chromium-driver``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Literal

from selenium import webdriver

from support.helpers import not_installed

Scheme = Literal["light", "dark"]


def missing() -> str:
    """Why it cannot start here; empty when it can."""
    return not_installed("chromium", "chromedriver")


class Browser:
    """One window; each page begins without the messages of the page before."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(
        self, page: Path, *, width: int = 1280, height: int = 800, scheme: Scheme = "light", media: str = "screen"
    ) -> None:
        """Loads a page for a screen of this width in CSS pixels, or for paper (``media="print"``)."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._log()
        self.driver.get(page.as_uri())

    def messages(self) -> list[str]:
        """Errors and warnings in the console of the page."""
        return [str(entry["message"]) for entry in self._log()]

    def _log(self) -> list[dict[str, object]]:
        """Messages since the last call."""
        return self.driver.get_log("browser")  # type: ignore[no-untyped-call,no-any-return]

    def run(self, script: str) -> object:
        """The value that a script in the page returns; the driver is not bound by the policy of the page."""
        return self.driver.execute_script(script)

    def findings(self) -> list[str]:
        """What axe-core finds about accessibility: rule, impact, and the first element."""
        self.driver.execute_script(resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8"))
        found = self.driver.execute_async_script("axe.run(document).then(arguments[arguments.length - 1])")
        assert found["passes"], "axe-core checked nothing"
        return [f"{one['id']} ({one['impact']}): {one['nodes'][0]['html'][:200]}" for one in found["violations"]]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """A browser that ends with the block."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    options.add_argument("--headless=new")
    options.add_argument("--hide-scrollbars")
    options.add_argument("--disable-dev-shm-usage")
    if os.geteuid() == 0:  # its sandbox refuses root
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
