"""Fixtures of the tests in a browser."""

import shutil

import pytest

# The first that is there: Chromium's headless shell takes half the processor time of Chromium.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome-stable")


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="no playwright here")
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"no browser here: none of {', '.join(BROWSERS)} is on the path")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()
