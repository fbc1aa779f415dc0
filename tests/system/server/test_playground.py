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
from helpers.references import save_reference
from helpers.server import running_server

from gpt2np import GenerationOptions, trace
from gpt2np.generation.sampling import log_softmax, next_probabilities
from gpt2np.interp import attribution, lens_table, scale, zero_head
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
    """Set the prompt and the settings, and let the model write."""
    if prompt is not None:
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
    tab.wait_for_selector("#stop:disabled", state="attached")
    settle(tab)


def settle(tab):
    """Wait until the panels show what the server has computed for the selected token."""
    kept = "#choices-content:not([aria-busy]) #kept:not(:empty)"
    tab.wait_for_selector(kept, state="attached")
    tab.wait_for_selector("#inside-content:not([aria-busy]) #parts-panel", state="attached")


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


class TestWrite:
    def test_tokens_appear_while_typing(self, open_tab, lm):
        tab = open_tab()
        for text in ("The", "The König’s fox 🦊", ""):
            tab.fill("#prompt", text)
            ids = lm.encode_prompt(text)
            tab.wait_for_function(
                "n => document.querySelectorAll('#prompt-tokens button').length === n",
                arg=len(ids),
            )
            shown = tab.eval_on_selector_all(
                "#prompt-tokens button", "b => b.map(x => x.dataset.id)"
            )
            assert list(map(int, shown)) == ids
        tab.fill("#prompt", "The fox ")
        tab.wait_for_function(
            "() => document.querySelector('#prompt-count').innerText.includes('ends in a space')"
        )
        tab.fill("#prompt", "fox")
        tab.wait_for_function(
            "() => !document.querySelector('#prompt-count').innerText.includes('in a space')"
        )
        tab.locator("#prompt-tokens button").first.hover()
        assert "66" in tab.inner_text("#token-readout")  # the byte of f
        tab.fill("#prompt", "fox " * 600)
        tab.wait_for_selector("#prompt-count.wrong")

    def test_the_text_is_that_of_generate(self, open_tab, lm):
        tab = open_tab()
        write(tab, PROMPT, seed=1)
        expected = generated(lm, seed=1)
        ids, probabilities = story(tab)
        assert ids == expected.ids
        logprobs = [token.logprob for token in expected.logprobs]
        np.testing.assert_allclose(probabilities, np.exp(logprobs), atol=1e-6)
        assert "30 tokens written with seed 1" in tab.inner_text("#status")
        write(tab, seed=1)
        assert story(tab)[0] == expected.ids

    def test_continue_retry_and_step(self, open_tab, lm):
        tab = open_tab()
        write(tab, PROMPT, seed=3, max_tokens=5)
        first = story(tab)[0]
        tab.click("#continue")
        wait_for_end(tab)
        longer = story(tab)[0]
        ids = [*lm.encode_prompt(PROMPT), *first]
        assert longer[:5] == first
        assert longer[5:] == generated(lm, ids, seed=8, max_new_tokens=5).ids
        tab.click("#retry")
        wait_for_end(tab)
        assert tab.input_value("#seed") == "4"
        assert story(tab)[0][:5] == first and story(tab)[0] != longer
        tab.click("#step")
        wait_for_end(tab)
        assert len(story(tab)[0]) == 11

    def test_what_stays_is_not_drawn_again(self, open_tab):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=5)
        drawn = "#story .piece:not(.next), #inside-content .panel"
        tab.eval_on_selector_all(drawn, "all => all.forEach(each => { each.isOld = true; })")
        tab.click("#continue")
        wait_for_end(tab)
        is_old = "all => all.map(each => Boolean(each.isOld))"
        assert tab.eval_on_selector_all("#inside-content .panel", is_old) == [True] * 3
        pieces = tab.eval_on_selector_all("#story .piece", is_old)
        assert pieces == [True] * (len(pieces) - 6) + [False] * 6
        tab.click("#step")
        wait_for_end(tab)
        chosen = tab.get_attribute("#story [aria-pressed=true]", "data-index")
        assert chosen == str(len(pieces) - 1)  # the new token, in the place of the "?"
        tab.wait_for_function(
            "() => ![...document.querySelectorAll('.panel')].some(each => each.isOld)"
        )

    def test_stop(self, open_tab):
        tab = open_tab()
        set_inputs(tab, {"max_tokens": 400, "temperature": 1})
        tab.click("#generate")
        tab.wait_for_selector("#story .piece:not(.given):not(.next)")
        tab.click("#stop")
        wait_for_end(tab)
        assert "Stopped after" in tab.inner_text("#status")
        assert 0 < len(story(tab)[0]) < 400

    def test_reasons_for_the_end(self, open_tab):
        tab = open_tab()
        write(tab, "the " * 490, max_tokens=100)
        assert "context is full" in tab.inner_text("#status")
        tab.fill("#prompt", "fox " * 600)
        tab.click("#generate")
        tab.wait_for_selector("#status.wrong")
        assert "context" in tab.inner_text("#status")


