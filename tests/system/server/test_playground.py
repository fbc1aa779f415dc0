"""The playground in headless Chromium, which reaches nothing but the server."""

import base64
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from helpers.axe import axe_findings
from helpers.explain_pages import MARKUP, SIGNS
from helpers.random_models import save_byte_model
from helpers.references import save_reference
from helpers.server import running_server

from gpt2np import GenerationOptions, trace
from gpt2np.generation.sampling import log_softmax, next_probabilities
from gpt2np.interp import Target, lens_table, saliency, scale, zero_head
from gpt2np.interp.weights import nearest_tokens
from gpt2np.model.ops import softmax

httpx = pytest.importorskip("httpx")
expect = pytest.importorskip("playwright.sync_api").expect
for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

PROMPT = "Once upon a time there was a little fox"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server"), "--model", "bundled") as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def open_tab(browser, server):
    """open_tab(…): open the playground; fails on a console message, error or foreign request."""
    yield from open_tabs(browser, server)


@pytest.fixture(scope="class")
def open_shared_tab(browser, server):
    """Like `open_tab`, for a tab that several tests use."""
    yield from open_tabs(browser, server)


def open_tabs(browser, server):
    contexts, wrong = [], []

    def opened(fragment="", url=server.url, key=None, expected=(), before=None, **options):
        size = {"width": options.pop("width", 1280), "height": options.pop("height", 900)}
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)

        def note(text):
            if not any(words in text for words in expected):
                wrong.append(text)

        def watch(tab):
            tab.on("console", lambda message: note(message.text))
            tab.on("pageerror", lambda error: note(str(error)))
            tab.on("dialog", lambda dialog: note(dialog.message))
            local = (url, "data:", "blob:", "about:")
            tab.on("request", lambda r: None if r.url.startswith(local) else note(r.url))

        context.on("page", watch)
        tab = context.new_page()
        tab.set_default_timeout(30_000)
        if before:
            before(tab)
        tab.goto(f"{url}/{fragment}")
        if key:
            tab.fill("#key", key)
            tab.click("#key-form button")
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def write(tab, prompt=None, **settings):
    """Set the prompt and the settings, and let the model write without the guide's stops."""
    if prompt is not None:
        if tab.is_visible("#edit"):
            tab.click("#edit")
        tab.fill("#prompt", prompt)
    set_inputs(tab, settings)
    tab.click("#generate")
    wait_for_end(tab)


def set_inputs(tab, values):
    tab.evaluate(
        """values => {
            for (const [name, value] of Object.entries(values)) {
                const input = document.getElementById(name);
                input.value = value;
                input.dispatchEvent(new Event("input", {bubbles: true}));
            }
        }""",
        values,
    )


def wait_for_end(tab):
    """Wait until a text is written; the guide does not stop."""
    tab.wait_for_function(
        """() => {
            if (document.querySelector("#machine").dataset.mode === "guide")
                document.querySelector(".skip-stops").click();
            return !document.querySelector("#edit").hidden;
        }"""
    )
    settle(tab)


def settle(tab):
    """Wait until the picture shows the selected token's pass."""
    tab.wait_for_timeout(30)
    tab.wait_for_selector("#machine:not([aria-busy])")


def look_at(tab, index):
    tab.click(f'#story [data-index="{index}"]')
    settle(tab)


def open_below(tab, name="more"):
    if tab.is_hidden(f"#{name}"):
        tab.click(f"#{name}-button")


def switch(tab, part):
    """Press a part of the model, and wait for the second text."""
    open_below(tab, "off")
    tab.click(f'.cell[data-part="{part}"]')
    tab.wait_for_selector("#story-name:not([hidden])", state="attached")
    wait_for_end(tab)


def story(tab):
    """Ids and probabilities of the generated tokens."""
    pieces = tab.eval_on_selector_all(
        "#story .piece:not(.given):not(.next)", "all => all.map(p => [+p.dataset.id, +p.dataset.p])"
    )
    return [i for i, _ in pieces], [p for _, p in pieces]


def generated(lm, prompt=PROMPT, **options):
    options = {"temperature": 0.8, "top_k": 40, "top_p": 1.0, "max_new_tokens": 30, **options}
    return lm.generate(prompt, logprobs=10, **options)


def cells(tab, selector):
    """Ids and the numbers of the rows of a table."""
    return tab.eval_on_selector_all(
        selector,
        """rows => rows.map(row => [
            +(row.dataset.id ?? row.querySelector('[data-id]')?.dataset.id),
            ...[...row.querySelectorAll('data')].map(d => +d.value)])""",
    )


def set_moment(tab, moment):
    tab.eval_on_selector(
        ".moment",
        "(range, moment) => { range.value = moment; range.dispatchEvent(new Event('input')); }",
        float(moment),
    )


VISIBLE = """selector => [...document.querySelectorAll(selector)].filter(each => {
    const { width, bottom, top, left } = each.getBoundingClientRect();
    return each.checkVisibility({ visibilityProperty: true })
        && width > 2 && top < innerHeight && bottom > 0 && left < innerWidth && left > -width;
})"""
CONTROLS = "button, input, select, textarea, summary, a, [role=listbox], [role=button]"


