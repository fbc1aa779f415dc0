"""The playground's experiments in Chromium: saliency, steering, branches, the draw."""

import base64
import json
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.axe import axe_findings
from helpers.server import running_server

from gpt2np.generation.sampling import next_probabilities
from gpt2np.interp import Target, direction, saliency

expect = pytest.importorskip("playwright.sync_api").expect
for package in ("httpx", "fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

PROMPT = "Once upon a time there was a little fox"
SEA = ["the sea", "a ship", "the waves", "a sailor", "the shore"]
FOREST = ["the forest", "a tree", "the wood", "a hunter", "the hill"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with running_server(tmp_path_factory.mktemp("server"), "--model", "bundled") as server:
        yield server


@pytest.fixture
def open_tab(browser, server):
    """open_tab(…): open the playground; fails on a console message or an error."""
    contexts, wrong = [], []

    def opened(fragment="", **options):
        contexts.append(browser.new_context(viewport={"width": 1280, "height": 900}, **options))
        tab = contexts[-1].new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.set_default_timeout(20_000)
        tab.goto(f"{server.url}/{fragment}")
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert not wrong


def write(tab, **settings):
    for name, value in settings.items():
        set_input(tab, f"#{name}", value)
    tab.click("#generate")
    wait(tab)


def set_input(tab, selector, value):
    tab.eval_on_selector(
        selector,
        """(input, value) => {
            input.value = value;
            input.dispatchEvent(new Event("input", {bubbles: true}));
            input.dispatchEvent(new Event("change", {bubbles: true}));
        }""",
        str(value),
    )


def wait(tab):
    tab.wait_for_selector("#stop:disabled")
    tab.wait_for_selector("#choices-content:not([aria-busy]) #kept:not(:empty)")


def story(tab):
    return tab.eval_on_selector_all(
        "#story .piece:not(.given):not(.next)", "all => all.map(p => +p.dataset.id)"
    )


class TestSaliency:
    @pytest.mark.parametrize("action", ["hover", "focus"])
    def test_earlier_tokens_glow(self, open_tab, lm, action):
        tab = open_tab()
        write(tab, max_tokens=8)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)]
        getattr(tab, action)('#story [data-index="14"]')
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
        largest = sorted(expected, key=abs)[-3:]
        assert sorted(said) == pytest.approx(sorted(largest), rel=1e-3)
        assert any(value < 0 for value in expected[3:])
        getattr(tab, action)('#story [data-index="3"]')
        fifth = "document.querySelectorAll('#story .piece')[4]"
        tab.wait_for_function(f"!{fifth}.style.getPropertyValue('--glow')")
        tab.wait_for_selector("#story.glowing")
        against = tab.eval_on_selector_all(
            "#story .piece", "all => all.map(p => p.classList.contains('against'))"
        )
        assert not any(against[3:])  # nothing is left of the later token's glow
        tab.hover("h1")
        tab.focus("#prompt")
        tab.wait_for_selector("#story:not(.glowing)")

    def test_it_can_be_switched_off(self, open_tab):
        tab = open_tab()
        write(tab, max_tokens=4)
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.uncheck("#glow")
        tab.hover('#story [data-index="11"]')
        tab.wait_for_timeout(600)
        assert not [url for url in asked if "saliency" in url]

    def test_a_request_ends_when_the_pointer_leaves(self, open_tab):
        tab = open_tab()
        write(tab, max_tokens=8)
        asked = []
        tab.route("**/api/saliency", lambda route: asked.append(route.request))  # no answer
        tab.eval_on_selector_all(
            "#story .piece.given ~ .piece:not(.next)",
            """pieces => {
                for (const piece of pieces)
                    piece.dispatchEvent(new PointerEvent("pointerover", {bubbles: true}));
                document.getElementById("story").dispatchEvent(new PointerEvent("pointerleave"));
            }""",
        )
        tab.wait_for_timeout(400)
        assert not asked  # the pointer rested nowhere
        for leave in (lambda: tab.hover('#story [data-index="9"]'), lambda: tab.hover("h1")):
            with tab.expect_request("**/api/saliency"):
                tab.hover('#story [data-index="14"]')
            with tab.expect_event("requestfailed", lambda request: "saliency" in request.url):
                leave()

    def test_a_token_that_is_pressed_keeps_its_request(self, open_tab):
        tab = open_tab()
        write(tab, max_tokens=8)
        asked = []
        tab.route("**/api/saliency", lambda route: asked.append(route.request))  # no answer
        with tab.expect_request("**/api/saliency"):
            tab.hover('#story [data-index="14"]')
        tab.click('#story [data-index="14"]')
        tab.wait_for_timeout(400)
        assert len(asked) == 1

    def test_a_request_for_choices_ends_when_the_pointer_leaves(self, open_tab):
        tab = open_tab()
        write(tab, max_tokens=8)
        held = []
        tab.route("**/api/inspect", lambda route: held.append(route))
        with tab.expect_request("**/api/inspect"):
            tab.hover('#story [data-index="14"]')
        with tab.expect_event("requestfailed", lambda request: "inspect" in request.url):
            tab.hover("h1")
        # A token that is pressed keeps the request that pointing at it began.
        with tab.expect_request("**/api/inspect"):
            tab.hover('#story [data-index="12"]')
        tab.click('#story [data-index="12"]')
        with tab.expect_request("**/api/inspect"):
            tab.hover('#story [data-index="13"]')
        tab.hover("h1")
        held[1].continue_()
        wait(tab)
        assert len(held) == 3
        expect(tab.locator('#story [data-index="12"]')).to_have_attribute("aria-pressed", "true")
        expect(tab.locator("#inside-content")).not_to_have_attribute("aria-busy", "true")

    def test_a_slow_model_switches_it_off(self, open_tab):
        tab = open_tab()
        write(tab, max_tokens=4)

        def answer_late(route):
            time.sleep(2.1)
            route.continue_()

        tab.route("**/api/saliency", answer_late)
        tab.hover('#story [data-index="11"]')
        expect(tab.locator("#glow")).not_to_be_checked()
        expect(tab.locator("#glow-says")).to_contain_text("so it is off now")