class TestChoices:
    @pytest.mark.parametrize(
        ("temperature", "top_k", "top_p"),
        [(0.7, 3, 1), pytest.param(1.3, 0, 0.5, marks=pytest.mark.slow)],
    )
    def test_probabilities_before_and_after(self, open_tab, lm, temperature, top_k, top_p):
        tab = open_tab()
        write(tab, PROMPT, temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=8)
        n_prompt, ids = len(lm.encode_prompt(PROMPT)), story(tab)[0]
        tab.click(f'#story [data-index="{n_prompt + 4}"]')
        settle(tab)
        tab.wait_for_selector(".choices .lost")
        logits = lm.model.forward([[*lm.encode_prompt(PROMPT), *ids[:4]]])[-1]
        options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        before, after = np.exp(log_softmax(logits)), next_probabilities(logits, options)
        rows = cells(tab, ".choices tbody tr:not(.rest)")
        assert {i for i, *_ in rows} >= {int(i) for i in np.argsort(-logits)[:10]}
        for token_id, p, *sampled in rows:
            assert p == pytest.approx(before[token_id], abs=1e-6)
            assert (sampled or [0])[0] == pytest.approx(after[token_id], abs=1e-6)
        kept = tab.eval_on_selector("#kept", "e => [+e.dataset.count, +e.dataset.probability]")
        assert kept[0] == np.count_nonzero(after)
        assert kept[1] == pytest.approx(before[after > 0].sum(), abs=1e-6)
        assert f"cut off by {'top-k' if top_k else 'top-p'}" in tab.inner_text(".choices")

    def test_another_choice_is_a_branch(self, open_tab, lm):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=6)
        before, n_prompt = story(tab)[0], len(lm.encode_prompt(PROMPT))
        tab.click(f'#story [data-index="{n_prompt + 2}"]')
        settle(tab)
        other = tab.locator(".choices tr:not(.own) .pick").nth(1)
        token_id = int(other.get_attribute("data-id"))
        other.click()
        wait_for_end(tab)
        after = story(tab)[0]
        assert after[:3] == [*before[:2], token_id] and len(after) == 9
        assert tab.locator(".branch").count() == 2
        tab.locator(".branch:not([aria-current])").click()
        settle(tab)
        assert story(tab)[0] == before
        assert tab.locator(".branch").count() == 2