class TestGuide:
    """The first screen, and the loop: a token is read, predicted, drawn and written."""

    def test_the_first_screen_has_few_controls_and_words(self, open_tab):
        tab = open_tab(height=720)
        assert len(tab.evaluate(f"({VISIBLE})('{CONTROLS}')")) <= 15
        assert len(tab.inner_text("main").split()) <= 60
        assert tab.evaluate("document.scrollingElement.scrollHeight") == 720

    def test_the_first_token_stops_at_each_phase(self, open_tab, lm):
        """The sentences name the class's words, and nothing tells the answer before its time."""
        tab = open_tab(reduced_motion="reduce")
        tab.fill("#prompt", "The wolf and the lamb")
        tab.wait_for_selector("#machine:not([aria-busy]) [data-line='4']")
        assert tab.locator(".machine-bars li").count() == 0
        assert tab.locator("button.primary:visible").all_inner_texts() == ["Write ▷"]
        tab.click("#generate")
        tab.wait_for_selector("#machine[data-mode=guide]")
        assert tab.locator("button.primary:visible").all_inner_texts() == ["Next ▸"]
        said = []
        for moment in ("1.000", "2.000", "3.000", "13.000", "14.000", "15.000"):
            tab.wait_for_selector(f"#machine[data-moment='{moment}']")
            said.append(tab.inner_text(".machine-caption"))
            assert tab.locator(".machine-bars li").count() == (9 if float(moment) > 13 else 0)
            assert tab.is_visible(".draw") == (moment == "15.000")
            assert tab.locator("#story .piece:not(.given):not(.next)").count() == (
                1 if moment == "15.000" else 0
            )
            tab.click(".forth")
        tab.wait_for_selector("#machine[data-moment='0.000'] [data-line='5']")
        said.append(tab.inner_text(".machine-caption"))
        assert "joins the rows" in said[-1]  # and waits, before it is read in its turn
        tab.wait_for_timeout(300)
        assert tab.locator("#story .piece:not(.given):not(.next)").count() == 1
        tab.click(".forth")
        wait_for_end(tab)
        assert [sentence for sentence in said if len(sentence.split()) > 12] == []
        assert len(set(said)) == len(said)
        traced = trace(lm, "The wolf and the lamb")
        looks = traced["blocks.0.attn.pattern"][:, -1, :-1]
        _, key = np.unravel_index(looks.argmax(), looks.shape)
        looked = lm.tokenizer.decode([int(traced.ids[key])]).replace(" ", "␣")
        assert f"looks back most at {looked}" in said[1].replace("\xa0", " ")
        assert story(tab)[0] == generated(lm, "The wolf and the lamb", seed=1).ids

    def test_play_shows_a_pass_once(self, open_tab):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=2)
        tab.evaluate(
            """() => {
                window.moments = [];
                const { dataset } = document.querySelector("#machine");
                const note = () => { moments.push(+dataset.moment); requestAnimationFrame(note); };
                note();
            }"""
        )
        tab.click(".transport .play")
        tab.wait_for_selector(".transport .play:text('Pause')")
        tab.wait_for_selector(".transport .play:text('Play')")
        tab.wait_for_timeout(400)
        moments = tab.evaluate("moments")
        start = moments.index(min(moments))
        assert moments[start:] == sorted(moments[start:]) and moments[-1] == 15
        assert len(story(tab)[0]) == 2  # and writes nothing
        times = tab.evaluate("document.getElementById('machine').frames")
        assert len(times) > 20 and np.median(times) < 16

    def test_the_second_token_takes_two_seconds(self, open_tab):
        tab = open_tab()
        tab.evaluate(
            """() => {
                window.times = [];
                new MutationObserver(() => {
                    const n = document.querySelectorAll("#story .piece:not(.given)").length - 1;
                    times[n] ??= performance.now();
                }).observe(document.querySelector("#story"), { childList: true });
            }"""
        )
        set_inputs(tab, {"max_tokens": 8})
        tab.click("#generate")
        tab.wait_for_selector("#machine[data-mode=guide]")
        wait_for_end(tab)
        times = np.diff(tab.evaluate("times")[1:9])
        assert times[0] > 1700 and times[-1] < times[0] / 2

    def test_pause_stops_the_picture(self, open_tab):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=1)
        tab.click(".transport .play")
        tab.wait_for_timeout(300)
        tab.click(".transport .play")
        moment = tab.get_attribute("#machine", "data-moment")
        tab.wait_for_timeout(200)
        assert tab.get_attribute("#machine", "data-moment") == moment < "15.000"

    def test_the_token_that_is_read_is_in_sight(self, open_tab):
        tab = open_tab(height=720, reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=120)
        for selector in ("#story [aria-pressed=true]", ".machine-lines [aria-selected=true]"):
            assert in_sight(tab, selector, whole=True), selector


