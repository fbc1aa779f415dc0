"""The playground's picture: its numbers, and the words beside it."""

import re
import shutil

import numpy as np
import pytest
from helpers.playground import (
    PROMPT,
    cells,
    in_sight,
    look_at,
    open_text,
    set_moment,
    story,
    write,
)
from helpers.random_models import random_model
from helpers.server import running_server

from gpt2np import trace
from gpt2np.interp import lens_table, zero_head
from gpt2np.model.ops import softmax


def shown_token(token):
    """Return the bytes of a token as the page shows them."""
    text = token.decode(errors="replace")
    return "".join(f"⟨{byte:02x}⟩" for byte in token) if "�" in text else text.replace(" ", "␣")


# Count the frames that are drawn at moments; a moment that is asked for draws several.
FRAMES = """moments => moments.reduce((count, moment) => {
    const range = document.querySelector(".moment");
    const drawing = CanvasRenderingContext2D.prototype;
    const { setTransform } = drawing;
    drawing.setTransform = function (...all) {
        count++;
        setTransform.apply(this, all);
    };
    range.value = moment;
    range.dispatchEvent(new Event("input"));
    drawing.setTransform = setTransform;
    return count;
}, 0)"""


def processor_seconds(session):
    """Return the processor seconds of a page's main thread."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return next(metric["value"] for metric in metrics if metric["name"] == "ThreadTime")


class TestMachine:
    """The numbers behind the picture, the picture, and its controls."""

    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab, lm):
        return open_text(open_shared_tab, lm, n=6, index=14)

    @pytest.fixture(scope="class")
    def ids(self, tab, lm):
        return [*lm.encode_prompt(PROMPT), *story(tab)[0]]

    @pytest.fixture(scope="class")
    def traced(self, ids, lm):
        return trace(lm, ids[:14])

    def test_lens(self, tab, traced, lm):
        """The model, asked after each block; before the first one nothing is shown."""
        expected = lens_table(lm, traced, 9, last=1)
        for k, moment in enumerate([1, 3, 5, 7, 9, 11]):
            set_moment(tab, moment)
            rows = cells(tab, ".machine-bars li")
            assert [i for i, _ in rows] == (expected.ids[k, 0].tolist() if k else [])
            if k:
                np.testing.assert_allclose(
                    [p for _, p in rows], expected.probabilities[k, 0], atol=1e-6
                )

    def test_attention_and_neurons(self, tab, traced, lm):
        """A block says what its heads look at most, and its strongest neurons."""
        tab.locator('.machine-lines [data-line="13"]').focus()
        tab.click('.machine-blocks [data-layer="4"]')
        tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=block]")
        pattern = traced["blocks.4.attn.pattern"][:, 13, :14]
        looks = tab.eval_on_selector_all(".target.spot", "all => all.map(e => e.ariaLabel)")
        for head, look in enumerate(looks):
            shown = float(re.search(r"([\d.]+)\xa0%", look)[1])
            assert shown == pytest.approx(100 * pattern[head].max(), abs=0.5)
        assert len(looks) == len(pattern)
        shown = re.findall(
            r"^neuron (\d+): (\S+), raises (.*)$", tab.inner_text(".machine-targets"), re.M
        )
        activation = traced["blocks.4.mlp.act"][-1]
        written = activation[:, None] * lm.model.weights["h.4.mlp.c_proj.weight"]
        busiest = np.argsort(-np.linalg.norm(written, axis=-1))[:5]
        assert [int(neuron) for neuron, *_ in shown] == busiest.tolist()
        for neuron, value, raised in shown:
            expected = activation[int(neuron)]
            assert float(value.replace("−", "-")) == pytest.approx(expected, rel=0.01, abs=1e-3)
            pushes = lm.model.unembed(written[[int(neuron)]])[0]
            best = [lm.tokenizer.vocabulary.token_bytes[i] for i in np.argsort(-pushes)[:5]]
            assert raised.split() == [shown_token(token) for token in best]
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

    @pytest.mark.parametrize("height", [240, 410, 700])
    def test_no_arc_is_cut_at_the_top(self, tab, height):
        """The loop of the first token, which looks only at itself, is whole with its width."""
        top, width = tab.evaluate(
            """async (height) => {
                const { arcsOf, layOut } = await import("./playground/stage.js");
                const pass = { count: 9, first: 0, n_layer: 6, n_head: 4, weights: () => [1] };
                const place = layOut(pass, 800, height, Infinity, 24);
                const [{ points }] = arcsOf(pass, place, 0, 0, 0);
                return [(points[0][1] + 3 * points[1][1]) / 4, Math.min(9, place.pitch * 0.34)];
            }""",
            height,
        )
        assert top - width / 2 >= 0

    def test_no_neuron_lies_far_from_a_row_that_is_alone(self, tab):
        swing = tab.evaluate(
            """async () => {
                const { layOut } = await import("./playground/stage.js");
                return layOut({ count: 1, first: 0, n_layer: 6 }, 800, 400, Infinity, 24).swing;
            }"""
        )
        assert swing <= 64

    def test_steps_by_keyboard(self, tab):
        set_moment(tab, 15)
        tab.focus(".moment")
        tab.keyboard.press("ArrowLeft")
        assert tab.get_attribute("#machine", "data-moment") == "14.000"
        tab.focus(".forth")
        for _ in range(2):
            tab.keyboard.press("Enter")
        assert tab.get_attribute("#machine", "data-moment") == "1.000"
        assert "each token becomes" in tab.inner_text(".machine-caption")
        tab.focus('.machine-lines [tabindex="0"]')
        tab.keyboard.press("ArrowUp")
        assert tab.get_attribute('.machine-lines [data-line="12"]', "aria-selected") == "true"

    def test_a_stage_of_gpt2_smalls_size(self, open_tab, gpt2_vocabulary, tmp_path):
        folder = tmp_path / "other"
        shape = {"n_embd": 96, "n_inner": 384, "n_layer": 12, "n_head": 12}
        random_model(vocab_size=50257, n_positions=64, **shape).save(folder)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(gpt2_vocabulary / name, folder / name)
        with running_server(tmp_path, "--model", str(folder)) as server:
            tab = open_tab(url=server.url, width=320, reduced_motion="reduce")
            write(tab, f"{PROMPT}, and the fox said to the king: 🦊 كان", max_tokens=1)
            tab.wait_for_selector("#machine .machine-lines .earlier")
            tab.click("#off-button")
            tab.wait_for_selector("#try-part:not([hidden])")  # the server is idle again
            style = "all => all.map(each => getComputedStyle(each).borderBottomColor)"
            colors = tab.eval_on_selector_all("#parts thead th", style)[:12]
            assert len(set(colors)) == 12  # one for each head, none of them gray
            for red, green, blue in (map(int, re.findall(r"\d+", color)) for color in colors):
                assert max(red, green, blue) - min(red, green, blue) > 60
            session = tab.context.new_cdp_session(tab)
            session.send("Performance.enable")
            for width in (320, 1280):
                tab.set_viewport_size({"width": width, "height": 900})
                start = processor_seconds(session)
                n_frames = tab.evaluate(FRAMES, list(range(0, 27, 2)))
                seconds = processor_seconds(session) - start
                assert seconds / n_frames < 0.04, (seconds, n_frames)  # without a GPU
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
            off, view = [tab.locator(each).bounding_box() for each in ("#off", ".view")]
            assert off["y"] >= view["y"] - 1  # a table of 12 blocks covers no text
            assert in_sight(tab, "#parts thead th:last-child", whole=True)


class TestWords:
    """What the page says is true, and no press goes unanswered."""

    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        return open_shared_tab(reduced_motion="reduce", glows=True)

    def test_the_examples_show_what_they_say(self, tab, lm):
        prompts = tab.eval_on_selector_all(
            "#examples option", "all => all.slice(1).map(o => o.label)"
        )
        heads = [(0, 1), (5, 2), (3, 2), (3, 2), (5, 2)]  # one that matters for each
        says = [
            (" time", "Once"),
            (" Gre", " Gre"),
            (" fox", " wolf"),
            (" cat", " cat"),
            (" m", " m"),
        ]
        for prompt, (layer, head), words in zip(prompts, heads, says, strict=True):
            traced = trace(lm, prompt)
            before = softmax(traced["logits"][-1])
            token = int(before.argmax())
            key = int(traced[f"blocks.{layer}.attn.pattern"][head, -1].argmax())
            assert tuple(lm.tokenizer.decode([i]) for i in (token, int(traced.ids[key]))) == words
            off = trace(lm, prompt, "logits", interventions=zero_head(layer, head))
            after = softmax(off["logits"][-1])
            assert after[token] < before[token] / 5
            if prompt.startswith("Hans"):  # the figures of the guide's lesson
                assert before[token] == pytest.approx(0.58, abs=0.005) and after[token] < 0.01
        tab.select_option("#examples", index=2)
        tab.wait_for_selector("#machine:not([aria-busy]) [data-line]:has-text('Gre')")
        assert tab.input_value("#prompt") == prompts[1]

    def test_characters_of_several_tokens(self, tab, lm):
        text = "كان 🦊 ß 中"
        assert len(lm.encode_prompt(text)) > len(text) // 2 + 4
        write(tab, text, max_tokens=1)
        look_at(tab, len(lm.encode_prompt(text)))
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
