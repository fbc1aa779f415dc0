"""The built site: every link resolves, nothing comes from elsewhere, search works offline.

Build it with `sphinx-build -W docs build/docs`; without it, these tests are skipped. The test of
the search needs a fresh build (`-E`): Sphinx forgets the index entries of pages not read again.
"""

import re
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest
from helpers.axe import axe_findings
from helpers.paths import CHECKOUT

SITE = CHECKOUT / "build" / "docs"
pytestmark = pytest.mark.skipif(not SITE.is_dir(), reason=f"no site at {SITE}")


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
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    failures = []
    page.on("requestfailed", lambda request: failures.append((request.url, request.failure)))
    page.on("pageerror", lambda error: failures.append((str(error),)))
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=stop_regex")
    page.wait_for_selector("ul.search li a", timeout=20_000)
    results = page.locator("ul.search li a").all_inner_texts()
    assert any("Decoding" in text or "Options" in text for text in results)
    page.locator("ul.search li a").first.click()
    page.wait_for_url(lambda url: "search.html" not in url)
    assert "stop_regex" in page.inner_text("body")
    for name in ("index", "guide/decoding", "internals/decode_step", "reference/options"):
        page.goto((SITE / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    # The next page ends the loading of an icon, which Chromium reports as net::ERR_ABORTED.
    assert [failure for failure in failures if failure[1:] != ("net::ERR_ABORTED",)] == []
    context.close()


TYPED = {
    "saliency", "csv", "gpu", "fine-tune", "steering", "embeddings", "json", "gguf", "lora",
    "quantization", "batch", "streaming", "perplexity", "logprobs", "docker", "windows",
    "uninstall", "license", "cite", "attention", "temperature", "beam", "stop", "regex",
    "schema", "openai", "ray", "parquet", "tokenizer", "vocabulary", "checkpoint",
    "safetensors", "float64", "threads", "seed", "notebook", "classroom", "parity",
    "speed", "kv cache", "stop sequence", "batch size", "context length", "max tokens",
    "repetition penalty", "api key", "offline", "out of memory", "greedy", "proxy", "memory",
    "slow", "system prompt", "attention head", "emoji", "cancel",
}  # fmt: skip


def test_words_that_people_type_find_their_page_first(browser):
    sys.path.insert(0, str(CHECKOUT / "docs" / "_ext"))
    from search_words import targets

    assert len(TYPED) > 40 and targets().keys() >= TYPED

    page = browser.new_page()
    page.goto(f"{(SITE / 'search.html').as_uri()}?q=gpu")
    page.wait_for_selector("ul.search li a", timeout=20_000)
    first = """word => {
        const results = Search._performSearch(...Search._parseQuery(word));
        const [docname, , anchor] = results[results.length - 1] ?? ["nothing", "", ""];
        return docname + anchor;
    }"""
    found = {word: page.evaluate(first, word) for word in targets()}
    assert len(found) > 80
    wrong = {word: found[word] for word, (target, _) in targets().items()
             if found[word].partition("#")[0] != target}  # fmt: skip
    assert wrong == {}


@pytest.mark.parametrize(
    "typed, page",
    [("question answering", "guide/not_here"), ("save model", "guide/models"),
     ("learning rate", "guide/training"), ("rate limit", "guide/server"),
     ("python version", "internals/platforms")],
)  # fmt: skip
def test_other_words_find_a_page_of_the_guide_before_notebooks_and_notes(browser, typed, page):
    tab = browser.new_page()
    tab.goto(f"{(SITE / 'search.html').as_uri()}?q={typed}")
    tab.wait_for_selector("ul.search li a", timeout=20_000)
    assert f"{page}.html" in tab.locator("ul.search li a").first.get_attribute("href")


def test_search_results_have_excerpts_over_http(browser):
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(SITE))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page()
    page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q=lora")
    page.wait_for_selector("ul.search li p.context", timeout=20_000)
    server.shutdown()


def test_axe_finds_nothing_and_the_pages_fit_a_phone(browser):
    page = browser.new_page(viewport={"width": 390, "height": 800})
    for name in ("index", "guide/recipes", "guide/not_here", "guide/install",
                 "guide/constraints", "bridges/transformers", "reference/words",
                 "reference/hook_points", "reference/commands/generate",
                 "reference/api/interp", "tutorial/walkthrough/4_attention",
                 "internals/reproducibility"):  # fmt: skip
        page.goto((SITE / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        assert axe_findings(page) == [], name