class TestSteering:
    def test_a_text_is_steered_as_by_the_library(self, open_tab, lm):
        tab = open_tab()
        set_input(tab, "#max_tokens", 12)
        set_input(tab, "#steer", 1)  # writes the text
        tab.wait_for_selector("#steer-says[data-length]")
        found = direction(lm, SEA, FOREST, "blocks.3.resid")
        length = float(tab.get_attribute("#steer-says", "data-length"))
        assert length == pytest.approx(np.linalg.norm(found.vector), rel=1e-5)
        expect(tab.locator("#status")).to_contain_text("seed 1 and steering +1.0")
        wait(tab)
        options = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 12, "seed": 1}
        steered = lm.generate(PROMPT, interventions=found.add(1), **options)
        assert story(tab) == steered.ids != lm.generate(PROMPT, **options).ids
        # The panels show the steered model, too.
        tab.click('#story [data-index="12"]')
        wait(tab)
        ids = [*lm.encode_prompt(PROMPT), *steered.ids]
        logits = lm.model.forward([ids[:12]], hook=found.add(1))[-1]
        p = np.exp(logits - logits.max())
        shown = tab.eval_on_selector(".choices .own data", "d => +d.value")
        assert shown == pytest.approx(p[ids[12]] / p.sum(), rel=1e-4)
        # Tokens glow by gradients through the steering.
        tab.hover('#story [data-index="13"]')
        tab.wait_for_selector("#story.glowing")
        target = Target(ids[13])
        values = saliency(lm, ids[:13], target, steps=8, interventions=found.add(1)).values
        said = tab.eval_on_selector_all("#glow-says data", "all => all.map(d => +d.value)")
        assert sorted(said) == pytest.approx(sorted(sorted(values, key=abs)[-3:]), rel=1e-3)
        assert "In the changed model" in tab.inner_text("#glow-says")
        tab.hover("h1")
        tab.click("#steer-off")
        expect(tab.locator("#steer-value")).to_have_text("0.0")
        expect(tab.locator("#status")).to_have_text(re.compile("with seed 1[.]"))
        wait(tab)
        assert story(tab) == lm.generate(PROMPT, **options).ids
        # A branch has its steering beside it, and brings the steering back.
        labels = tab.locator(".branch .soft").all_inner_texts()
        assert sorted(labels) == ["seed 1, steering 0", "seed 1, steering 1"]
        tab.click(".branch:not([aria-current])")
        wait(tab)
        expect(tab.locator("#steer-value")).to_have_text("+1.0")
        assert story(tab) == steered.ids

    def test_the_slider_ends_a_text_that_is_being_written(self, open_tab, lm):
        tab = open_tab()
        set_input(tab, "#max_tokens", 300)
        tab.click("#generate")
        tab.wait_for_selector("#story .piece:not(.given):not(.next)")
        for _ in range(3):
            tab.press("#steer", "ArrowRight")
        set_input(tab, "#max_tokens", 6)
        tab.press("#steer", "ArrowRight")
        expect(tab.locator("#status")).to_contain_text("6 tokens written")
        assert "steering +0.4" in tab.inner_text("#status")
        hook = direction(lm, SEA, FOREST, "blocks.3.resid").add(0.4)
        options = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 6, "seed": 1}
        assert story(tab) == lm.generate(PROMPT, interventions=hook, **options).ids

    def test_a_link_keeps_it(self, open_tab):
        tab = open_tab()
        set_input(tab, "#max_tokens", 4)
        tab.fill("#steer-a", "night, moon")
        set_input(tab, "#steer", -1.5)
        expect(tab.locator("#status")).to_contain_text("steering −1.5")
        tab.wait_for_timeout(400)
        again = open_tab(tab.evaluate("location.hash"))
        probabilities = "all => all.map(p => +p.dataset.p)"
        shown, restored = (
            each.eval_on_selector_all("#story .piece:not(.given):not(.next)", probabilities)
            for each in (tab, again)
        )
        assert len(shown) == 4 and restored == pytest.approx(shown, rel=1e-4)
        assert again.input_value("#steer-a") == "night, moon"
        assert again.input_value("#steer") == "-1.5"
        assert again.inner_text("#steer-says") == tab.inner_text("#steer-says")

    def test_words_are_missing(self, open_tab):
        tab = open_tab()
        tab.fill("#steer-a", " , ")
        set_input(tab, "#steer", 1)
        expect(tab.locator("#steer-says")).to_contain_text("at least one word")
        tab.click("#generate")  # says why it does not write
        expect(tab.locator("#generate")).to_be_enabled()
        assert tab.is_hidden("#story")
        tab.click("#steer-off")
        write(tab, max_tokens=2)
        assert len(story(tab)) == 2

    def test_a_damaged_link_opens_without_steering(self, open_tab):
        state = {"v": 1, "prompt": "The sea", "settings": {}, "steering": ["2", "", None, 99]}
        packed = base64.urlsafe_b64encode(json.dumps(state).encode()).decode().rstrip("=")
        tab = open_tab(f"#s={packed}")
        assert tab.input_value("#prompt") == "The sea"
        expect(tab.locator("#steer-says")).to_contain_text("at least one word")