class TestInside:
    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        tab = open_shared_tab()
        write(tab, PROMPT, max_tokens=8)
        tab.click('#story [data-index="14"]')
        settle(tab)
        return tab

    @pytest.fixture(scope="class")
    def ids(self, tab, lm):
        return [*lm.encode_prompt(PROMPT), *story(tab)[0]]

    def test_contributions(self, tab, ids, lm):
        rows = cells(tab, ".choices tbody tr:not(.rest)")
        [token] = [i for i, *_ in rows if i == ids[14]]
        rival = next(i for i, *_ in rows if i != token)
        split = attribution(lm, trace(lm, ids[:14]), [token, rival])
        values = dict(zip(split.components, split.values[:, 0] - split.values[:, 1], strict=True))
        shown = tab.eval_on_selector_all(
            ".cell", "all => all.map(c => [c.dataset.part, +c.dataset.value])"
        )
        assert len(shown) == 6 * 5
        for part, value in shown:
            layer, head = part.split(",")
            block = f"blocks.{layer}"
            mlp = values[f"{block}.mlp"] + values[f"{block}.mlp.c_proj.bias"]
            expected = mlp if head == "mlp" else values[f"{block}.attn.head.{head}"]
            assert value == pytest.approx(expected, abs=1e-6)

    def test_a_part_switched_off(self, tab, ids, lm):
        tab.click('.cell[data-part="5,0"]')
        tab.click("#switch-off")
        tab.wait_for_selector("#edit-result data")
        logits = trace(lm, ids[:14], "logits")["logits"][-1]
        edited = trace(lm, ids[:14], "logits", interventions=zero_head(5, 0))["logits"][-1]
        check_edit(tab, ids[14], logits, edited)
        bars = cells(tab, ".machine-bars li")  # the Machine shows the changed pass
        after = softmax(edited)
        for token_id, p in bars:
            assert p == pytest.approx(after[token_id], abs=1e-6)
        before = tab.locator(f".machine-bars [data-id='{int(logits.argmax())}']")
        assert before.locator(".was").count() == 1 and "→" in before.inner_text()
        tab.click('.cell[data-part="1,mlp"]')
        set_inputs(tab, {"factor": 0.5})
        tab.dispatch_event("#factor", "change")
        tab.wait_for_selector("#edit-result >> text=the MLP of block 1 × 0.5")
        hooks = [zero_head(5, 0), scale("blocks.1.mlp.out", 0.5)]
        edited = trace(lm, ids[:14], "logits", interventions=hooks)["logits"][-1]
        check_edit(tab, ids[14], logits, edited)
        tab.click("#reset")
        tab.wait_for_selector("#edit-result >> text=All parts work normally")

    def test_every_part_off_in_turn(self, tab, ids, lm):
        tab.click("#all-off")
        tab.wait_for_selector("#pushes")
        shown = tab.eval_on_selector_all(
            ".cell", "all => all.map(c => [c.dataset.part, +c.dataset.effect])"
        )
        assert len(shown) == 30
        before = np.exp(log_softmax(trace(lm, ids[:14], "logits")["logits"][-1]))[ids[14]]
        for part, effect in shown:
            layer, head = part.split(",")
            off = scale(f"blocks.{layer}.mlp.out", 0)
            off = off if head == "mlp" else zero_head(int(layer), int(head))
            logits = trace(lm, ids[:14], "logits", interventions=off)["logits"][-1]
            assert effect == pytest.approx(np.exp(log_softmax(logits))[ids[14]] - before, abs=1e-6)

    def test_the_explain_page_of_the_step(self, tab, ids):
        with tab.expect_popup() as popup:
            tab.click("#explain")
        page = popup.value
        page.wait_for_selector("html[data-ready]")
        assert page.locator("#merges-panel").count() == 1
        shown = page.evaluate("JSON.parse(document.getElementById('data').textContent).pass.ids")
        assert shown == ids[:14]
        page.locator(".machine-blocks button").nth(1).press("Enter")  # its script runs
        page.locator(".target.spot").nth(2).press("Enter")
        page.wait_for_selector(".machine-picture[data-level=head]")