class TestWrite:
    def test_tokens_appear_while_typing(self, open_tab, lm):
        tab = open_tab()
        for text in ("The", "The König’s fox 🦊"):
            tab.fill("#prompt", text)
            n = len(lm.encode_prompt(text))
            tab.wait_for_function(
                "n => document.querySelectorAll('.machine-lines [data-line]').length === n", arg=n
            )
        tab.fill("#prompt", "The fox ")
        tab.wait_for_selector("#status:has-text('ends in a space')")
        tab.fill("#prompt", "fox " * 600)
        tab.wait_for_selector("#status.wrong")
        assert tab.is_hidden("#machine") and tab.is_hidden("#story")

    def test_the_text_is_that_of_generate(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, seed=1)
        expected = generated(lm, seed=1)
        ids, probabilities = story(tab)
        assert ids == expected.ids
        logprobs = [token.logprob for token in expected.logprobs]
        np.testing.assert_allclose(probabilities, np.exp(logprobs), atol=1e-6)
        assert "30 tokens written" in tab.inner_text("#status")

    def test_write_on_and_another_try(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, seed=3, max_tokens=5)
        first = story(tab)[0]
        write(tab)
        longer = story(tab)[0]
        ids = [*lm.encode_prompt(PROMPT), *first]
        assert longer[:5] == first
        assert longer[5:] == generated(lm, ids, seed=8, max_new_tokens=5).ids
        tab.click("#retry")
        wait_for_end(tab)
        assert tab.input_value("#seed") == "4"
        assert story(tab)[0][:5] == first and story(tab)[0] != longer

    def test_what_stays_is_not_drawn_again(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=5)
        tab.eval_on_selector_all("#story .piece:not(.next)", "all => all.map(p => p.isOld = true)")
        write(tab)
        pieces = tab.eval_on_selector_all("#story .piece", "all => all.map(p => Boolean(p.isOld))")
        assert pieces == [True] * (len(pieces) - 6) + [False] * 6

    @pytest.mark.parametrize("when", ["in the guide", "later"])
    def test_stop(self, open_tab, when):
        tab = open_tab()
        set_inputs(tab, {"max_tokens": 400, "temperature": 1})
        tab.click("#generate")
        tab.wait_for_selector("#machine[data-mode=guide]")
        if when == "later":
            tab.click(".skip-stops")
            tab.wait_for_selector("#story .piece:not(.given):not(.next)")
        tab.click("#generate:text('Stop')")
        wait_for_end(tab)
        assert "Stopped." in tab.inner_text("#status")
        assert (0 < len(story(tab)[0]) < 400) == (when == "later")

    def test_reasons_for_the_end(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        write(tab, "the " * 500, max_tokens=100)
        assert "context is full" in tab.inner_text("#status")

    def test_numbers_out_of_range_and_tries_at_temperature_0(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        open_below(tab)
        tab.fill("#max_tokens", "5000")
        tab.locator("#max_tokens").blur()
        assert tab.input_value("#max_tokens") == "1000"
        assert "from 1 to 1,000" in tab.inner_text("#status")
        tab.fill("#seed", "1.5")
        tab.locator("#seed").blur()
        assert tab.input_value("#seed") == "2" and "whole number" in tab.inner_text("#status")
        write(tab, PROMPT, max_tokens=2, temperature=0)
        tab.click("#retry")
        assert "same text" in tab.inner_text("#status")


class TestAnswer:
    """The list of what could come next, and the ruler."""

    @pytest.mark.parametrize(
        ("temperature", "top_k", "top_p"),
        [(0.7, 3, 1), pytest.param(1.3, 0, 0.5, marks=pytest.mark.slow)],
    )
    def test_probabilities_before_and_after(self, open_tab, lm, temperature, top_k, top_p):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=8)
        n_prompt, ids = len(lm.encode_prompt(PROMPT)), story(tab)[0]
        look_at(tab, n_prompt + 4)
        logits = lm.model.forward([[*lm.encode_prompt(PROMPT), *ids[:4]]])[-1]
        options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        before, after = np.exp(log_softmax(logits)), next_probabilities(logits, options)
        for moment, expected in ((14, before), (15, after)):
            set_moment(tab, moment)
            rows = cells(tab, ".machine-bars li")
            assert {i for i, *_ in rows} >= {int(i) for i in np.argsort(-logits)[:8]}
            for token_id, p in rows:
                assert p == pytest.approx(expected[token_id], abs=1e-6)
        assert "cut off" in tab.inner_text(".machine-bars")

    def test_a_token_that_is_pressed_is_a_branch(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=6)
        before, n_prompt = story(tab)[0], len(lm.encode_prompt(PROMPT))
        look_at(tab, n_prompt + 2)
        other = tab.locator(".machine-bars li:not(.own) button").nth(1)
        token_id = int(other.locator("xpath=..").get_attribute("data-id"))
        other.click()
        wait_for_end(tab)
        after = story(tab)[0]
        assert after[:3] == [*before[:2], token_id] and len(after) == 9
        look_at(tab, n_prompt + 2)
        assert tab.is_hidden(".marker")  # nothing was drawn here
        assert "came next" in tab.inner_text(".machine-caption")
        open_below(tab)
        assert tab.locator(".branch").count() == 2
        tab.locator(".branch:not([aria-current])").click()
        settle(tab)
        assert story(tab)[0] == before
        assert tab.locator(".branch").count() == 2

    def test_tokens_of_the_prompt_have_no_dead_buttons(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=2)
        look_at(tab, 3)
        assert tab.locator(".machine-bars button").count() == 0

    def test_the_marker_is_the_random_number(self, open_tab, lm):
        """It picked the token, on the ruler of the sampler; temperature stretches the ruler."""
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=6)
        look_at(tab, 11)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)[0]][:12]
        logits = lm.model.forward([ids[:11]])[-1]
        sampled = next_probabilities(logits, lm.resolve_options(temperature=0.8, top_k=40))

        def own():
            return tab.eval_on_selector(
                ".segments .own", "s => [parseFloat(s.style.left), parseFloat(s.style.width)]"
            )

        def share(probabilities):
            before = probabilities[: ids[11]].sum()
            return pytest.approx([100 * before, 100 * probabilities[ids[11]]], abs=2e-3)

        assert own() == share(sampled)
        number = float(tab.get_attribute(".machine-caption data", "value"))
        assert number == np.random.default_rng(1).random(8)[11 - len(lm.encode_prompt(PROMPT))]
        place = tab.eval_on_selector(".marker", "m => parseFloat(m.style.left) / 100")
        assert place == pytest.approx(number, abs=1e-6)
        assert sampled[: ids[11]].sum() - 1e-4 <= number <= sampled[: ids[11] + 1].sum() + 1e-4
        set_moment(tab, 14)
        assert tab.is_hidden(".draw")  # it would give the answer away
        set_moment(tab, 14.001)
        assert own() == share(softmax(logits))  # before temperature and filters
        assert tab.is_hidden(".marker")
        set_inputs(tab, {"temperature": 1.5})
        hotter = next_probabilities(logits, lm.resolve_options(temperature=1.5, top_k=40))
        tab.wait_for_function(
            "w => Math.abs(parseFloat(document.querySelector('.segments .own').style.width) - w)"
            " < 0.01",
            arg=float(100 * hotter[ids[11]]),
        )
        assert own() == share(hotter)

    @pytest.mark.parametrize("height", [600, 500])
    def test_no_row_is_cut_in_a_low_window(self, open_tab, height):
        tab = open_tab(height=height, reduced_motion="reduce")
        write(tab, PROMPT)
        rows = tab.eval_on_selector_all(
            ".machine-bars li",
            """rows => rows.map(r => [r.scrollHeight, r.clientHeight,
                ...[r, r.parentElement].map(each => each.getBoundingClientRect().bottom)])""",
        )
        assert len(rows) >= 3
        for content, room, bottom, end in rows:
            assert content <= room and bottom <= end + 1


class TestSwitchedOff:
    """A part that is switched off changes the text: it is written again with the same seed."""

    @pytest.mark.parametrize(
        ("part", "hook"),
        [
            ("5,0", zero_head(5, 0)),
            ("3,mlp", scale("blocks.3.mlp.out", 0)),
        ],
    )
    def test_the_second_text_is_that_of_the_changed_model(self, open_tab, lm, part, hook):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=12)
        before = story(tab)[0]
        switch(tab, part)
        after = story(tab)[0]
        options = {"temperature": 0.8, "top_k": 40, "seed": 1, "max_new_tokens": 12}
        assert after == lm.generate(PROMPT, interventions=hook, **options).ids != before
        intact = tab.inner_text("#intact").replace("↵", "\n")
        assert intact == PROMPT + lm.tokenizer.decode(before)
        changed = tab.eval_on_selector_all(
            "#story .piece:not(.given):not(.next)",
            "all => all.map(p => p.classList.contains('changed'))",
        )
        assert any(changed)
        for i, is_changed in enumerate(changed):
            assert is_changed or after[i] in before
        context = [*lm.encode_prompt(PROMPT), *after][: len(lm.encode_prompt(PROMPT)) + 2]
        look_at(tab, len(context))
        set_moment(tab, 14)
        logits = trace(lm, context, "logits", interventions=hook)["logits"][-1]
        rows = dict(cells(tab, ".machine-bars li"))
        for token_id, p in rows.items():
            assert p == pytest.approx(softmax(logits)[token_id], abs=1e-6)
        likeliest = int(lm.model.forward([context])[-1].argmax())
        assert likeliest in rows  # what it was before stays in sight
        assert tab.locator(f'.cell[data-part="{part}"][aria-pressed=true]').count() == 1
        tab.click("#parts-on")
        tab.wait_for_selector("#story-name", state="hidden")
        assert story(tab)[0] == before

    def test_an_arc_and_a_neuron_of_the_picture(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=4)
        for kind in ("head", "neuron"):
            before = tab.inner_text("#story-name") if tab.is_visible("#story-name") else ""
            x, y = find_part(tab, kind)
            tab.mouse.click(x, y)
            tab.wait_for_function(
                "old => document.querySelector('#story-name').textContent !== old", arg=before
            )
            wait_for_end(tab)
            assert kind in tab.inner_text("#story-name")
        neuron, layer = map(
            int, re.search(r"neuron (\d+) of block (\d)", tab.inner_text("#story-name")).groups()
        )
        head = re.search(r"head (\d) of block (\d)", tab.inner_text("#story-name"))
        hooks = [
            zero_head(int(head[2]), int(head[1])),
            scale(f"blocks.{layer}.mlp.act", 0, channels=neuron),
        ]
        options = {"temperature": 0.8, "top_k": 40, "seed": 1, "max_new_tokens": 4}
        assert story(tab)[0] == lm.generate(PROMPT, interventions=hooks, **options).ids

    def test_every_part_off_in_turn(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=8)
        look_at(tab, 14)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)[0]]
        open_below(tab, "off")
        tab.click("#all-off")
        tab.wait_for_selector("#effects-says:not(:empty)")
        before = softmax(trace(lm, ids[:14], "logits")["logits"][-1])[ids[14]]
        shown = tab.eval_on_selector_all(
            ".cell", "all => all.map(c => [c.dataset.part, +c.dataset.effect])"
        )
        assert len(shown) == 30
        for part, effect in shown[::7]:
            layer, head = part.split(",")
            off = scale(f"blocks.{layer}.mlp.out", 0)
            hook = off if head == "mlp" else zero_head(int(layer), int(head))
            edited = trace(lm, ids[:14], "logits", interventions=hook)["logits"][-1]
            assert effect == pytest.approx(softmax(edited)[ids[14]] - before, abs=1e-6)

    def test_another_model_has_all_parts_on(self, open_tab, bundled, tmp_path):
        """And nothing of the old model's text is left, nor an error."""
        save_byte_model(tmp_path / "bytes", n_layer=2, n_head=2, n_embd=16)
        models = ("--model", str(bundled), "--model", str(tmp_path / "bytes"))
        with running_server(tmp_path, *models) as server:
            tab = open_tab(url=server.url, reduced_motion="reduce")
            write(tab, PROMPT, max_tokens=4)
            switch(tab, "5,0")
            tab.select_option("#model", index=1)
            tab.wait_for_selector("#machine[data-mode=rest]:not([aria-busy])")
            assert tab.is_hidden("#story") and tab.is_hidden("#story-name")
            assert tab.locator(".cell[aria-pressed=true]").count() == 0
            assert tab.locator(".cell").count() == 6
            write(tab, max_tokens=3)
            assert len(story(tab)[0]) == 3