class TestEffects:
    def test_the_map_can_be_left_and_shown_again(self, open_tab):
        """test_playground.py compares the effects with the library's."""
        tab = open_tab()
        write(tab, max_tokens=4)
        tab.wait_for_selector("#all-off")
        pushes = tab.locator(".cell").all_text_contents()
        tab.focus("#all-off")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#pushes")
        cells = tab.locator(".cell[data-effect]")
        assert cells.count() == len(pushes)
        strengths = tab.eval_on_selector_all(
            ".cell", "all => all.map(c => [+c.dataset.effect, +c.style.getPropertyValue('--p')])"
        )
        most = max(abs(effect) for effect, _ in strengths)
        for effect, p in strengths:
            assert p == pytest.approx(abs(effect) / most, abs=1e-3)
        said = tab.inner_text("#effects-says")
        strongest = max(strengths, key=lambda pair: abs(pair[0]))
        label = cells.nth(strengths.index(strongest)).get_attribute("aria-label")
        assert said.endswith(f"Largest effect: {label}.")
        tab.focus("#pushes")
        tab.keyboard.press("Enter")
        assert tab.locator(".cell").all_text_contents() == pushes
        assert tab.eval_on_selector("#all-off", "b => b === document.activeElement")


class TestRiver:
    def test_several_texts_from_one_point(self, open_tab, lm, tmp_path):
        """GPT2NP_SCREENSHOTS names a folder for the guide's picture."""
        tab = open_tab()
        write(tab, max_tokens=6)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)]
        tab.click('#story [data-index="11"]')
        wait(tab)
        tab.fill("#river-count", "4")
        tab.click("#river-run")
        expect(tab.locator("#status")).to_contain_text("4 texts from the same point")
        options = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 6}
        texts = [lm.generate(ids[:11], seed=1 + i, **options).ids for i in range(4)]
        expected = {tuple(ids[11:]), *map(tuple, texts)}
        found = set()
        for i in range(tab.locator(".branch").count()):
            tab.locator(".branch").nth(i).click()
            wait(tab)
            found.add(tuple(story(tab)[2:]))
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
        tab = open_tab()
        write(tab, max_tokens=3, temperature=0)
        tab.click("#river-run")
        expect(tab.locator("#status")).to_contain_text("At temperature 0")


