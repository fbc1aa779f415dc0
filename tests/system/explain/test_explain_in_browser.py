"""The page in headless Chromium, loaded from file:// without a network."""

import re

import numpy as np
import pytest
from helpers.axe import axe_findings
from helpers.explain_pages import MARKUP, PROMPT, SIGNS, described_logits
from helpers.playground import FASTER, cells, leave, set_moment

from gpt2np.interp import logit_lens, nearest_tokens, trace
from gpt2np.model.ops import softmax
from gpt2np.view.explain import explain

A4 = 703  # CSS pixels between the margins
FITS = "w => document.documentElement.scrollWidth <= w"  # once the canvas is laid out again


@pytest.fixture(scope="module")
def page(lm):
    return explain(lm, PROMPT)


@pytest.fixture(scope="module")
def traced(lm):
    return trace(lm, PROMPT)


@pytest.fixture(scope="module")
def open_page(browser, tmp_path_factory):
    """open_page(page, …): open the page in a new tab; fails on any error, dialog or request."""
    folder = tmp_path_factory.mktemp("pages")
    contexts, wrong = [], []

    def opened(page, width=1280, **options):
        file = folder / f"{len(contexts)}.html"
        file.write_text(page.html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **options
        )
        contexts.append(context)
        context.add_init_script(f"{FASTER}(10)")
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.on("request", lambda request: wrong.append(request.url))
        tab.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            tab.wait_for_selector("html[data-ready]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    strange = [each for each in wrong if not each.startswith(("file:", "data:"))]
    assert not strange and sum(each.startswith("file:") for each in wrong) == len(contexts)


@pytest.fixture(scope="module")
def shared_tab(open_page, page):
    return open_page(page)


@pytest.fixture
def tab(shared_tab, traced):
    """A tab with the page, at the end of the pass of the last token."""
    shared_tab.set_viewport_size({"width": 1280, "height": 900})
    shared_tab.emulate_media(media="screen")
    leave(shared_tab)
    choose(shared_tab, len(traced.ids) - 1)
    set_moment(shared_tab, shared_tab.get_attribute(".moment", "max"))
    shared_tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = false; })")
    return shared_tab


def table(tab):
    """The columns of the table of a place."""
    tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
    tab.wait_for_selector(".zoom-table[open] table")
    rows = tab.eval_on_selector_all(
        ".zoom-table tbody tr",
        "all => all.map(r => [...r.querySelectorAll('data')].map(d => +d.value))",
    )
    return np.float32(rows).T


def choose(tab, line):
    while not tab.locator(f'.machine-lines [data-line="{line}"]').count():
        first = int(tab.locator(".machine-lines [data-line]").first.get_attribute("data-line"))
        tab.click(f".machine-lines {'.earlier' if line < first else '.later'}")
    tab.focus(f'.machine-lines [data-line="{line}"]')
    tab.mouse.move(1, 1)  # a resting pointer would look at the name that comes to lie under it


def open_head(tab, layer, head):
    tab.locator(".machine-blocks button").nth(layer).press("Enter")
    tab.locator(".target.spot").nth(head).press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=head]")


def said(tab, selector):
    """What a screen reader says of elements."""
    return tab.eval_on_selector_all(selector, "all => all.map(e => e.ariaLabel).join('\\n')")


def test_the_list_is_the_librarys_and_nothing_is_drawn(tab, lm, traced):
    probabilities = softmax(described_logits(lm, traced.ids))
    shown = cells(tab, ".machine-bars li")
    assert [i for i, _ in shown] == np.argsort(-probabilities)[: len(shown)].tolist()
    np.testing.assert_allclose([p for _, p in shown], -np.sort(-probabilities)[: len(shown)], 1e-6)
    assert not tab.locator(".draw").count()