def find_part(tab, kind):
    """A point of the picture where a part of a kind lies."""
    box = tab.locator(".machine-canvas").bounding_box()
    for y in range(int(box["height"]) - 8, int(box["height"]) // 2, -3):
        for x in range(int(box["width"] * 0.1), int(box["width"] * 0.5), 3):
            found = tab.evaluate(
                """([x, y]) => {
                    const picture = document.querySelector(".machine-picture");
                    const at = { clientX: x, clientY: y, bubbles: true };
                    picture.dispatchEvent(new PointerEvent("pointermove", at));
                    return document.querySelector(".machine-tip").textContent;
                }""",
                [box["x"] + x, box["y"] + y],
            )
            if found.startswith(kind) and "switch it off" in found:
                return box["x"] + x, box["y"] + y
    raise AssertionError(f"no {kind} in the picture")


class TestMachine:
    """The numbers behind the picture, the picture, and its controls."""

    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, PROMPT, seed=1, max_tokens=8)
        look_at(tab, 14)
        return tab

    @pytest.fixture(scope="class")
    def ids(self, tab, lm):
        return [*lm.encode_prompt(PROMPT), *story(tab)[0]]

    @pytest.fixture(scope="class")
    def traced(self, ids, lm):
        return trace(lm, ids[:14])

    def test_lens(self, tab, traced, lm):
        """The model, asked after each block; before the first one nothing is shown."""
        expected = lens_table(lm, traced, 9, last=1)
        open_below(tab)
        tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
        tab.wait_for_selector(".lens tbody tr", state="attached")
        shown = tab.eval_on_selector_all(
            ".lens tbody tr", "rows => rows.map(r => +r.querySelector('data').value)"
        )
        np.testing.assert_allclose(shown, expected.probabilities[:, 0, 0], atol=1e-6)
        for k, moment in enumerate([1, 3, 5, 7, 9, 11]):
            set_moment(tab, moment)
            rows = cells(tab, ".machine-bars li")
            assert [i for i, _ in rows] == (expected.ids[k, 0].tolist() if k else [])
            if k:
                np.testing.assert_allclose(
                    [p for _, p in rows], expected.probabilities[k, 0], atol=1e-6
                )

    def test_attention_and_neurons(self, tab, traced, lm):
        tab.locator('.machine-lines [data-line="13"]').focus()
        tab.click('.machine-blocks [data-layer="4"]')
        tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=block]")
        tab.eval_on_selector(".zoom-table", "t => { t.open = false; }")
        tab.wait_for_selector(".zoom-table table", state="detached")
        tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
        tab.wait_for_selector(".neurons tbody tr", state="attached")
        shown = tab.eval_on_selector_all(
            ".looks tbody tr",
            "rows => rows.map(r => [...r.querySelectorAll('data')].map(d => +d.value))",
        )
        pattern = traced["blocks.4.attn.pattern"][:, 13, :14]
        np.testing.assert_array_equal(np.float32(shown).T, pattern)
        shown = tab.eval_on_selector_all(
            ".neurons tbody tr",
            """rows => rows.map(row => [+row.querySelector('th').textContent,
                +row.querySelector('data').value,
                [...row.querySelectorAll('[data-id]')].map(chip => +chip.dataset.id)])""",
        )
        activation = traced["blocks.4.mlp.act"][-1]
        written = activation[:, None] * lm.model.weights["h.4.mlp.c_proj.weight"]
        busiest = np.argsort(-np.linalg.norm(written, axis=-1))[:5]
        assert [neuron for neuron, *_ in shown] == busiest.tolist()
        for neuron, value, raised in shown:
            assert value == pytest.approx(activation[neuron], abs=1e-6)
            pushes = lm.model.unembed(written[[neuron]])[0]
            assert raised == np.argsort(-pushes)[:5].tolist()
        tab.keyboard.press("Escape")

    def test_a_strips_pixels_are_the_vectors_numbers(self, tab, traced):
        """A cell is the strongest of its neighbors; its opacity is the root of its share."""
        pixels, limit = tab.evaluate(
            """async prompt => {
                const { paintStrips } = await import("./playground/stage.js");
                const { readPass } = await import("./playground/pass.js");
                const answer = await fetch("api/inspect", {method: "POST",
                    headers: {"Content-Type": "application/json"},
                    body: JSON.stringify({prompt})});
                const pass = readPass(await answer.json());
                const strips = paintStrips(pass, {plus: [0, 0, 1], minus: [1, 0, 0]});
                const row = strips.at(13, "resid", 6);
                const context = strips.canvas.getContext("2d");
                return [[...context.getImageData(0, row, strips.width, 1).data], pass.limit];
            }""",
            traced.ids.tolist(),
        )
        vector = np.float16(traced["blocks.5.resid"][13]).astype(np.float64)
        groups = np.split(vector, [int(i * 256 / 48) for i in range(1, 48)])
        strongest = np.array([group[np.abs(group).argmax()] for group in groups])
        opacity = np.rint(255 * np.sqrt(np.minimum(1, np.abs(strongest) / limit)))
        np.testing.assert_allclose(np.array(pixels)[3::4], opacity, atol=1)

    def test_every_weight_has_an_arc_also_that_to_the_token_itself(self, tab, traced):
        arcs = tab.evaluate(
            """async prompt => {
                const { arcsOf, layOut } = await import("./playground/stage.js");
                const { readPass } = await import("./playground/pass.js");
                const answer = await fetch("api/inspect", {method: "POST",
                    headers: {"Content-Type": "application/json"},
                    body: JSON.stringify({prompt})});
                const pass = readPass(await answer.json());
                const place = layOut(pass, 800, 400, Infinity, 24);
                return arcsOf(pass, place, 3, 2, 13).map(({ key, weight }) => [key, weight]);
            }""",
            traced.ids.tolist(),
        )
        weights = traced["blocks.3.attn.pattern"][2, 13]
        expected = [[key, w] for key, w in enumerate(weights) if w >= 0.03]
        assert arcs == pytest.approx(np.float64(expected)) and expected[-1][0] == 13

    def test_heads_have_colors_of_their_own(self, tab):
        """Twelve, none of them the gray of a part that is off."""
        colors = tab.evaluate(
            """async () => { const { headColor } = await import("./playground/stage.js");
                const context = document.createElement("canvas").getContext("2d");
                return Array.from({ length: 12 }, (_, head) => {
                    context.fillStyle = headColor(head);
                    return context.fillStyle; }); }"""
        )
        assert len(set(colors)) == 12
        for color in colors:
            red_green_blue = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
            assert max(red_green_blue) - min(red_green_blue) > 60

    def test_embeddings_can_be_seen(self, tab):
        """Also in a dark page, on which a weak color is black."""
        strength = tab.evaluate(
            """async () => {
                const { paintStrips } = await import("./playground/stage.js");
                const { readPass } = await import("./playground/pass.js");
                const answer = await fetch("api/inspect", {method: "POST",
                    headers: {"Content-Type": "application/json"},
                    body: JSON.stringify({prompt: "The little fox"})});
                const pass = readPass(await answer.json());
                const strips = paintStrips(pass, {plus: [0, 0, 1], minus: [1, 0, 0]});
                const row = strips.canvas.getContext("2d");
                const { data } = row.getImageData(0, strips.at(1, "wte"), strips.width, 1);
                const strengths = [...data].filter((_, i) => i % 4 === 3);
                return strengths.reduce((a, b) => a + b) / strips.width;
            }"""
        )
        assert strength > 110

    def test_steps_by_keyboard(self, tab):
        set_moment(tab, 15)
        tab.focus(".moment")
        tab.keyboard.press("ArrowLeft")
        assert tab.get_attribute("#machine", "data-moment") == "14.000"
        assert tab.get_attribute(".moment", "aria-valuetext") == "answer"
        tab.focus(".forth")
        for _ in range(2):
            tab.keyboard.press("Enter")
        assert tab.get_attribute("#machine", "data-moment") == "1.000"
        assert "Each token becomes" in tab.inner_text(".machine-caption")
        tab.focus('.machine-lines [tabindex="0"]')
        tab.keyboard.press("ArrowUp")
        assert tab.get_attribute('.machine-lines [data-line="12"]', "aria-selected") == "true"

    def test_a_stage_of_gpt2_smalls_size(self, open_tab, gpt2_vocabulary, tmp_path):
        folder = tmp_path / "other"
        shape = {"vocab_size": 50257, "n_positions": 64, "n_embd": 96, "n_layer": 12, "n_head": 12}
        save_reference(folder, **shape, eos_token_id=50256)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(gpt2_vocabulary / name, folder / name)
        with running_server(tmp_path, "--model", str(folder)) as server:
            tab = open_tab(url=server.url, width=320, reduced_motion="reduce")
            write(tab, f"{PROMPT}, and the fox said to the king: 🦊 كان", max_tokens=1)
            tab.wait_for_selector("#machine .machine-lines .earlier")
            for width in (320, 1280):
                tab.set_viewport_size({"width": width, "height": 900})
                tab.evaluate("document.getElementById('machine').frames.length = 0")
                for moment in np.arange(0, 27, 0.5):
                    set_moment(tab, moment)
                times = tab.evaluate("document.getElementById('machine').frames")
                assert np.median(times) < 16
                assert tab.evaluate("document.documentElement.scrollWidth") <= width


