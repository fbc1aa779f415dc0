"""Findings of axe, which checks the accessibility of a page."""

from typing import Any

import pytest

# Only the contrast of colors depends on the color scheme.
RULES = {"light": {}, "dark": {"runOnly": ["color-contrast"]}}


def axe_findings(page: Any, *, with_minor: bool = True) -> list[tuple[str, str, list[str]]]:
    """Return each rule that an open page breaks, light or dark, with the first such elements."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page.evaluate(axe.axe_script)
    findings = []
    for scheme, rules in RULES.items():
        page.emulate_media(color_scheme=scheme)
        options = {"resultTypes": ["violations"], **rules}
        run = "options => axe.run(options).then(results => results.violations)"
        findings += [
            (scheme, rule["id"], [node["html"][:120] for node in rule["nodes"][:3]])
            for rule in page.evaluate(run, options)
            if with_minor or rule["impact"] != "minor"
        ]
    return findings