@pytest.mark.parametrize(("layer", "line"), [(0, 0), (5, 18)])
def test_the_numbers_are_the_librarys(tab, lm, traced, layer, line):
    """The guesses after a block, the vectors of the row in it, and a head's pattern."""
    choose(tab, line)
    set_moment(tab, 3 + 2 * layer)
    probabilities = softmax(logit_lens(lm, traced[f"blocks.{layer}.resid"][line]))
    for token_id, p in cells(tab, ".machine-bars li"):
        assert p == pytest.approx(probabilities[token_id], rel=3e-4)
    assert str(probabilities.argmax()) == tab.get_attribute(".machine-bars li", "data-id")
    tab.locator(".machine-blocks button").nth(layer).press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=block]")
    _, attention, between, _, after = table(tab)
    for shown, name in ((attention, "attn.out"), (between, "resid_mid"), (after, "resid")):
        expected = traced[f"blocks.{layer}.{name}"][line]
        np.testing.assert_allclose(shown, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max())
    tab.locator(".target.spot").nth(1).press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=head]")
    looks = [float(x) for x in re.findall(r": <?\xa0?([\d.]+)", said(tab, ".target.spot"))]
    pattern = traced[f"blocks.{layer}.attn.pattern"][1, line, : line + 1]
    np.testing.assert_allclose(looks, 100 * pattern, rtol=0.06, atol=0.06)


def test_a_score_is_multiplied_out_without_a_server(tab, lm, traced):
    choose(tab, 7)
    open_head(tab, 4, 2)
    tab.locator(".target.spot").nth(3).press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=score]")
    q, k = (np.float32(np.float16(traced[f"blocks.4.attn.{x}"][2])) for x in "qk")
    np.testing.assert_array_equal(table(tab), np.stack([q[7], k[3], q[7] * k[3]]))
    total, scale = np.float64(q[7]) @ np.float64(k[3]), lm.model.config.attention_scale(4)
    share = traced["blocks.4.attn.pattern"][2, 7, 3]
    said = tab.eval_on_selector_all(".machine-caption data", "all => all.map(d => +d.value)")
    np.testing.assert_allclose(said, [total, scale, total * scale, share], rtol=1e-3)


def test_a_token_opens_with_its_merges_and_neighbors(tab, lm):
    choose(tab, 8)
    tab.keyboard.press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=token]")
    [token] = lm.tokenizer.encode(" fox")
    ids, cosines = nearest_tokens(lm.model.weights["wte.weight"], [token], 12)
    merges = tab.inner_text(".machine-targets")
    for neighbor, cosine in list(zip(ids[0], cosines[0], strict=True))[:5]:
        assert lm.tokenizer.decode([int(neighbor)]).strip() in merges
        assert f"{cosine:.2f}" in merges
    for step in lm.tokenizer.merge_steps(" fox")[:-1]:
        assert f"rank {step.ranks[step.chosen]}" in merges


def test_no_part_says_that_it_can_be_switched_off(tab):
    box, said = tab.locator(".machine-canvas").bounding_box(), set()
    for i in range(0, 200, 10):
        tab.mouse.move(box["x"] + 0.15 * box["width"] + i, box["y"] + box["height"] - 40)
        said.add(tab.inner_text(".machine-tip"))
    assert any("Go into block" in each for each in said)
    assert not any("Press" in each for each in said)


def test_neither_a_window_nor_paper_scrolls_sideways(tab):
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for width in (320, 360, 390, 768, 1080, 1280, 2000):
        tab.set_viewport_size({"width": width, "height": 800})
        tab.wait_for_function(FITS, arg=width, timeout=5000)
    tab.set_viewport_size({"width": A4, "height": 900})
    tab.emulate_media(media="print")
    tab.wait_for_function(FITS, arg=A4, timeout=5000)


def test_axe_finds_nothing(open_page, lm):
    assert axe_findings(open_page(explain(lm, PROMPT[:16]))) == []


def test_without_the_script(open_page, page):
    tab = open_page(page, java_script_enabled=False)
    assert "needs JavaScript" in tab.inner_text("main")
    assert PROMPT[:40] in tab.inner_text("h1")


@pytest.mark.parametrize("prompt", [MARKUP, SIGNS], ids=["markup", "signs"])
def test_a_hostile_prompt_shows_itself_and_does_nothing(open_page, lm, prompt):
    tab = open_page(explain(lm, prompt), width=360)
    tab.locator(".machine-lines [data-line]").first.click()
    tab.click('.machine-blocks [data-layer="0"]', force=True)
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("document.querySelectorAll('bdi script, main img').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