class TestWords:
    """What the page says is true, and no press goes unanswered."""

    def test_characters_of_several_tokens(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        text = "كان 🦊 ß 中"
        assert len(lm.encode_prompt(text)) > len(text) // 2 + 4
        write(tab, text, max_tokens=3)
        look_at(tab, len(lm.encode_prompt(text)) + 1)
        shown = tab.eval_on_selector_all(
            "#story .piece.given", "all => all.map(p => p.textContent).join('')"
        )
        assert shown == text
        tab.wait_for_selector("#glow-says:not(:empty)")
        for selector in ("#machine", "#glow-says"):
            said = tab.inner_text(selector)
            assert "⟨" not in said and "\ufffd" not in said and "\\u{" not in said
        for selector in ("#story", "#prompt"):
            assert tab.get_attribute(selector, "dir") == "auto"

    def test_the_examples_show_what_they_say(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        examples = tab.evaluate('import("./playground/examples.js").then(m => m.EXAMPLES)')
        assert len(examples) == 5
        for example in examples:
            layer, head = example["layer"], example["head"]
            traced = trace(lm, example["prompt"])
            before = softmax(traced["logits"][-1])
            token = int(before.argmax())
            assert lm.tokenizer.decode([token]) == example["next"]
            key = int(traced[f"blocks.{layer}.attn.pattern"][head, -1].argmax())
            assert lm.tokenizer.decode([int(traced.ids[key])]) == example["looksAt"]
            off = trace(lm, example["prompt"], "logits", interventions=zero_head(layer, head))
            after = softmax(off["logits"][-1])
            assert after[token] < before[token] / 5
            if example["prompt"].startswith("Hans"):  # the figures of the guide's lesson
                assert before[token] == pytest.approx(0.58, abs=0.005) and after[token] < 0.01
        tab.select_option("#examples", "1")
        tab.wait_for_selector("#machine:not([aria-busy]) [data-line]:has-text('Gre')")
        assert tab.input_value("#prompt") == examples[1]["prompt"]

    def test_the_end_of_a_text_has_one_name(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        write(tab, "<|endoftext|>", max_tokens=1)
        assert "⟨" not in tab.inner_text("main")

    def test_an_edited_prompt_hides_the_text(self, open_tab):
        """It comes back with its prompt."""
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=2)
        tab.click("#edit")
        tab.fill("#prompt", "The king")
        assert tab.is_hidden("#story") and tab.inner_text("#generate").startswith("Write")
        tab.fill("#prompt", PROMPT)
        settle(tab)
        assert tab.is_visible("#story") and len(story(tab)[0]) == 2


class TestSaliency:
    def test_earlier_tokens_glow(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=8)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)[0]]
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.hover('#story [data-index="12"]')
        tab.wait_for_timeout(300)
        assert not asked  # pointing asks nothing
        look_at(tab, 14)
        tab.wait_for_selector("#story.glowing")
        expected = saliency(lm, ids[:14], Target(ids[14]), steps=8).values
        glow = tab.eval_on_selector_all(
            "#story .piece", "all => all.map(p => +p.style.getPropertyValue('--glow'))"
        )
        most = np.abs(expected).max()
        assert glow[:14] == pytest.approx(list(np.abs(expected) / most), abs=1e-3)
        assert not any(glow[14:])
        against = tab.eval_on_selector_all(
            "#story .piece", "all => all.map(p => p.classList.contains('against'))"
        )
        assert against[:14] == [value < 0 for value in expected]
        said = tab.eval_on_selector_all("#glow-says data", "all => all.map(d => +d.value)")
        assert sorted(said) == pytest.approx(sorted(sorted(expected, key=abs)[-3:]), rel=1e-3)
        look_at(tab, 0)
        tab.wait_for_selector("#story:not(.glowing)")