class TestDraw:
    def test_temperature_stretches_the_ruler(self, open_tab, lm):
        tab = open_tab()
        write(tab, max_tokens=4)
        tab.click('#story [data-index="11"]')
        wait(tab)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)][:12]
        logits = lm.model.forward([ids[:11]])[-1]
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()

        def own():
            return tab.eval_on_selector(
                ".segments .own", "s => [parseFloat(s.style.left), parseFloat(s.style.width)]"
            )

        def share(probabilities):
            before = probabilities[: ids[11]].sum()
            return pytest.approx([100 * before, 100 * probabilities[ids[11]]], abs=2e-3)

        options = lm.resolve_options(temperature=0.8, top_k=40)
        sampled = next_probabilities(logits, options)
        assert own() == share(sampled)
        phases = float(tab.get_attribute(".moment", "max"))
        set_input(tab, ".moment", phases - 1)
        assert own() == share(p)  # before temperature and filters
        assert tab.is_hidden(".marker")
        set_input(tab, ".moment", phases - 0.1)
        assert own() == share(sampled)
        number = float(tab.get_attribute(".marker", "data-number"))
        assert sampled[: ids[11]].sum() - 1e-4 <= number <= sampled[: ids[11] + 1].sum() + 1e-4
        said = tab.eval_on_selector_all(".machine-caption data", "all => all.map(d => +d.value)")
        assert said[1:] == pytest.approx([p[ids[11]], sampled[ids[11]]], rel=1e-4)
        set_input(tab, "#temperature", 1.5)
        hotter = next_probabilities(logits, lm.resolve_options(temperature=1.5, top_k=40))
        wanted = float(100 * hotter[ids[11]])
        tab.wait_for_function(
            "w => Math.abs(parseFloat(document.querySelector('.segments .own').style.width) - w)"
            " < 0.01",
            arg=wanted,
        )
        assert own() == share(hotter)


class TestStandards:
    @pytest.fixture(scope="class")
    def full_tab(self, browser, server):
        """A tab in which every experiment shows something, all started by keys."""
        context = browser.new_context(
            viewport={"width": 1280, "height": 900}, reduced_motion="reduce"
        )
        tab = context.new_page()
        tab.goto(f"{server.url}/")
        tab.wait_for_selector("html[data-ready]")
        tab.focus("#steer")
        tab.keyboard.press("ArrowRight")
        tab.wait_for_selector("#steer-says[data-length]")
        assert tab.inner_text("#steer-value") == "+0.1"
        write(tab, max_tokens=6)
        tab.focus("#river-run")
        tab.keyboard.press("Enter")
        tab.wait_for_selector(".branch >> nth=2")
        wait(tab)
        tab.focus('#story [tabindex="0"]')
        tab.keyboard.press("ArrowRight")
        tab.wait_for_selector("#story.glowing")
        yield tab
        context.close()

    def test_axe_finds_nothing_serious(self, full_tab):
        assert axe_findings(full_tab, with_minor=False) == []

    @pytest.mark.parametrize("width", [320, 640, 1920])
    def test_the_page_never_scrolls_sideways(self, full_tab, width):
        full_tab.set_viewport_size({"width": width, "height": 800})
        assert full_tab.evaluate("document.documentElement.scrollWidth") <= width
