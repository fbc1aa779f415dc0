"""What could come next, the draw, the texts that follow from another token, and the address."""

import json
import os
import re
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from helpers.playground import (
    PROMPT,
    cells,
    in_sight,
    look_at,
    open_below,
    open_text,
    set_inputs,
    set_moment,
    settle,
    story,
    switch,
    wait_for_end,
    write,
)
from helpers.random_models import save_byte_model
from helpers.server import running_server

from gpt2np import GenerationOptions
from gpt2np.generation.sampling import log_softmax, next_probabilities
from gpt2np.interp import Target, saliency
from gpt2np.model.ops import softmax

expect = pytest.importorskip("playwright.sync_api").expect

# The share of a row that is its bar, and the room between its token and the bar below.
BARS = """all => all.map(li => [
    +li.style.getPropertyValue("--p"),
    li.getBoundingClientRect().top + parseFloat(getComputedStyle(li).backgroundPositionY)
        - li.firstElementChild.getBoundingClientRect().bottom])"""


class TestAnswer:
    """The list of what could come next, and the ruler."""

    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        """A tab in which four tokens are written."""
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=4)
        return tab

    def test_the_marker_is_the_random_number(self, tab, lm):
        """It picked the token, on the ruler of the sampler; temperature stretches the ruler."""
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
        word = tab.inner_text(".machine-bars .own .token")
        assert tab.get_attribute(".marker", "data-token") == word
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

    def test_a_token_that_is_pressed_is_a_branch_and_the_prompt_has_none(self, tab, lm):
        look_at(tab, 3)
        assert tab.locator(".machine-bars button").count() == 0
        before, n_prompt = story(tab)[0], len(lm.encode_prompt(PROMPT))
        look_at(tab, n_prompt + 2)
        other = tab.locator(".machine-bars li:not(.own) button").nth(1)
        token_id = int(other.locator("xpath=..").get_attribute("data-id"))
        other.click()
        wait_for_end(tab)
        after = story(tab)[0]
        assert after[:3] == [*before[:2], token_id] and len(after) == 7
        look_at(tab, n_prompt + 2)
        assert tab.is_hidden(".marker")  # nothing was drawn here
        assert "came next" in tab.inner_text(".machine-caption")
        open_below(tab)
        assert tab.locator(".branch").count() == 2
        tab.locator(".branch:not([aria-current])").click()
        settle(tab)
        assert story(tab)[0] == before
        assert tab.locator(".branch").count() == 2

    def test_no_row_is_cut_in_a_low_window(self, tab, lm):
        tab.set_viewport_size({"width": 1280, "height": 500})
        look_at(tab, len(lm.encode_prompt(PROMPT)) + 1)
        rows = tab.eval_on_selector_all(
            ".machine-bars li",
            """rows => rows.map(r => [r.scrollHeight, r.clientHeight,
                ...[r, r.parentElement].map(each => each.getBoundingClientRect().bottom)])""",
        )
        assert len(rows) >= 3
        for content, room, bottom, end in rows:
            assert content <= room and bottom <= end + 1

    def test_the_chosen_token_is_in_sight_on_a_phone(self, tab, lm):
        tab.set_viewport_size({"width": 390, "height": 844})
        for token in range(4):
            look_at(tab, len(lm.encode_prompt(PROMPT)) + token)
            assert in_sight(tab, ".machine-bars .own", whole=True)
            box = tab.locator(".machine-bars .own").bounding_box()
            end = tab.locator(".machine-bars").bounding_box()
            assert box["y"] + box["height"] <= end["y"] + end["height"] + 1

    @pytest.mark.parametrize(
        ("prompt", "temperature", "top_k", "top_p"),
        [("A king", 0.7, 3, 1), pytest.param("The king said", 1.3, 0, 0.5, marks=pytest.mark.slow)],
    )
    def test_probabilities_before_and_after(self, tab, lm, prompt, temperature, top_k, top_p):
        tab.set_viewport_size({"width": 1280, "height": 900})
        write(tab, prompt, temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=2)
        n_prompt, ids = len(lm.encode_prompt(prompt)), story(tab)[0]
        look_at(tab, n_prompt + 1)
        logits = lm.model.forward([[*lm.encode_prompt(prompt), *ids[:1]]])[-1]
        options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        before, after = np.exp(log_softmax(logits)), next_probabilities(logits, options)
        for moment, expected in ((14, before), (15, after)):
            set_moment(tab, moment)
            rows = cells(tab, ".machine-bars li")
            assert {i for i, *_ in rows} >= {int(i) for i in np.argsort(-logits)[:8]}
            for token_id, p in rows:
                assert p == pytest.approx(expected[token_id], abs=1e-6)
            bars = tab.eval_on_selector_all(".machine-bars li", BARS)
            assert [p for p, _ in bars] == pytest.approx([p for _, p in rows], abs=1e-4)
            assert all(room >= 0 for _, room in bars)
            assert [p for _, p in rows] == sorted((p for _, p in rows), reverse=True)
        assert "cut off" in tab.inner_text(".machine-bars")
        write(tab, PROMPT, seed=1, temperature=0.8, top_k=40, top_p=1, max_tokens=4)  # as it was