class TestBranches:
    def test_several_texts_from_one_point(self, open_tab, lm, tmp_path):
        """GPT2NP_SCREENSHOTS names a folder for the guide's picture."""
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=6)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)[0]]
        look_at(tab, 11)
        open_below(tab)
        tab.fill("#river-count", "4")
        tab.click("#river-run")
        expect(tab.locator("#status")).to_contain_text("4 texts from the same point")
        options = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 6}
        texts = [lm.generate(ids[:11], seed=1 + i, **options).ids for i in range(4)]
        expected = {tuple(ids[11:]), *map(tuple, texts)}
        found = set()
        for i in range(tab.locator(".branch").count()):
            tab.locator(".branch").nth(i).click()
            settle(tab)
            found.add(tuple(story(tab)[0][2:]))
        assert found == expected
        # What all share is drawn once.
        shared = tab.locator(".river .shared").first.inner_text()
        assert shared.strip() and lm.tokenizer.decode(ids[:11]).endswith(shared.strip("…"))
        widths = tab.eval_on_selector_all(
            ".river path", "all => all.map(p => +p.getAttribute('stroke-width'))"
        )
        assert max(widths) > 1.9 * min(widths)
        folder = Path(os.environ.get("GPT2NP_SCREENSHOTS", tmp_path))
        tab.locator("#branches").screenshot(path=folder / "river.png")
        assert (folder / "river.png").stat().st_size > 5_000

    def test_greedy_texts_are_no_river(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=3, temperature=0)
        open_below(tab)
        tab.click("#river-run")
        expect(tab.locator("#status")).to_contain_text("At temperature 0")


def in_sight(tab, selector, whole=False):
    """Whether an element, or all of it, is soon in the window and nothing covers its top."""
    for _ in range(30):
        if is_in_sight(tab, selector, whole):
            return True
        tab.wait_for_timeout(100)  # the page may still scroll or lay itself out
    return False


def is_in_sight(tab, selector, whole):
    return tab.eval_on_selector(
        selector,
        """(element, whole) => {
            const [{ left, top, bottom, width }] = [...element.getClientRects()].slice(-1);
            const at = document.elementFromPoint(left + width / 2, top + 3);
            const isThere = at && (element.contains(at) || at.contains(element));
            return isThere && top > -1 && (whole ? bottom <= innerHeight : top < innerHeight);
        }""",
        whole,
    )


