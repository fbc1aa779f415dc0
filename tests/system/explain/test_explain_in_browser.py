"""The page in headless Chromium, loaded from file:// without a network."""

import json

import numpy as np
import pytest
from helpers.explain_pages import MARKUP, PROMPT, SIGNS, gpt2_small

from gpt2np import GenerationOptions, load
from gpt2np.explain import explain
from gpt2np.explain.markup import format_number
from gpt2np.generation import apply_temperature, next_probabilities
from gpt2np.interp import logit_lens
from gpt2np.model.ops import softmax

A4 = 703  # CSS pixels between the margins
SETTINGS = [  # temperature, top-k, top-p, min-p
    (1, 0, 1, 0),
    (0, 0, 1, 0),
    (0.7, 0, 1, 0),
    (2, 0, 1, 0),
    (0.05, 0, 1, 0),
    (1, 1, 1, 0),
    (1, 40, 1, 0),
    (1, 0, 0.9, 0),
    (1, 0, 0.01, 0),
    (0.8, 40, 0.95, 0),
    (1.3, 100, 0.5, 0),
    (1, 0, 1, 0.1),
    (1.5, 0, 1, 0.05),
    (0.9, 50, 0.97, 0.02),
]


@pytest.fixture(scope="module")
def page(bundled):
    return explain(load(bundled), PROMPT)


