"""Findings of axe, which checks the accessibility of a page."""

from typing import Any

import pytest


def axe_findings(page: Any, *, with_minor: bool = True) -> list[tuple[str, list[str]]]:
    """Return each rule that an open page breaks, with the first elements that break it."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    return [
        (rule["id"], [node["html"][:120] for node in rule["nodes"][:3]])
        for rule in axe.run(page).response["violations"]
        if with_minor or rule["impact"] != "minor"
    ]