class TestMachine:
    """The numbers behind the picture, the picture, and its controls."""

    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, PROMPT, seed=1, max_tokens=8)
        tab.click('#story [data-index="14"]')
        settle(tab)
        return tab

    @pytest.fixture(scope="class")
    def ids(self, tab, lm):
        return [*lm.encode_prompt(PROMPT), *story(tab)[0]]

    @pytest.fixture(scope="class")
    def traced(self, ids, lm):
        return trace(lm, ids[:14])

    def test_the_prompt_is_shown_before_anything_is_written(self, open_tab, lm):
        tab = open_tab()
        for prompt in (PROMPT, "The king and the queen"):
            tab.fill("#prompt", prompt)
            last = lm.tokenizer.decode(lm.encode_prompt(prompt)[-1:]).replace(" ", "␣")
            tab.wait_for_selector(f"#machine [data-line][aria-pressed=true]:has-text('{last}')")
        next_ids = cells(tab, ".machine-bars li")
        probabilities = np.exp(log_softmax(lm.model.forward([lm.encode_prompt(prompt)])[-1]))
        set_moment(tab, 13.5)
        next_ids = cells(tab, ".machine-bars li")
        assert [i for i, _ in next_ids] == np.argsort(-probabilities)[:9].tolist()
        for i, p in next_ids:
            assert p == pytest.approx(probabilities[i], abs=1e-6)

    def test_lens(self, tab, traced, lm):
        expected = lens_table(lm, traced, 9, last=1)
        shown = tab.eval_on_selector_all(
            ".lens tbody tr", "rows => rows.map(r => +r.querySelector('data').value)"
        )
        np.testing.assert_allclose(shown, expected.probabilities[:, 0, 0], atol=1e-6)
        for k, moment in enumerate([0, 3, 5, 7, 9, 11]):  # the answer, asked after k blocks
            set_moment(tab, moment)
            rows = cells(tab, ".machine-bars li")
            assert [i for i, _ in rows] == expected.ids[k, 0].tolist()
            np.testing.assert_allclose(
                [p for _, p in rows], expected.probabilities[k, 0], atol=1e-6
            )

    def test_attention(self, tab, traced):
        for layer, line in ((2, 13), (4, 5)):
            tab.click(f'.machine-blocks [data-layer="{layer}"]')
            tab.click(f'.machine-lines [data-line="{line}"]')
            shown = tab.eval_on_selector_all(
                ".looks tbody tr",
                "rows => rows.map(r => [...r.querySelectorAll('data')].map(d => +d.value))",
            )
            pattern = traced[f"blocks.{layer}.attn.pattern"][:, line, : line + 1]
            np.testing.assert_array_equal(np.float32(shown).T, pattern)

    def test_neurons(self, tab, traced, lm):
        tab.click('.machine-blocks [data-layer="4"]')
        tab.click('.machine-lines [data-line="13"]')
        shown = tab.eval_on_selector_all(
            "#neurons-panel tbody tr",
            """rows => rows.map(row => [+row.querySelector('th').innerText,
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

    def test_a_strips_pixels_are_the_vectors_numbers(self, tab, traced):
        """A cell is the strongest of its neighbors; its opacity is the root of its share."""
        set_moment(tab, 15)
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

    def test_the_draw(self, tab, ids, traced, lm):
        """The marker is the random number that picked the token, on the ruler of the sampler."""
        set_moment(tab, 15)
        options = GenerationOptions(temperature=0.8, top_k=40, top_p=1.0)
        sampled = next_probabilities(lm.model.forward([ids[:14]])[-1], options)
        place = tab.eval_on_selector(".marker", "m => parseFloat(m.style.left) / 100")
        number = float(tab.get_attribute(".machine-caption data", "value"))
        assert place == pytest.approx(number, abs=1e-6)
        assert number == np.random.default_rng(1).random(8)[14 - len(lm.encode_prompt(PROMPT))]
        before = sampled[: ids[14]].sum()
        assert before <= number < before + sampled[ids[14]]
        left, width = tab.eval_on_selector(
            ".segments .own", "s => [parseFloat(s.style.left), parseFloat(s.style.width)]"
        )
        assert [left, width] == pytest.approx([100 * before, 100 * sampled[ids[14]]], abs=1e-3)

    def test_steps_by_keyboard(self, tab):
        set_moment(tab, 15)
        tab.focus(".moment")
        tab.keyboard.press("ArrowLeft")
        assert tab.get_attribute("#machine", "data-moment") == "14.000"
        tab.keyboard.press("ArrowLeft")
        assert tab.get_attribute(".moment", "aria-valuetext") == "answer"
        tab.focus(".forth")
        for _ in range(3):
            tab.keyboard.press("Enter")
        assert tab.get_attribute("#machine", "data-moment") == "0.000"
        assert "Embedding" in tab.inner_text(".machine-caption")
        tab.focus('.machine-lines [tabindex="0"]')
        tab.keyboard.press("ArrowUp")
        assert tab.get_attribute('.machine-lines [data-line="12"]', "aria-pressed") == "true"

    def test_it_plays_and_writes_on(self, open_tab):
        """Play shows the pass; at its end the next token is written and its pass played."""
        tab = open_tab()
        write(tab, PROMPT, max_tokens=1)
        tab.wait_for_function("() => +document.querySelector('#machine').dataset.moment === 15")
        tab.click(".transport .play")
        tab.wait_for_function("() => document.querySelectorAll('#story .piece').length > 11")
        tab.click(".transport .play")
        moment = tab.get_attribute("#machine", "data-moment")
        tab.wait_for_timeout(200)
        assert tab.get_attribute("#machine", "data-moment") == moment
        times = tab.evaluate("document.getElementById('machine').frames")
        assert len(times) > 20 and np.median(times) < 8

    def test_one_token_is_played_once(self, open_tab):
        tab = open_tab()
        tab.click("#step")
        wait_for_end(tab)
        tab.wait_for_function("() => +document.querySelector('#machine').dataset.moment === 15")
        tab.wait_for_timeout(200)
        assert len(story(tab)[0]) == 1
        assert tab.get_attribute("#machine", "data-moment") == "15.000"

    def test_a_stage_of_gpt2_smalls_size(self, open_tab, gpt2_vocabulary, tmp_path):
        folder = tmp_path / "other"
        shape = {"vocab_size": 50257, "n_positions": 64, "n_embd": 96, "n_layer": 12, "n_head": 12}
        save_reference(folder, **shape, eos_token_id=50256)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(gpt2_vocabulary / name, folder / name)
        with running_server(tmp_path, "--model", str(folder)) as server:
            tab = open_tab(url=server.url, width=320)
            tab.fill("#prompt", f"{PROMPT}, and the fox said to the king: 🦊 كان")
            tab.wait_for_selector("#machine .machine-lines .earlier")
            for width in (320, 1280):
                tab.set_viewport_size({"width": width, "height": 900})
                tab.evaluate("document.getElementById('machine').frames.length = 0")
                for moment in np.arange(0, 27, 0.5):
                    set_moment(tab, moment)
                times = tab.evaluate("document.getElementById('machine').frames")
                assert np.median(times) < 16
                assert tab.evaluate("document.documentElement.scrollWidth") <= width


def set_moment(tab, moment):
    tab.eval_on_selector(
        ".moment",
        "(range, moment) => { range.value = moment; range.dispatchEvent(new Event('input')); }",
        float(moment),
    )


def check_edit(tab, token, before, after):
    """The sentence has the token's probability before and after, and the likeliest token now."""
    before, after = np.exp(log_softmax(before)), np.exp(log_softmax(after))
    expected = [before[token], after[token]]
    likeliest = int(after.argmax())
    if likeliest != token:
        expected.append(after[likeliest])
        assert tab.locator(f"#edit-result [data-id='{likeliest}']").count() == 1
    shown = tab.eval_on_selector_all("#edit-result data", "all => all.map(d => +d.value)")
    assert shown == pytest.approx(expected, abs=1e-6)


class TestWords:
    """What the page says is true, and no press goes unanswered."""

    def test_characters_of_several_tokens(self, open_tab, lm):
        tab = open_tab()
        text = "كان 🦊 ß 中"
        assert len(lm.encode_prompt(text)) > len(text) // 2 + 4
        write(tab, text, max_tokens=1)
        shown = tab.eval_on_selector_all(
            "#story .piece.given", "all => all.map(p => p.textContent).join('')"
        )
        assert shown == text
        assert "\\x" not in tab.inner_text(".machine-lines") + tab.inner_text("#prompt-tokens")

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
        tab.wait_for_selector("#inside-content:not([aria-busy]) #parts-panel")
        assert "Head 2 of block 5" in tab.inner_text("#status")
        tab.click("#switch-off")
        tab.wait_for_selector("#edit-result >> text=head 2 of block 5 × 0")
        prompt = examples[1]["prompt"]
        edited = trace(lm, prompt, "logits", interventions=zero_head(5, 2))["logits"][-1]
        after = softmax(edited)  # a change is shown before the settings
        tab.wait_for_selector(".machine-bars .was")
        bars = cells(tab, ".machine-bars li")
        assert [i for i, _ in bars][:5] == np.argsort(-after)[:5].tolist()
        token = int(lm.model.forward([lm.encode_prompt(prompt)])[-1].argmax())
        assert bars[-1][0] == token  # what was the likeliest stays in sight
        np.testing.assert_allclose([p for _, p in bars], [after[i] for i, _ in bars], atol=1e-6)

    def test_a_character_is_shown_where_a_token_completes_it(self, open_tab, lm):
        tab = open_tab()
        ids = lm.encode_prompt("a 中")
        assert not lm.tokenizer.vocabulary.token_bytes[ids[-1]].decode("utf-8", "ignore")
        write(tab, "a 中", max_tokens=1)
        tab.click(f'#story [data-index="{len(ids) - 1}"]')
        settle(tab)
        assert tab.inner_text(".choices .own th") == "中"
        panels = ("#choices-content", "#inside-content", "#numbers", "#machine")
        shown = "".join(map(tab.inner_text, panels))
        assert "\\x" not in shown and "\\u{" not in shown and "\ufffd" not in shown
        for story in ("#story", "#prompt", ".machine-text"):
            assert tab.locator(story).first.get_attribute("dir") == "auto"

    def test_an_edited_prompt_cannot_be_continued(self, open_tab):
        """The old story goes from the page, and what the panels said of it; both come back."""
        tab = open_tab()
        write(tab, PROMPT, max_tokens=2)
        tab.fill("#prompt", "The king")
        assert tab.is_disabled("#continue") and "has changed" in tab.inner_text("#status")
        assert tab.is_hidden("#story")
        for panel in ("#choices-content", "#inside-content"):
            assert "Write something first" in tab.text_content(panel)
        tab.fill("#prompt", PROMPT)
        assert tab.is_enabled("#continue")
        settle(tab)
        assert tab.is_visible("#story") and len(story(tab)[0]) == 2

    def test_a_prompt_that_is_too_long_shows_nothing_of_another(self, open_tab):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=2)
        tab.fill("#prompt", "fox " * 600)
        tab.wait_for_selector("#prompt-count.wrong")
        assert tab.is_hidden("#machine") and tab.is_hidden("#story")

    def test_the_machine_writes_a_token_that_is_pressed(self, open_tab, lm):
        """Also before anything is written; what follows a token of the prompt can't be pressed."""
        tab = open_tab()
        set_inputs(tab, {"max_tokens": 1})
        pick = tab.locator(".machine-bars button").nth(2)
        token = int(pick.locator("xpath=..").get_attribute("data-id"))
        pick.click()
        wait_for_end(tab)
        ids, probabilities = story(tab)
        logits = lm.model.forward([lm.encode_prompt(PROMPT)])[-1]
        assert ids[0] == token and len(ids) == 2
        assert probabilities[0] == pytest.approx(softmax(logits)[token], abs=1e-6)
        tab.click('#story [data-index="3"]')
        settle(tab)
        tab.wait_for_selector("#machine .machine-lines [data-line='2'][aria-pressed=true]")
        assert tab.locator(".machine-bars li").count() == 9
        assert tab.locator(".machine-bars button").count() == 0

    def test_panels_follow_the_settings(self, open_tab, lm):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=1)
        set_inputs(tab, {"temperature": 1.5})
        tab.wait_for_selector(".machine-says >> text=temperature 1.5")
        options = GenerationOptions(temperature=1.5, top_k=40, top_p=1.0)
        logits = lm.model.forward([lm.encode_prompt(PROMPT)])[-1]
        after = next_probabilities(logits, options)
        for token_id, p in cells(tab, ".machine-bars li"):
            assert p == pytest.approx(after[token_id], abs=1e-6)

    def test_tokens_of_the_prompt_have_no_dead_buttons(self, open_tab):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=2)
        tab.click('#story [data-index="3"]')
        settle(tab)
        assert tab.locator(".choices .pick").count() == 0
        assert "part of your prompt" in tab.inner_text(".choices")

    def test_numbers_out_of_range_and_tries_at_temperature_0(self, open_tab):
        tab = open_tab()
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