class TestShare:
    def test_the_address_holds_everything(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, f"{PROMPT} 🦊", seed=7, max_tokens=6, temperature=0.9)
        switch(tab, "3,1")
        open_below(tab)
        tab.click("#copy-link")
        expect(tab.locator("#status")).to_contain_text(re.compile("copied|Copy the address"))
        again = open_tab(tab.evaluate("location.hash"), reduced_motion="reduce")
        settle(again)
        assert again.input_value("#prompt") == f"{PROMPT} 🦊"
        assert again.input_value("#temperature") == "0.9"
        assert story(again)[0] == story(tab)[0]
        np.testing.assert_allclose(story(again)[1], story(tab)[1], atol=1e-6)
        assert again.inner_text("#intact") == tab.inner_text("#intact")
        for name in (".branch", ".cell[aria-pressed=true]"):
            assert again.locator(name).count() == tab.locator(name).count() > 0
        assert again.locator(".marker:not([hidden])").count() == 0  # its draws are not in the link

    def test_a_text_that_fills_the_context_opens(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        write(tab, "the " * 500, max_tokens=100)
        assert "context is full" in tab.inner_text("#status")
        tab.wait_for_function("() => location.hash.startsWith('#s=')")
        tab.wait_for_timeout(400)
        again = open_tab(tab.evaluate("location.hash"), reduced_motion="reduce")
        settle(again)
        assert story(again)[0] == story(tab)[0] and "Opened" in again.inner_text("#status")
        np.testing.assert_allclose(story(again)[1], story(tab)[1], atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("fragment", ["#s=xyz", "#s=", "#s=e30", "#<script>"])
    def test_an_unreadable_address_is_a_new_page(self, open_tab, fragment):
        assert open_tab(fragment).inner_text("#status") == ""

    def test_a_damaged_address_says_so(self, open_tab):
        content = {"prompt": "a", "ids": [1], "path": [1], "tree": 5, "model": "bundled"}
        damaged = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        assert "damaged" in open_tab(f"#s={damaged}").inner_text("#status")


class TestStandards:
    @pytest.mark.parametrize("name", ["off", "teach", "more"])
    def test_escape_closes_what_has_opened_below(self, open_tab, name):
        tab = open_tab()
        tab.click(f"#{name}-button")
        assert tab.is_visible(f"#{name}")
        tab.keyboard.press("Escape")
        assert not tab.is_visible(f"#{name}")
        assert tab.evaluate("document.activeElement.id") == f"{name}-button"

    def test_by_keyboard_only(self, open_tab):
        tab = open_tab(reduced_motion="reduce")

        def tab_to(selector, presses=60):
            for _ in range(presses):
                tab.keyboard.press("Tab")
                if tab.evaluate("s => document.activeElement.matches(s)", selector):
                    return
            raise AssertionError(f"no way to {selector} by Tab")

        tab_to("#prompt")
        tab.keyboard.press("Control+a")
        tab.keyboard.type("The king")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#machine[data-mode=guide]")
        assert tab.evaluate("document.activeElement.matches('.forth')")
        for stop in range(7):
            tab.wait_for_function(
                "n => document.querySelector('.dots').textContent.split('●').length > n",
                arg=stop + 1,
            )
            tab.keyboard.press("Enter")
        tab.wait_for_function("document.activeElement.id === 'generate'")
        wait_for_end(tab)
        tab_to("#story .piece")
        tab.keyboard.press("ArrowLeft")
        tab.keyboard.press("ArrowLeft")
        tab.keyboard.press("Enter")
        settle(tab)
        pressed = "#story [aria-pressed=true]"
        assert tab.eval_on_selector(pressed, "p => p === document.activeElement")
        before = story(tab)[0]
        tab_to(".machine-bars button")
        tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
        wait_for_end(tab)
        assert story(tab)[0] != before
        tab_to("#off-button")
        tab.keyboard.press("Enter")
        tab_to(".cell", 120)
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#story-name:not([hidden])")
        wait_for_end(tab)

    @pytest.fixture(scope="class")
    def full_tab(self, open_shared_tab):
        """A tab in which every part shows something, for a prompt with a long word."""
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, f"{PROMPT} {'a' * 200}", max_tokens=12)
        tab.locator(".machine-bars li:not(.own) button").first.click()
        wait_for_end(tab)
        switch(tab, "5,1")
        tab.click("#all-off")
        tab.wait_for_selector("#effects-says:not(:empty)")
        tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
        tab.locator("#story .piece").nth(5).click()
        tab.wait_for_selector("#story.glowing")
        settle(tab)
        return tab

    def test_axe_finds_nothing(self, full_tab):
        assert axe_findings(full_tab, with_minor=False) == []

    def test_axe_finds_nothing_on_the_first_screen(self, open_tab):
        assert axe_findings(open_tab(), with_minor=False) == []

    def test_any_width(self, full_tab):
        for width in (320, 360, 768, 1023, 1280, 3840):
            full_tab.set_viewport_size({"width": width, "height": 900})
            assert full_tab.evaluate("document.documentElement.scrollWidth") <= width, width

    @pytest.mark.parametrize("is_text_only", [False, True])
    def test_at_200_percent(self, open_tab, is_text_only):
        """All, or only the letters, twice as large: all can be used without scrolling sideways."""
        width, height = (1280, 720) if is_text_only else (640, 360)
        tab = open_tab(width=width, height=height, device_scale_factor=2, reduced_motion="reduce")
        if is_text_only:
            tab.evaluate("document.documentElement.style.fontSize = '200%'")
        write(tab, PROMPT, max_tokens=12)
        open_below(tab)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        for heading in tab.locator("h2:visible").all():
            heading.scroll_into_view_if_needed()
        tab.locator("#story").scroll_into_view_if_needed()
        assert in_sight(tab, "#story")

    def test_on_a_phone(self, open_tab):
        tab = open_tab(
            width=390, height=844, has_touch=True, is_mobile=True, reduced_motion="reduce"
        )
        tab.tap("#generate")
        wait_for_end(tab)
        tab.tap('#story [data-index="11"]')
        settle(tab)
        for part in ("#story", ".machine-canvas", ".machine-caption"):
            assert in_sight(tab, part), part
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390

    @pytest.mark.slow
    def test_a_slow_network(self, open_tab, lm):
        """400 kbit/s with delays of 300 ms: the page writes all the same."""

        def slow(tab):
            network = tab.context.new_cdp_session(tab)
            network.send("Network.enable")
            bytes_per_s = {"downloadThroughput": 50_000, "uploadThroughput": 50_000}
            conditions = {"offline": False, "latency": 300, **bytes_per_s}
            network.send("Network.emulateNetworkConditions", conditions)

        tab = open_tab(before=slow, reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=8)
        assert story(tab)[0] == generated(lm, seed=1, max_new_tokens=8).ids

    def test_nothing_moves(self, full_tab):
        assert full_tab.evaluate("document.getAnimations().length") == 0

    def test_paper_has_no_controls(self, full_tab):
        full_tab.emulate_media(media="print")
        assert full_tab.evaluate(
            "[...document.querySelectorAll('.bar, .buttons, #more, #off')]"
            ".every(each => !each.offsetHeight)"
        )
        assert full_tab.pdf(format="A4").startswith(b"%PDF")

    def test_a_hostile_prompt_does_nothing(self, open_tab):
        tab = open_tab(width=360, reduced_motion="reduce")
        for prompt in (MARKUP, SIGNS, "<|endoftext|>"):
            write(tab, prompt, max_tokens=4)
            assert tab.evaluate("[window.hacked, typeof hacked]") == [None, "undefined"]
            assert tab.evaluate("document.querySelectorAll('bdi *, button img').length") == 0
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360

    def test_content_security_policy(self, client):
        response = client.get("/")
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
        assert not re.search(r"unsafe-eval|script-src[^;]*unsafe|https?:|\*", policy)
        assert not re.search(r"(src|href)=\"(https?:)?//", response.text)
        for name in set(re.findall(r'"(playground/\w+\.\w+)"', response.text)):
            assert client.get(f"/{name}").status_code == 200
        for path in ("/playground/../app.py", "/playground/%2e%2e/app.py", "/playground/x.js"):
            assert client.get(path).status_code == 404

    def test_two_tabs_do_not_disturb_each_other(self, open_tab, lm):
        one, two = (open_tab(reduced_motion="reduce") for _ in range(2))
        set_inputs(one, {"prompt": "The king", "seed": 1})
        set_inputs(two, {"prompt": "The queen", "seed": 2})
        one.click("#generate")
        two.click("#generate")
        for tab, prompt, seed in ((one, "The king", 1), (two, "The queen", 2)):
            wait_for_end(tab)
            assert story(tab)[0] == generated(lm, prompt, seed=seed).ids

    def test_a_key_and_a_lost_connection(self, open_tab, tmp_path):
        """The page asks for the key. A loss of the connection is told, and the text is kept."""
        arguments = ("--model", "bundled", "--api-key", "secret")
        with running_server(tmp_path, *arguments) as guarded:
            assert httpx.post(f"{guarded.url}/api/inspect", json={"prompt": "a"}).status_code == 401
            assert httpx.get(f"{guarded.url}/api/model").status_code == 401
            expected = ["401", "ERR_", "status of 5"]
            options = {"url": guarded.url, "key": "secret", "expected": expected}
            tab = open_tab(**options, reduced_motion="reduce")
            set_inputs(tab, {"max_tokens": 400})
            tab.click("#generate")
            tab.click(".skip-stops")
            tab.wait_for_selector("#story .piece:not(.given):not(.next) >> nth=5")
            guarded.process.kill()
            tab.wait_for_selector("#connection:not([hidden])")
            tab.wait_for_selector("#edit:not([hidden])")
            assert "kept" in tab.inner_text("#status")
            n_kept = len(story(tab)[0])
            port = guarded.url.rpartition(":")[2]
        assert 5 < n_kept < 400
        with running_server(tmp_path, *arguments, "--port", port):
            set_inputs(tab, {"max_tokens": 2})
            tab.click("#generate")
            tab.wait_for_function(
                "n => document.querySelectorAll('#story .piece').length > n",
                arg=n_kept + 2 + len(PROMPT.split()),
            )
            wait_for_end(tab)
            assert tab.is_hidden("#connection")
            assert len(story(tab)[0]) == n_kept + 2


@pytest.mark.slow
def test_the_lesson_of_the_guide(open_tab, tmp_path):
    """Follow docs/guide/playground.md; GPT2NP_SCREENSHOTS names a folder for its pictures."""
    folder = Path(os.environ.get("GPT2NP_SCREENSHOTS", tmp_path))
    tab = open_tab(height=720, reduced_motion="reduce")
    tab.click("#generate")
    tab.wait_for_selector("#machine[data-mode=guide]")
    tab.click(".forth")
    tab.screenshot(path=folder / "guide.png")
    wait_for_end(tab)
    tab.mouse.move(0, 0)
    look_at(tab, 10)
    tab.screenshot(path=folder / "write.png")
    tab.locator(".machine-bars li:not(.own) button").nth(2).click()
    wait_for_end(tab)
    set_inputs(tab, {"temperature": 0})
    write(tab)
    set_inputs(tab, {"temperature": 0.8})
    tab.select_option("#examples", "1")
    write(tab)
    switch(tab, "5,2")
    tab.mouse.move(0, 0)
    tab.screenshot(path=folder / "off.png")
    assert (folder / "write.png").stat().st_size > 20_000


class TestApi:
    def inspect(self, client, **body):
        response = client.post("/api/inspect", json=body)
        assert response.status_code == 200, response.text
        return response.json()

    def test_points(self, client, lm):
        names = ["blocks.1.mlp.act", "blocks.*.attn.pattern"]
        answer = self.inspect(client, prompt=PROMPT, points=names, include=[])
        traced = trace(lm, PROMPT, names)
        assert list(answer["points"]) == list(traced)
        for name, array in traced.items():
            sent = answer["points"][name]
            data = np.frombuffer(base64.b64decode(sent["base64"]), sent["dtype"])
            np.testing.assert_allclose(data.reshape(sent["shape"]), array, atol=1e-6)

    def test_the_last_residual_gives_the_logits(self, client, lm):
        logprobs = log_softmax(lm.model.forward([lm.encode_prompt(PROMPT)])[-1])
        answer = self.inspect(client, prompt=PROMPT, n=100)
        assert len(answer["next"]) == 100
        for row in answer["next"]:
            assert row["logprob"] == pytest.approx(logprobs[row["id"]], abs=1e-6)
        ids = [row["id"] for row in answer["next"]]
        assert ids == np.argsort(-logprobs, kind="stable")[:100].tolist()
        assert answer["tokens"] == ids[:2]

    @pytest.mark.parametrize(
        ("body", "words"),
        [
            ({}, "prompt"),
            ({"prompt": []}, "empty"),
            ({"prompt": [5] * 513}, "context"),
            ({"prompt": [4096]}, "4096"),
            ({"prompt": "a", "tokens": [4096]}, "below 4096"),
            ({"prompt": "a", "n": 0}, "n: "),
            ({"prompt": "a", "points": ["nonsense"]}, "unknown hook point"),
            ({"prompt": [5] * 512, "points": ["*"]}, "limit"),
            ({"prompt": "a", "interventions": [{"point": "logits"}]}, "point"),
            ({"prompt": "a", "interventions": [{"point": "blocks.9.attn.z"}]}, "0 … 5"),
            ({"prompt": "a", "interventions": [{"point": "blocks.1.resid", "heads": [1]}]}, "head"),
            (
                {"prompt": "a", "interventions": [{"point": "blocks.1.attn.z", "heads": [9]}]},
                "head",
            ),
            (
                {
                    "prompt": "a",
                    "interventions": [{"point": "blocks.1.mlp.act", "channels": [1024]}],
                },
                "1,024 channels",
            ),
            ({"prompt": "a", "top_p": 0}, "top_p"),
            ({"prompt": "a", "model": "gpt5"}, "gpt5"),
        ],
    )
    def test_wrong_requests(self, client, body, words):
        response = client.post("/api/inspect", json=body)
        assert response.status_code in (400, 404)
        assert words in response.json()["error"]["message"]

    def test_explain(self, client, lm):
        response = client.post("/api/explain", json={"prompt": PROMPT})
        assert response.status_code == 200
        content = json.loads(re.search(r'id="data">(.*?)</script>', response.text)[1])
        assert content["pass"]["ids"] == lm.encode_prompt(PROMPT)
        assert client.post("/api/explain", json={"prompt": "a " * 99}).status_code == 400

    def test_explain_keeps_ids_that_the_text_does_not_give(self, client, lm):
        ids = [lm.tokenizer.encode(letter)[0] for letter in "the"]
        response = client.post("/api/explain", json={"prompt": ids})
        assert f'"ids":{json.dumps(ids, separators=(",", ":"))}' in response.text
        assert lm.encode_prompt("the") != ids

    def test_a_token_has_its_neighbors_and_its_merges(self, client, lm):
        [fox] = lm.tokenizer.encode(" fox")
        found = client.get("/api/token", params={"id": fox}).json()
        embedding = lm.model.weights["wte.weight"]
        ids, cosines = nearest_tokens(embedding, [fox], 12)
        assert [each["id"] for each in found["nearest"]] == ids[0].tolist()
        assert [each["cosine"] for each in found["nearest"]] == pytest.approx(cosines[0].tolist())
        assert [each["ranks"] for each in found["steps"]] == [
            list(step.ranks) for step in lm.tokenizer.merge_steps(" fox")
        ]
        special = client.get("/api/token", params={"id": lm.model.config.eos_token_ids[0]}).json()
        assert special["steps"] == []
        assert client.get("/api/token", params={"id": 4096}).status_code == 400