class TestSaliency:
    def test_earlier_tokens_glow(self, open_tab, lm):
        tab = open_text(open_tab, lm, n=6, glows=True)
        tab.wait_for_selector("#story.glowing")
        ids = [*lm.encode_prompt(PROMPT), *story(tab)[0]]
        asked = []
        tab.on("request", lambda request: asked.append(request.url))
        tab.hover('#story [data-index="12"]')
        tab.wait_for_timeout(300)
        assert not asked  # pointing asks nothing
        look_at(tab, 13)
        tab.wait_for_selector("#story.glowing")
        expected = saliency(lm, ids[:13], Target(ids[13]), steps=8).values
        glow = tab.eval_on_selector_all(
            "#story .piece", "all => all.map(p => +p.style.getPropertyValue('--glow'))"
        )
        most = np.abs(expected).max()
        assert glow[:13] == pytest.approx(list(np.abs(expected) / most), abs=1e-3)
        assert not any(glow[13:])
        against = tab.eval_on_selector_all(
            "#story .piece", "all => all.map(p => p.classList.contains('against'))"
        )
        assert against[:13] == [value < 0 for value in expected]
        look_at(tab, 0)
        tab.wait_for_selector("#story:not(.glowing)")


class TestBranches:
    def test_several_texts_from_one_point(self, open_tab, lm, tmp_path):
        """GPT2NP_SCREENSHOTS names a folder for the guide's picture."""
        tab = open_text(open_tab, lm, n=5, index=11)
        ids = [*lm.encode_prompt(PROMPT), *story(tab)[0]]
        open_below(tab)
        tab.click("#river-run")
        expect(tab.locator("#status")).to_contain_text("5 texts from the same point")
        options = {"temperature": 0.8, "top_k": 40, "max_new_tokens": 5}
        texts = [lm.generate(ids[:11], seed=1 + i, **options).ids for i in range(5)]
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


def open_again(tab, address):
    """Open an address in a tab, without what the browser keeps of the page before."""
    tab.goto("about:blank")
    tab.goto(address)
    tab.wait_for_selector("html[data-ready]")
    settle(tab)


class TestShare:
    def test_the_address_holds_everything(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, f"{PROMPT} 🦊", seed=7, max_tokens=3, temperature=0.9)
        switch(tab, "3,1")
        open_below(tab)
        tab.click("#copy-link")
        expect(tab.locator("#status")).to_contain_text(re.compile("copied|Copy the address"))
        names = (".branch", ".cell[aria-pressed=true]")
        ids, probabilities = story(tab)
        intact, counts = tab.inner_text("#intact"), [tab.locator(name).count() for name in names]
        open_again(tab, tab.url)
        assert tab.input_value("#prompt") == f"{PROMPT} 🦊"
        assert tab.input_value("#temperature") == "0.9"
        assert story(tab)[0] == ids
        np.testing.assert_allclose(story(tab)[1], probabilities, atol=1e-6)
        assert tab.inner_text("#intact") == intact
        assert [tab.locator(name).count() for name in names] == counts and all(counts)
        assert tab.locator(".marker:not([hidden])").count() == 0  # its draws are not in the link

    def test_a_text_that_fills_the_context_opens(self, open_tab, tmp_path):
        save_byte_model(tmp_path / "model")
        with running_server(tmp_path, "--model", str(tmp_path / "model")) as server:
            tab = open_tab(url=server.url, reduced_motion="reduce")
            write(tab, "the " * 15, max_tokens=100)
            assert "context is full" in tab.inner_text("#status")
            tab.wait_for_function("() => location.hash.startsWith('#s=')")
            tab.wait_for_timeout(100)
            ids, probabilities = story(tab)
            open_again(tab, tab.url)
            assert story(tab)[0] == ids and "Opened" in tab.inner_text("#status")
            np.testing.assert_allclose(story(tab)[1], probabilities, atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("fragment", ["#s=xyz", "#s=", "#s={}", "#<script>"])
    def test_an_unreadable_address_is_a_new_page(self, open_tab, fragment):
        assert open_tab(fragment).inner_text("#status") == ""

    def test_a_link_that_is_damaged_or_of_a_taught_model_says_so(self, open_tab, server):
        content = {"prompt": "A fox", "ids": [1], "path": 5, "model": "bundled"}
        tab = open_tab(f"#s={quote(json.dumps(content))}")
        assert "damaged" in tab.inner_text("#status")
        content |= {"path": [1], "model": "bundled taught 0123"}
        open_again(tab, f"{server.url}/#s={quote(json.dumps(content))}")
        assert "has forgotten its page" in tab.inner_text("#status:not(.wrong)")
        assert tab.input_value("#prompt") == "A fox"
