"""The built site: every link resolves, nothing comes from elsewhere, search works offline.

Build it with `sphinx-build -W docs build/docs`; without it, these tests are skipped.
"""

import re
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import pytest
from helpers.axe import axe_findings
from helpers.paths import CHECKOUT

SITE = CHECKOUT / "build" / "docs"
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason=f"no site at {SITE}")
# Thousands of spans color the code by their classes: keep one of each for axe.
FEWER_SPANS = """() => [...document.querySelectorAll(".highlight span")].reduce((seen, span) => {
    const around = [span, span.parentNode, span.closest("div").parentNode];
    const classes = around.map((each) => each.className).join();
    if (seen.has(classes)) span.replaceWith(...span.childNodes);
    return seen.add(classes);
}, new Set()).size"""


class Page(HTMLParser):
    """The links, resources and anchors of an HTML page."""

    def __init__(self, text):
        super().__init__()
        self.links, self.resources, self.anchors = [], [], set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.anchors |= {attributes.get("id"), attributes.get("name")}
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])
        for name in ("src", "href"):
            if tag != "a" and attributes.get(name):
                self.resources.append(attributes[name])


@pytest.fixture(scope="module")
def pages():
    paths = [path for path in SITE.rglob("*.html") if "_static" not in path.parts]
    return {path: Page(path.read_text(encoding="utf-8")) for path in paths}


def test_every_internal_link_and_anchor_resolves(pages):
    assert len(pages) > 60
    for path, page in pages.items():
        for link in [*page.links, *page.resources]:
            parts = urlsplit(link)
            if parts.scheme:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            assert target.exists(), f"{path.name}: {link}"
            if parts.fragment and target in pages:
                assert unquote(parts.fragment) in pages[target].anchors, f"{path.name}: {link}"


def test_nothing_comes_from_elsewhere(pages):
    for path, page in pages.items():
        for resource in page.resources:
            assert urlsplit(resource).scheme in ("", "data"), f"{path.name}: {resource}"
    for style in SITE.rglob("*.css"):
        text = style.read_text(encoding="utf-8")
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", text), style


def test_the_site_works_from_disk_without_a_network(browser):
    page = browser.new_page(offline=True, viewport={"width": 390, "height": 800})
    failures = []
    page.on("requestfailed", lambda request: failures.append((request.url, request.failure)))
    page.on("pageerror", lambda error: failures.append((str(error),)))
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=stop_token_ids")
    page.wait_for_selector("ul.search li a", timeout=20_000)
    results = page.locator("ul.search li a").all_inner_texts()
    assert any("Decoding" in text or "Options" in text for text in results)
    page.locator("ul.search li a").first.click()
    page.wait_for_url(lambda url: "search.html" not in url)
    assert "stop_token_ids" in page.inner_text("body")
    for name in ("index", "guide/decoding", "internals/design", "reference/options"):
        page.goto((SITE / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    # The next page ends the loading of an icon, which Chromium reports as net::ERR_ABORTED.
    assert [failure for failure in failures if failure[1:] != ("net::ERR_ABORTED",)] == []
    page.close()


def test_axe_finds_nothing_and_the_pages_fit_a_phone(browser):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    for name in ("index", "guide/models", "guide/inside", "guide/install",
                 "guide/constraints", "bridges/transformers",
                 "reference/hook_points", "reference/commands",
                 "reference/api/generation", "tutorial/walkthrough/4_attention",
                 "internals/numbers"):  # fmt: skip
        page.goto((SITE / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        page.evaluate(FEWER_SPANS)
        assert axe_findings(page) == [], name