@pytest.fixture
def open_page(browser, tmp_path):
    """open_page(page, …): open the page in a new tab; fails on any error, dialog or request."""
    contexts, wrong = [], []

    def opened(page, width=1280, **options):
        file = tmp_path / "page.html"
        file.write_text(page.html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **options
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.on("request", lambda request: wrong.append(request.url))
        tab.goto(file.as_uri())
        return tab

    yield opened
    for context in contexts:
        context.close()
    strange = [each for each in wrong if not each.startswith(("file:", "data:"))]
    assert not strange and sum(each.startswith("file:") for each in wrong) == len(contexts)


def sampled(logits, temperature, top_k, top_p, min_p):
    """Probabilities (V) of the library's sampler."""
    options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return next_probabilities(logits, options)


def set_sliders(tab, values):
    tab.evaluate(
        """values => {
            for (const [name, value] of Object.entries(values))
                document.getElementById(`slider-${name}`).value = value;
            const moved = new Event("input", {bubbles: true});
            document.getElementById("slider-top_p").dispatchEvent(moved);
        }""",
        values,
    )


def check_sliders(tab, logits):
    names = ("temperature", "top_k", "top_p", "min_p")
    for setting in SETTINGS:
        set_sliders(tab, dict(zip(names, setting, strict=True)))
        shown = tab.eval_on_selector_all(
            ".bar[data-id]", "bars => bars.map(b => [+b.dataset.id, +b.dataset.sampled])"
        )
        expected = sampled(logits, *setting)
        assert len(shown) == 20
        for number, probability in shown:
            assert probability == pytest.approx(expected[number], abs=1e-6), (setting, number)
        says = tab.eval_on_selector("#mass-says", "e => ({...e.dataset, text: e.textContent})")
        if not setting[0]:
            assert "always the most likely" in says["text"]
            continue
        whole = softmax(apply_temperature(logits, setting[0]).astype(np.float64))
        assert int(says["count"]) == np.count_nonzero(expected), setting
        assert float(says["kept"]) == pytest.approx(whole[expected > 0].sum(), abs=1e-6)
        lost = sum(json.loads(says["lost"]).values())
        assert float(says["kept"]) + lost == pytest.approx(1, abs=1e-9)


def test_the_sliders_give_the_samplers_numbers(open_page, page):
    tab = open_page(page)
    check_sliders(tab, page.run.arrays["logits"][page.run.focus.position])
    tab.click("#sliders button")
    says = tab.locator("#mass-says", has_text="Nothing is discarded")
    says.wait_for()
    assert tab.input_value("#slider-min_p") == "0"


def test_a_slider_by_keyboard(open_page, page):
    tab = open_page(page)
    tab.focus("#slider-top_k")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("#value-top_k") == "1"
    assert tab.locator("tr.discarded").count() == 19
    assert "Kept: 1 of 4,096 tokens" in tab.inner_text("#mass-says")


def shown_bars(tab):
    """Ids and probabilities of the bars at the right of the Machine."""
    return tab.eval_on_selector_all(
        ".machine-bars li",
        "all => all.map(li => [+li.dataset.id, +li.querySelector('data').value])",
    )


def set_moment(tab, moment):
    tab.eval_on_selector(
        ".moment",
        "(range, moment) => { range.value = moment; range.dispatchEvent(new Event('input')); }",
        moment,
    )


def test_any_heads_weights_can_be_read(open_page, page):
    """The Machine's table has all heads of the block and the line that are looked at."""
    tab = open_page(page)
    tab.set_viewport_size({"width": 1280, "height": 420})  # nine of the 17 tokens are in sight
    tab.wait_for_selector(".machine-lines .earlier")
    for layer, line in ((1, 5), (3, len(page.run.ids) - 1), (5, 0)):
        tab.click(f'.machine-blocks [data-layer="{layer}"]')
        while not tab.locator(f'.machine-lines [data-line="{line}"]').count():
            way = ".earlier" if line < 9 else ".later"
            tab.click(f".machine-lines {way}")
        tab.click(f'.machine-lines [data-line="{line}"]')
        shown = tab.eval_on_selector_all(
            ".looks tbody tr",
            "rows => rows.map(r => [...r.querySelectorAll('data')].map(d => +d.value))",
        )
        pattern = page.run.arrays[f"blocks.{layer}.attn.pattern"][:, line, : line + 1]
        np.testing.assert_array_equal(np.float32(shown).T, pattern)


def test_the_guess_of_every_line_after_every_block(open_page, page):
    tab = open_page(page)
    residuals = np.stack([page.run.residual(k) for k in range(7)])
    probabilities = softmax(logit_lens(page.run.lm, residuals).astype(np.float64))
    for line in (3, 8, len(page.run.ids) - 1):
        while not tab.locator(f'.machine-lines [data-line="{line}"]').count():
            tab.click(".machine-lines .earlier" if line < 9 else ".machine-lines .later")
        tab.click(f'.machine-lines [data-line="{line}"]')
        for k, moment in enumerate([0, 3, 5, 7, 9, 11, 13]):
            set_moment(tab, moment)
            bars = shown_bars(tab)
            assert [i for i, _ in bars][:3] == np.argsort(-probabilities[k, line])[:3].tolist()
            for token_id, p in bars:
                assert p == pytest.approx(probabilities[k, line, token_id], abs=1e-6)


def test_the_draw_is_the_librarys(open_page, page):
    tab = open_page(page)
    lm, ids = page.run.lm, page.run.ids
    [drawn] = lm.generate(ids, max_new_tokens=1, temperature=1.0, top_k=0, seed=0).ids
    own = tab.locator(".machine-bars .own")
    assert own.get_attribute("data-id") == str(drawn)
    assert tab.inner_text(".slot").strip() == lm.tokenizer.decode([drawn]).strip()


def test_another_score_term_by_term(open_page, page):
    tab = open_page(page)
    layer, head, query, key = page.run.focus.layer, 2, 7, 3
    for name, value in (("head", head), ("query", query), ("key", key)):
        tab.select_option(f'#score-choice [name="{name}"]', str(value))
    rows = tab.eval_on_selector_all(
        "#score-terms tbody tr",
        "rows => rows.map(r => [...r.querySelectorAll('data')].map(d => +d.value))",
    )
    q = page.run.arrays[f"blocks.{layer}.attn.q"][head, query]
    k = page.run.arrays[f"blocks.{layer}.attn.k"][head, : query + 1]
    terms = q * k[key]
    np.testing.assert_array_equal(np.array(rows, np.float32)[:, 0], q)
    np.testing.assert_array_equal(np.array(rows, np.float32)[:, 2], terms)
    np.testing.assert_array_equal(np.array(rows, np.float32)[:, 3], np.cumsum(terms))
    score = float(tab.eval_on_selector("#score-sum data:last-of-type", "d => d.value"))
    scale = page.run.config.attention_scale(layer)
    assert score == pytest.approx(np.float64(q) @ np.float64(k[key]) * scale, rel=1e-5, abs=1e-5)
    shown = tab.eval_on_selector_all(
        "#score-row tbody tr", "rows => rows.map(r => +r.lastElementChild.firstChild.value)"
    )
    pattern = page.run.arrays[f"blocks.{layer}.attn.pattern"][head, query, : query + 1]
    np.testing.assert_array_equal(np.array(shown, np.float32), pattern)
    tab.select_option('#score-choice [name="query"]', "1")  # token 1 does not attend to token 3
    assert tab.input_value('#score-choice [name="key"]') == "1"


def opacities(strip):
    """Opacity of every pixel of a strip's picture, 0 … 255."""
    return np.array(
        strip.evaluate(
            """async image => {
                await image.decode();
                const canvas = document.createElement("canvas");
                [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
                const context = canvas.getContext("2d");
                context.drawImage(image, 0, 0);
                const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
                const rows = Array.from({length: canvas.height}, () => []);
                for (let at = 3; at < data.length; at += 4)
                    rows[Math.floor(at / 4 / canvas.width)].push(data[at]);
                return rows;
            }"""
        )
    )


@pytest.mark.parametrize("letter", "qkv")
def test_another_heads_strips_are_its_own(open_page, page, letter):
    """Picture, description, color limit and inspected number follow the selected head."""
    tab = open_page(page)
    focus = page.run.focus
    arrays = page.run.arrays[f"blocks.{focus.layer}.attn.{letter}"]
    strip = tab.locator(f'[data-strip="blocks.{focus.layer}.attn.{letter}"]')
    figure = tab.locator("figure.strip", has=strip)
    strip.focus()
    tab.keyboard.press("ArrowRight")
    for head in [h for h in range(len(arrays)) if h != focus.head] + [focus.head]:
        tab.select_option('#score-choice [name="head"]', str(head))
        limit = np.quantile(np.abs(arrays[head]), 0.995)
        assert figure.locator(".limit").inner_text() == format_number(limit)
        assert f" of head {head};" in strip.get_attribute("alt")
        assert f" of head {head}" in figure.locator("figcaption").inner_text()
        shown = figure.locator(".readout").get_attribute("data-value")
        assert np.float32(shown) == arrays[head][0, 1]
        levels = np.rint(127 * np.clip(np.abs(arrays[head]) / limit, 0, 1))
        np.testing.assert_array_equal(opacities(strip), np.rint(255 * levels / 127))


@pytest.mark.parametrize(
    ("name", "point"), [("embed", "embed"), ("wte", None), ("norm.out.row", None)]
)
def test_a_strips_numbers_can_be_read(open_page, page, name, point):
    tab = open_page(page)
    array = page.run.arrays[point] if point else page.numbers.arrays[name]
    strip = tab.locator(f'[data-strip="{name}"]')
    strip.scroll_into_view_if_needed()
    box = strip.bounding_box()
    row, column = len(array) // 2, array.shape[1] // 3
    at = {
        "x": box["width"] * (column + 0.5) / array.shape[1],
        "y": box["height"] * (row + 0.5) / len(array),
    }
    strip.hover(position=at)
    out = tab.locator("figure.strip", has=strip).locator(".readout")
    assert np.float32(out.get_attribute("data-value")) == array[row, column]
    strip.focus()
    tab.keyboard.press("ArrowRight")
    assert np.float32(out.get_attribute("data-value")) == array[row, column + 1]
    assert f"number {column + 1}: " in out.inner_text()


def test_no_width_scrolls_sideways(open_page, page):
    tab = open_page(page)
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for width in (320, 360, 390, 768, 1080, 1280, 2000):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light(open_page, page):
    grounds = [
        open_page(page, color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    ]
    assert grounds == ["rgb(253, 252, 250)", "rgb(20, 23, 27)"]


def texts_of_details(tab):
    return tab.evaluate(
        """() => [...document.querySelectorAll("details table")].map(t => {
            const box = t.getBoundingClientRect();
            return [t.checkVisibility({contentVisibilityAuto: true}), box.height];
        })"""
    )


@pytest.mark.parametrize("script", [True, False])
def test_on_paper_everything_is_open_and_nothing_cut_off(open_page, page, script):
    tab = open_page(page, width=A4, java_script_enabled=script)
    tab.emulate_media(media="print")
    if script:
        tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    shown = texts_of_details(tab)
    assert len(shown) > 10 and all(visible and height > 10 for visible, height in shown)
    assert tab.evaluate("document.documentElement.scrollWidth") <= A4
    cut = tab.evaluate(
        """() => [...document.querySelectorAll("main *")].filter(e => {
            const style = getComputedStyle(e);
            return e.scrollHeight > e.clientHeight + 2 && e.clientHeight > 0 &&
                /auto|scroll|hidden/.test(style.overflowY) && style.clipPath === "none" &&
                !e.closest(".token, .machine");
        }).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert not cut
    assert tab.evaluate("[...document.querySelectorAll('nav, form')].every(e => !e.offsetHeight)")
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") > 8


def test_without_the_script(open_page, page):
    tab = open_page(page, java_script_enabled=False)
    assert "Without JavaScript" in tab.inner_text("header")
    assert tab.locator(".needs-script:visible").count() == 0
    body = tab.inner_text("main")
    for words in ("The score, term by term", "What common settings keep", "all 4,076 others"):
        assert words in body
    assert tab.locator(".bar:visible").count() >= 20
    assert tab.evaluate(
        "[...document.images].every(i => i.complete && i.naturalWidth && i.getAttribute('alt'))"
    )


@pytest.mark.parametrize("prompt", [MARKUP, SIGNS], ids=["markup", "signs"])
def test_a_hostile_prompt_shows_itself_and_does_nothing(open_page, bundled, prompt):
    page = explain(load(bundled), prompt, steps=1, float64=False)
    tab = open_page(page, width=360)
    shown = tab.evaluate("document.querySelector('pre.prompt').textContent")
    if prompt == MARKUP:
        assert shown == MARKUP
    for character in "🦊שלום" if prompt == SIGNS else "":
        assert character in shown
    if prompt == SIGNS:
        assert "\\u202eabc\\x00\\x1b[31m\\r↵\n\\tend" in shown
    tab.click('.machine-blocks [data-layer="0"]')
    tab.locator(".machine-lines [data-line]").first.click()
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("document.querySelectorAll('bdi script, pre img').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_gpt2_smalls_shape_in_the_browser(open_page, gpt2_vocabulary, tmp_path):
    lm = gpt2_small(gpt2_vocabulary, tmp_path)
    page = explain(lm, f"{PROMPT} it was to be out in the wood, under the", steps=2)
    tab = open_page(page)
    check_sliders(tab, page.run.arrays["logits"][-1])
    for moment in np.arange(0, 27, 0.5):
        set_moment(tab, float(moment))
    assert np.median(tab.evaluate("document.getElementById('machine').frames")) < 16
    narrow = open_page(page, 360)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