class TestOneScreen:
    """The text stays in sight while the panels change."""

    def test_beside_the_text(self, open_tab):
        tab = open_tab(height=720)
        write(tab, PROMPT)
        for name, part in (
            ("Choices", ".choices"),
            ("Inside", "#parts-panel"),
            ("Steer", "#steering-content"),
            ("Draw", "#prompt-tokens"),
        ):
            tab.click(f"#panel-tabs >> text={name}")
            assert in_sight(tab, part), name
            assert in_sight(tab, "#story", whole=True) and in_sight(tab, ".machine-canvas", True)
            assert tab.evaluate("document.scrollingElement.scrollHeight") == 720
        assert in_sight(tab, ".machine-caption", whole=True)

    def test_below_the_text_on_a_phone(self, open_tab):
        tab = open_tab(width=390, height=844, has_touch=True, is_mobile=True)
        tab.tap("#generate")
        wait_for_end(tab)
        tab.tap('#story [data-index="11"]')
        settle(tab)
        for name, part in (
            ("Choices", ".choices"),
            ("Inside", "#parts-panel"),
            ("Keep", "#share h2"),
        ):
            tab.tap(f"#panel-tabs >> text={name}")
            assert in_sight(tab, part) and in_sight(tab, "#story", whole=True), name
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390

    def test_a_link_to_a_part_keeps_the_address_of_the_text(self, open_tab):
        tab = open_tab()
        write(tab, PROMPT, max_tokens=4)
        tab.click("#panel-tabs >> text=Keep")
        tab.wait_for_function("() => location.hash.startsWith('#s=')")
        again = open_tab(tab.evaluate("location.hash"))
        settle(again)
        assert story(again)[0] == story(tab)[0]


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
            const { left, top, bottom, width } = element.getBoundingClientRect();
            const at = document.elementFromPoint(left + width / 2, top + 3);
            const isThere = at && (element.contains(at) || at.contains(element));
            return isThere && top > -1 && (whole ? bottom <= innerHeight : top < innerHeight);
        }""",
        whole,
    )


class TestShare:
    def test_the_address_holds_everything(self, open_tab, lm):
        tab = open_tab()
        write(tab, f"{PROMPT} 🦊", seed=7, max_tokens=6, temperature=0.9)
        tab.locator(".choices tr:not(.own) .pick").first.click()
        wait_for_end(tab)
        tab.click('.cell[data-part="3,1"]')
        tab.click("#switch-off")
        tab.wait_for_selector("#edit-result data")
        tab.click("#copy-link")
        tab.wait_for_selector("#share-status:not(:empty)")
        again = open_tab(tab.evaluate("location.hash"))
        settle(again)
        assert again.input_value("#prompt") == f"{PROMPT} 🦊"
        assert again.input_value("#temperature") == "0.9"
        assert story(again)[0] == story(tab)[0]
        np.testing.assert_allclose(story(again)[1], story(tab)[1], atol=1e-6)
        for name in (".branch", "#edit-result data", ".cell.edited"):
            assert again.locator(name).count() == tab.locator(name).count() > 0
        assert again.locator('.cell[data-part="3,1"][aria-pressed=true]').count() == 1

    @pytest.mark.slow
    @pytest.mark.parametrize("fragment", ["#s=xyz", "#s=", "#s=e30", "#<script>"])
    def test_an_unreadable_address_is_a_new_page(self, open_tab, fragment):
        assert open_tab(fragment).inner_text("#status") == "Ready."

    def test_a_damaged_address_says_so(self, open_tab):
        content = {"prompt": "a", "ids": [1], "path": [1], "tree": 5, "model": "bundled"}
        damaged = base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")
        assert "damaged" in open_tab(f"#s={damaged}").inner_text("#status")

    def test_the_text_is_saved_with_its_prompt(self, open_tab, lm):
        tab = open_tab()
        write(tab, MARKUP, max_tokens=6)
        with tab.expect_download() as download:
            tab.click("#save-text")
        assert download.value.path().read_text() == MARKUP + lm.tokenizer.decode(story(tab)[0])


class TestStandards:
    def test_by_keyboard_only(self, open_tab):
        tab = open_tab()

        def tab_to(selector, presses=60):
            for _ in range(presses):
                tab.keyboard.press("Tab")
                if tab.evaluate("s => document.activeElement.matches(s)", selector):
                    return
            raise AssertionError(f"no way to {selector} by Tab")

        tab_to("#prompt")
        tab.keyboard.press("Control+a")
        tab.keyboard.type("The king")
        tab.keyboard.press("Control+Enter")
        wait_for_end(tab)
        tab_to("#story .piece")
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("ArrowRight")
        tab.keyboard.press("Enter")
        settle(tab)
        pressed = "#story [aria-pressed=true]"
        assert tab.eval_on_selector(pressed, "p => p === document.activeElement")
        before = story(tab)[0]
        tab_to("#choices .pick")
        for _ in range(3):
            tab.keyboard.press("Tab")
        tab.keyboard.press("Enter")
        wait_for_end(tab)
        assert story(tab)[0] != before
        tab_to(".cell", 120)
        tab.keyboard.press("ArrowUp")
        tab.keyboard.press("Enter")
        tab_to("#switch-off")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#edit-result data")

    @pytest.fixture(scope="class")
    def full_tab(self, open_shared_tab):
        """A tab in which every section shows something, for a prompt with a long word."""
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, f"{PROMPT} {'a' * 200}", max_tokens=12)
        tab.click("#switch-off")
        tab.wait_for_selector("#edit-result data")
        tab.locator(".choices tr:not(.own) .pick").first.click()
        wait_for_end(tab)
        return tab

    def test_axe_finds_nothing_serious(self, full_tab):
        assert axe_findings(full_tab, with_minor=False) == []

    def test_any_width(self, full_tab):
        for width in (320, 360, 768, 1023, 1280, 3840):
            full_tab.set_viewport_size({"width": width, "height": 900})
            assert full_tab.evaluate("document.documentElement.scrollWidth") <= width, width

    @pytest.mark.parametrize("is_text_only", [False, True])
    def test_at_200_percent(self, open_tab, is_text_only):
        """All, or only the letters, twice as large: all can be used without scrolling sideways."""
        width, height = (1280, 720) if is_text_only else (640, 360)
        tab = open_tab(width=width, height=height, device_scale_factor=2)
        if is_text_only:
            tab.evaluate("document.documentElement.style.fontSize = '200%'")
        write(tab, PROMPT, max_tokens=12)
        tab.locator('#story [data-index="11"]').click()
        settle(tab)
        for part in ("inside", "choices", "steering", "share", "tokens"):
            tab.click(f"#panel-tabs [href='#{part}']")
            assert tab.evaluate("document.documentElement.scrollWidth") <= width, part
            heading = f"#{part} h2"
            tab.locator(heading).scroll_into_view_if_needed()
            assert in_sight(tab, heading, whole=True), part
        tab.locator("#story").scroll_into_view_if_needed()
        assert in_sight(tab, "#story")

    @pytest.mark.slow
    def test_a_slow_network(self, open_tab, lm):
        """400 kbit/s with delays of 300 ms: the page says that it loads, and then writes."""

        def slow(tab):
            network = tab.context.new_cdp_session(tab)
            network.send("Network.enable")
            bytes_per_s = {"downloadThroughput": 50_000, "uploadThroughput": 50_000}
            conditions = {"offline": False, "latency": 300, **bytes_per_s}
            network.send("Network.emulateNetworkConditions", conditions)

        tab = open_tab(before=slow)
        write(tab, PROMPT, max_tokens=8)
        assert story(tab)[0] == generated(lm, seed=1, max_new_tokens=8).ids

    def test_nothing_moves(self, full_tab):
        assert full_tab.evaluate("document.getAnimations().length") == 0

    def test_paper_has_no_controls(self, full_tab):
        full_tab.emulate_media(media="print")
        assert full_tab.evaluate(
            "[...document.querySelectorAll('form, .buttons')].every(e => !e.offsetHeight)"
        )
        assert full_tab.pdf(format="A4").startswith(b"%PDF")

    def test_a_hostile_prompt_does_nothing(self, open_tab):
        tab = open_tab(width=360)
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

    def test_a_link_to_the_documentation(self, monkeypatch):
        """The page links to the address that the package's metadata names, if it names one."""
        from email.message import Message

        from fastapi import FastAPI
        from fastapi.testclient import TestClient

        from gpt2np.server import playground

        def page(*urls):
            found = Message()
            for url in urls:
                found["Project-URL"] = url
            monkeypatch.setattr(playground, "metadata", lambda name: found)
            app = FastAPI()
            playground.add_playground(app)
            return TestClient(app).get("/").text

        assert "<a href=" not in page().partition("<footer>")[2]
        linked = page("Issues, https://i.example", "Documentation, https://d.example/a?b=1&c=2")
        link = '<a href="https://d.example/a?b=1&amp;c=2" rel="noopener" target="_blank">'
        assert f"{link}Documentation</a>" in linked and "i.example" not in linked

    def test_two_tabs_do_not_disturb_each_other(self, open_tab, lm):
        one, two = open_tab(), open_tab()
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
            tab = open_tab(url=guarded.url, key="secret", expected=expected)
            set_inputs(tab, {"max_tokens": 400})
            tab.click("#generate")
            tab.wait_for_selector("#story .piece:not(.given):not(.next) >> nth=5")
            guarded.process.kill()
            tab.wait_for_selector("#connection:not([hidden])")
            tab.wait_for_selector("#stop:disabled")
            assert "are kept" in tab.inner_text("#status")
            n_kept = len(story(tab)[0])
            port = guarded.url.rpartition(":")[2]
        assert 5 < n_kept < 400
        with running_server(tmp_path, *arguments, "--port", port):
            set_inputs(tab, {"max_tokens": 2})
            tab.click("#continue")
            wait_for_end(tab)
            assert tab.is_hidden("#connection")
            assert len(story(tab)[0]) == n_kept + 2


