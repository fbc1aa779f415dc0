"""Parts of the model that are switched off on the playground."""

import re

import numpy as np
import pytest
from helpers.playground import (
    PROMPT,
    cells,
    generated,
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

from gpt2np import trace
from gpt2np.interp import scale, zero_head
from gpt2np.model.ops import softmax

# Points of the arc that turns the guess of the first example, halfway between others' samples.
ARC = """async ([width, height]) => {
    const { machine } = await import("./playground/picture.js");
    const { arcsOf, layOut } = await import("./playground/stage.js");
    const { pass } = machine;
    const place = layOut(pass, width, height, Infinity, 24);
    const arcs = arcsOf(pass, place, 5, 2, pass.count - 1);
    const { points } = arcs.reduce((a, b) => (a.weight > b.weight ? a : b));
    const at = (f, i) => (1 - f) ** 3 * points[0][i] + 3 * f * (1 - f) ** 2 * points[1][i]
        + 3 * f * f * (1 - f) * points[2][i] + f ** 3 * points[3][i];
    return [0.3, 11 / 24, 0.54, 0.7].map((f) => [at(f, 0), at(f, 1)]);
}"""
HANS = "Hans and Gretel went into the wood. Hans and"
WIDTHS = "all => all.map(each => [+each.dataset.id, parseFloat(each.style.width) / 100])"


class TestSwitchedOff:
    """A part that is switched off changes the text: it is written again with the same seed."""

    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=8)
        return tab

    def test_the_offered_part_changes_the_next_token(self, open_tab, lm):
        """And the picture shows the first token that differs."""
        tab = open_tab(reduced_motion="reduce")
        write(tab, PROMPT, max_tokens=8)
        (before, *_), _ = story(tab)
        assert tab.locator("button.primary:visible").all_inner_texts() == ["Switch parts off"]
        tab.click("#off-button")
        tab.click("#try-part")
        tab.wait_for_selector("#story-name:not([hidden])")
        wait_for_end(tab)
        assert {before, story(tab)[0][0]} <= dict(cells(tab, ".machine-bars li")).keys()
        assert ", not ␣" in tab.inner_text(".machine-caption") and story(tab)[0][0] != before
        look_at(tab, len(lm.encode_prompt(PROMPT)) + 4)  # beyond the first that differs
        assert re.search(r"now picks (?!.*not ).*\.$", tab.inner_text(".machine-caption"))

    @pytest.mark.parametrize(
        ("part", "hook"), [("5,0", zero_head(5, 0)), ("3,mlp", scale("blocks.3.mlp.out", 0))]
    )
    def test_the_second_text_is_that_of_the_changed_model(self, tab, lm, part, hook):
        before = story(tab)[0]
        tab.locator(".machine-lines [data-line]").last.click()
        tab.wait_for_selector(".machine-picture[data-level=token]")
        switch(tab, part)
        assert tab.get_attribute(".machine-picture", "data-level") == "model"  # the token is shut
        after = story(tab)[0]
        options = {"seed": 1, "max_new_tokens": 8, "interventions": hook}
        assert after == generated(lm, **options).ids != before
        intact = tab.inner_text("#intact").replace("↵", "\n")
        assert intact == PROMPT + lm.tokenizer.decode(before)
        same, differs = [
            tab.eval_on_selector_all(
                "#intact span, #story .piece:not(.next)",
                f"all => all.filter(each => each.classList.contains('changed') === {is_changed})"
                ".map(each => [each.parentNode.id, each.textContent])",
            )
            for is_changed in ("false", "true")
        ]
        assert [t for i, t in same if i == "intact"] == [t for i, t in same if i == "story"]
        assert {i for i, _ in differs} == {"intact", "story"}
        context = [*lm.encode_prompt(PROMPT), *after][: len(lm.encode_prompt(PROMPT)) + 2]
        look_at(tab, len(context))
        set_moment(tab, 14)
        logits = trace(lm, context, "logits", interventions=hook)["logits"][-1]
        rows = dict(cells(tab, ".machine-bars li"))
        for token_id, p in rows.items():
            assert p == pytest.approx(softmax(logits)[token_id], abs=1e-6)
        intact_p = softmax(lm.model.forward([context])[-1])
        befores = tab.eval_on_selector_all(
            ".machine-bars li", "all => all.map(li => [+li.dataset.id, li.innerText])"
        )
        for token_id, text in befores:  # each row that changed says so, also one that is new here
            if abs(intact_p[token_id] - rows[token_id]) > 1e-3:
                assert "→" in text, text
        assert int(intact_p.argmax()) in rows  # what it was before stays in sight
        looks = trace(lm, context)["blocks.5.attn.pattern"][0, -1, :-1]
        fetched = [context[looks.argmax()], pytest.approx(looks.max(), abs=1e-3)]
        assert part != "5,0" or cells(tab, "#story-name") == [fetched]
        set_moment(tab, 15)
        rows = cells(tab, ".machine-bars li")
        widths = dict(tab.eval_on_selector_all(".segments span", WIDTHS))
        assert [widths[i] for i, _ in rows] == pytest.approx([p for _, p in rows], abs=1e-5)
        assert tab.locator(f'.cell[data-part="{part}"][aria-pressed=true]').count() == 1
        tab.click("#parts-on")
        tab.wait_for_selector("#story-name", state="hidden")
        assert story(tab)[0] == before

    def test_the_squares_can_be_seen(self, tab, open_tab):
        """Their borders have a contrast of 3:1, in the light and in the dark."""
        for each in (tab, open_tab(color_scheme="dark")):
            open_below(each, "off")
            style = "all => all.map(e => getComputedStyle(e).{}Color).slice(0, 4)"
            heads = each.eval_on_selector_all("#parts thead th", style.format("borderBottom"))
            assert len(set(heads)) == 4  # what is on is filled with the color of its arcs
            assert each.eval_on_selector_all("#parts .cell", style.format("background")) == heads
            border, paper = each.evaluate(
                """() => [getComputedStyle(document.querySelector(".cell")).borderTopColor,
                    getComputedStyle(document.body).backgroundColor]"""
            )
            light, dark = sorted(map(luminance, (border, paper)), reverse=True)
            assert (light + 0.05) / (dark + 0.05) >= 3

    def test_an_arc_and_a_neuron_of_the_picture(self, open_tab, lm):
        """What is off is said, and undone, also with the panel shut."""
        tab = open_text(open_tab, lm)
        for kind in ("head", "neuron"):
            before = tab.inner_text("#story-name") if tab.is_visible("#story-name") else ""
            x, y = find_part(tab, kind)
            tab.mouse.click(x, y)
            tab.wait_for_function(
                "old => document.querySelector('#story-name').textContent !== old", arg=before
            )
            wait_for_end(tab)
            assert kind in tab.inner_text("#story-name")
            assert "Same random numbers, so only this" in tab.inner_text("#story-name")
            assert tab.inner_text(".machine-caption").startswith("The same number")
        neuron, layer = map(
            int, re.search(r"neuron (\d+) of block (\d)", tab.inner_text("#story-name")).groups()
        )
        head = re.search(r"head (\d) of block (\d)", tab.inner_text("#story-name"))
        hooks = [
            zero_head(int(head[2]), int(head[1])),
            scale(f"blocks.{layer}.mlp.act", 0, channels=neuron),
        ]
        options = {"seed": 1, "max_new_tokens": 4, "interventions": hooks}
        assert story(tab)[0] == generated(lm, **options).ids
        tab.click("#generate")  # writes on: one text, still without the part
        wait_for_end(tab)
        assert tab.inner_text("#story-name").startswith("Without head")
        tab.get_by_role("button", name="All parts on").click()
        tab.wait_for_selector("#story-name", state="hidden")
        assert "marked" not in tab.inner_text("#status")

    def test_another_model_has_all_parts_on(self, open_tab, bundled, tmp_path):
        """And nothing of the old model's text is left, nor an error."""
        save_byte_model(tmp_path / "bytes", n_layer=2, n_head=2, n_embd=16)
        models = ("--model", str(bundled), "--model", str(tmp_path / "bytes"))
        with running_server(tmp_path, *models) as server:
            tab = open_tab(url=server.url, reduced_motion="reduce")
            write(tab, PROMPT, max_tokens=1)
            switch(tab, "5,0")
            tab.select_option("#model", index=1)
            tab.wait_for_selector("#machine[data-mode=rest]:not([aria-busy])")
            assert tab.is_hidden("#story") and tab.is_hidden("#story-name")
            assert tab.locator(".cell[aria-pressed=true]").count() == 0
            assert tab.locator(".cell").count() == 6
            write(tab, max_tokens=2)
            assert len(story(tab)[0]) == 2

    def test_texts_stay_in_sight_and_the_table_in_its_place(self, open_tab, lm):
        """A second press at the same point switches the part on again."""
        tab = open_text(open_tab, lm, HANS, n=30)
        tab.click("#off-button")
        cell = tab.locator('.cell[data-part="2,2"]')
        at = """() => [document.querySelector("#generate").textContent === "Stop",
            document.querySelector('.cell[data-part="2,2"]').getBoundingClientRect().y]"""
        for width, height, motion in [(1280, 720, "no-preference"), (390, 844, "reduce")]:
            tab.emulate_media(reduced_motion=motion)
            tab.set_viewport_size({"width": width, "height": height})
            cell.scroll_into_view_if_needed()
            tab.wait_for_timeout(300)
            place = cell.bounding_box()
            x, y = place["x"] + 9, place["y"] + 9
            tab.mouse.click(x, y)
            assert tab.inner_text("#status").startswith("Off: head 2 of block 2")
            is_writing = True
            while is_writing:
                is_writing, y_now = tab.evaluate(at)
                assert y_now == pytest.approx(place["y"], abs=2)
                tab.wait_for_timeout(100)
            settle(tab)
            assert tab.inner_text("#intact-name") == "With all parts"
            assert tab.inner_text("#story-name").startswith("Without head 2 of block 2: it took")
            for selector in ("#intact", "#story", *([".machine-canvas"] if width > 400 else [])):
                assert in_sight(tab, selector), selector
            for text in ("#intact", "#story"):
                assert tab.eval_on_selector(text, "t => t.scrollHeight <= t.clientHeight + 1"), text
            tab.mouse.click(x, y)
            tab.wait_for_selector("#story-name", state="hidden")
            assert tab.locator(".cell[aria-pressed=true]").count() == 0

    def test_an_arc_that_is_pressed_in_the_guide_does_not_end_it(self, open_tab):
        """Its tip lies near, and says nothing of a press."""
        tab = open_tab(reduced_motion="reduce")
        set_inputs(tab, {"max_tokens": 1})
        tab.click("#generate")
        for moment in ("14.000", "1.000"):
            tab.wait_for_selector(f"#machine[data-moment='{moment}']")
            tab.click(".forth")
        x, y = find_part(tab, "head", "→")
        tab.mouse.move(x, y)
        tip = tab.locator(".machine-tip")
        box = tip.bounding_box()
        near = [
            abs(edge - at)
            for at, edges in ((x, "x width"), (y, "y height"))
            for edge in (box[edges[0]], box[edges[0]] + box[edges[2:]])
        ]
        assert min(near[:2]) < 20 and min(near[2:]) < 20
        assert "Press" not in tip.inner_text()
        tab.mouse.click(x, y)
        tab.wait_for_timeout(300)
        assert tab.get_attribute("#machine", "data-mode") == "guide"
        tab.click(".forth")
        tab.wait_for_selector("#machine[data-moment='3.000']")
        wait_for_end(tab)
        assert tab.is_hidden("#story-name")

    def test_a_press_on_an_arc_that_is_drawn_hits_its_head(self, open_tab, lm):
        """It is lit before, also if the pointer comes over other rows."""
        tab = open_text(open_tab, lm, HANS, n=1)
        box = tab.locator(".machine-canvas").bounding_box()
        points = tab.evaluate(ARC, [box["width"], box["height"]])
        for x, y in [*points, points[0]]:
            tab.mouse.move(box["x"] + 9, box["y"] + 9)
            before = tab.eval_on_selector(".machine-canvas", "canvas => canvas.toDataURL()")
            tab.mouse.move(box["x"] + x, box["y"] + y, steps=9)
            tip = "head 2 of block 5: “␣and” → “␣Gre”"
            assert tab.inner_text(".machine-tip").startswith(tip)
            assert before != tab.eval_on_selector(".machine-canvas", "canvas => canvas.toDataURL()")
        tab.mouse.down()
        tab.mouse.up()
        tab.wait_for_selector("#story-name:has-text('Without head 2 of block 5')")
        wait_for_end(tab)


def luminance(color):
    """The relative luminance of rgb(…), by WCAG."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def find_part(tab, kind, says="switch it off"):
    """A point of the picture where a part of a kind lies."""
    return tab.evaluate(
        """([kind, says]) => {
            const picture = document.querySelector(".machine-picture");
            const tip = document.querySelector(".machine-tip");
            const { x, y, width, height } =
                document.querySelector(".machine-canvas").getBoundingClientRect();
            for (let clientY = y + height - 8; clientY > y + height / 2; clientY -= 3)
                for (let clientX = x + width / 10; clientX < x + width / 2; clientX += 3) {
                    const at = { clientX, clientY, bubbles: true };
                    picture.dispatchEvent(new PointerEvent("pointermove", at));
                    const found = tip.textContent;
                    if (found.startsWith(kind) && found.includes(says)) return [clientX, clientY];
                }
            throw new Error(`no ${kind} in the picture`);
        }""",
        [kind, says],
    )