@pytest.mark.slow
def test_the_lesson_of_the_guide(open_tab, tmp_path):
    """Follow docs/guide/playground.md; GPT2NP_SCREENSHOTS names a folder for its pictures."""
    folder = Path(os.environ.get("GPT2NP_SCREENSHOTS", tmp_path))
    tab = open_tab()
    for n in range(1, 6):
        tab.click("#step")
        wait_for_end(tab)
        assert len(story(tab)[0]) == n
    tab.click("#generate")
    wait_for_end(tab)
    tab.click('#story [data-index="13"]')
    settle(tab)
    tab.click("#panel-tabs >> text=Choices")
    tab.evaluate("document.activeElement.blur()")
    tab.mouse.move(0, 0)
    settle(tab)
    tab.screenshot(path=folder / "write.png")
    tab.locator(".choices tr:not(.own) .pick").nth(2).click()
    wait_for_end(tab)
    assert tab.locator(".branch").count() >= 2
    set_inputs(tab, {"temperature": 0})
    for _ in range(2):
        tab.click("#generate")
        wait_for_end(tab)
    set_inputs(tab, {"temperature": 0.8})
    tab.select_option("#examples", "1")
    settle(tab)
    tab.click("#switch-off")
    tab.wait_for_selector("#edit-result data")
    tab.click("#panel-tabs >> text=Inside")
    tab.wait_for_timeout(2500)  # the picture is played
    tab.evaluate("document.activeElement.blur()")
    tab.screenshot(path=folder / "inside.png")
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
        assert '"pieces":[]' in response.text
        assert lm.encode_prompt("the") != ids
