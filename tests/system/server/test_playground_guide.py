"""The first screen of the playground, the guide, and the text that it writes."""

import numpy as np
import pytest
from helpers.playground import (
    PROMPT,
    generated,
    in_sight,
    open_below,
    open_text,
    set_inputs,
    set_moment,
    settle,
    story,
    wait_for_end,
    write,
)

from gpt2np.interp import trace, zero_head

VISIBLE = """selector => [...document.querySelectorAll(selector)].filter(each => {
    const { width, bottom, top, left } = each.getBoundingClientRect();
    return each.checkVisibility({ visibilityProperty: true })
        && width > 2 && top < innerHeight && bottom > 0 && left < innerWidth && left > -width;
})"""
# The most that blue and red differ in the left half of the picture.
STRONGEST = """canvas => {
    const { width, height } = canvas;
    const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const { data } = copy.getImageData(0, 0, width / 2, height);
    let most = 0;
    for (let i = 0; i < data.length; i += 4) most = Math.max(most, Math.abs(data[i] - data[i + 2]));
    return most;
}"""
CONTROLS = "button, input, select, textarea, summary, a, [role=listbox], [role=button]"


def point_and_look_elsewhere(tab):
    """Point at the picture and at a token, and open and close the token; the sentence stays."""
    before = tab.inner_text(".machine-caption"), tab.inner_text(".machine-bars")
    box = tab.locator(".machine-canvas").bounding_box()
    tab.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
    tab.hover('.machine-lines [data-line="2"]')
    assert (tab.inner_text(".machine-caption"), tab.inner_text(".machine-bars")) == before
    tab.click('.machine-lines [data-line="2"]')
    tab.wait_for_selector(".machine-picture[data-level=token]")
    tab.keyboard.press("Escape")
    tab.wait_for_selector(".machine-picture[data-level=model]")
    assert (tab.inner_text(".machine-caption"), tab.inner_text(".machine-bars")) == before


class TestGuide:
    """The first screen, and the loop: a token is read, predicted, drawn and written."""

    def test_the_first_screen_has_few_controls_and_words(self, open_tab):
        tab = open_tab(height=720)
        assert len(tab.evaluate(f"({VISIBLE})('{CONTROLS}')")) <= 15
        assert len(tab.inner_text("main").split()) <= 60
        assert tab.evaluate("document.scrollingElement.scrollHeight") == 720

    def test_the_first_token_stops_at_each_phase(self, open_tab, lm):
        """After the result. The sentences name these words, and stay while one looks elsewhere."""
        tab = open_tab(height=720, reduced_motion="reduce")
        set_inputs(tab, {"max_tokens": 3})
        tab.fill("#prompt", "The wolf and the lamb")
        tab.wait_for_selector("#machine:not([aria-busy]) [data-line='4']")
        assert tab.locator(".machine-bars li").count() == 0
        assert tab.locator("button.primary:visible").all_inner_texts() == ["Write ▷"]
        tab.click("#generate")
        tab.wait_for_selector("#machine[data-mode=guide]")
        assert tab.locator("button.primary:visible").all_inner_texts() == ["Next ▸"]
        said, strongest, likeliest = [], [], None
        for moment in (14, 1, 2, 3, 11, 13, 14.5, 15):
            tab.wait_for_selector(f"#machine[data-moment='{moment:.3f}']")
            said.append(tab.inner_text(".machine-caption").replace("\xa0", " "))
            rows = tab.locator(".machine-bars li").all_inner_texts()
            assert [bool(rows), tab.is_visible(".draw")] == [moment > 2, moment in (14.5, 15)]
            assert moment != 13 or rows[0].split("\n") == likeliest
            likeliest = rows[0].split("\n") if moment == 14 else likeliest
            drawn = {14: 1, 1: 3, 2: 3, 3: 2}.get(moment, 0)  # what is new
            assert tab.locator(".machine-key li:visible").count() == drawn
            n_written = tab.locator("#story .piece:not(.given):not(.next)").count()
            assert n_written == (1 if moment == 15 else 0)
            assert moment == 15 or tab.locator("#story .piece").last.inner_text() == "?"
            assert said[0].startswith(f"{likeliest[0]} is likeliest") or moment != 14
            strongest.append(tab.eval_on_selector(".machine-canvas", STRONGEST))
            if moment == 13:
                point_and_look_elsewhere(tab)
            tab.click(".forth")
        tab.wait_for_selector("#machine[data-moment='0.000'] [data-line='5']")
        said.append(tab.inner_text(".machine-caption"))
        assert strongest[6] < 0.6 * strongest[5]  # pale, so that the last row stands out
        assert "of the ruler" in said[6] and " hits " in said[7]
        assert "joins the rows" in said[-1]  # and waits, before it is read in its turn
        tab.wait_for_timeout(300)
        assert tab.locator("#story .piece:not(.given):not(.next)").count() == 1
        tab.click(".forth")
        wait_for_end(tab)
        assert [sentence for sentence in said if len(sentence.split()) > 12] == []
        assert len(set(said)) == len(said)
        changes = ([], zero_head(5, 0))
        traced, off = (trace(lm, "The wolf and the lamb", interventions=each) for each in changes)
        looks = traced["blocks.5.attn.pattern"][:, -1, :-1].max(0)
        ids = [traced.ids[looks.argmax()], *(each["logits"][-1].argmax() for each in (traced, off))]
        last, to, off = (lm.tokenizer.decode([i]).replace(" ", "␣") for i in ids)
        assert said[5] == f"A head looks at {last}: s becomes {to}." and to != off
        assert story(tab)[0] == generated(lm, "The wolf and the lamb", seed=1, max_new_tokens=3).ids

    def test_play_shows_a_pass_once_and_pause_stops_it(self, open_tab, lm):
        tab = open_text(open_tab, lm, n=2, speed=3)
        tab.emulate_media(reduced_motion="no-preference")
        tab.evaluate(
            """() => {
                window.moments = [];
                const { dataset } = document.querySelector("#machine");
                const ask = requestAnimationFrame;
                const note = () => { moments.push(+dataset.moment); ask(note); };
                note();
                window.times = [];
                window.requestAnimationFrame = (draw) => ask((now) => {
                    const start = performance.now();
                    draw(now);
                    times.push(performance.now() - start);
                });
            }"""
        )
        tab.click(".transport .play")
        tab.wait_for_function("document.querySelector('#machine').dataset.moment % 15")
        tab.click(".transport .play:text('Pause')")
        moment = tab.get_attribute("#machine", "data-moment")
        tab.wait_for_timeout(200)
        assert tab.get_attribute("#machine", "data-moment") == moment and float(moment) < 15
        tab.click(".transport .play:text('Play')")
        set_moment(tab, 9)  # passes over blocks that look alike, and pauses
        tab.click(".transport .play")
        tab.wait_for_selector(".transport .play:text('Play')")
        tab.wait_for_timeout(400)
        moments = tab.evaluate("moments")
        start = moments.index(min(moments))
        assert moments[start:] == sorted(moments[start:]) and moments[-1] == 15
        assert len(story(tab)[0]) == 2  # and writes nothing
        times = tab.evaluate("times")
        assert len(times) > 20 and np.median(times) < 3 * 16

    def test_the_second_token_takes_two_seconds(self, open_tab):
        tab = open_tab(reduced_motion="reduce", speed=2)
        tab.evaluate(
            """() => {
                window.times = [];
                new MutationObserver(() => {
                    const n = document.querySelectorAll("#story .piece:not(.given)").length - 1;
                    times[n] ??= performance.now();
                }).observe(document.querySelector("#story"), { childList: true });
            }"""
        )
        set_inputs(tab, {"max_tokens": 6})
        tab.click("#generate")
        tab.wait_for_selector("#machine[data-mode=guide]")
        for _ in range(8):  # stops of the first token
            tab.click(".forth")
        tab.wait_for_selector("#machine[data-moment='0.000']")
        tab.emulate_media(reduced_motion="no-preference")
        tab.evaluate(
            """() => {
                times[1] = performance.now();
                document.querySelector(".skip-stops").click();
            }"""
        )
        wait_for_end(tab)
        times = np.diff(tab.evaluate("times")[1:7])
        assert times[0] > 1700 and times[-1] < times[0] / 2

    def test_the_token_that_is_read_is_in_sight(self, open_tab, lm):
        tab = open_text(open_tab, lm, 8 * PROMPT, n=2, height=720)
        for selector in ("#story [aria-pressed=true]", ".machine-lines [aria-selected=true]"):
            assert in_sight(tab, selector, whole=True), selector


class TestWrite:
    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        return open_shared_tab(reduced_motion="reduce")

    def test_tokens_appear_while_typing(self, open_tab, lm):
        tab = open_tab(expected=["400"])
        for text in ("The", "The König’s fox 🦊"):
            tab.fill("#prompt", text)
            n = len(lm.encode_prompt(text))
            tab.wait_for_function(
                "n => document.querySelectorAll('.machine-lines [data-line]').length === n", arg=n
            )
        tab.fill("#prompt", "")
        tab.wait_for_selector("#status:has-text('<|endoftext|>')")
        tab.fill("#prompt", "fox " * 600)
        tab.wait_for_selector("#status.wrong")
        assert tab.is_hidden("#machine") and tab.is_hidden("#story")

    def test_the_text_is_that_of_generate(self, tab, lm):
        write(tab, "The wolf", seed=1, max_tokens=8)
        expected = generated(lm, "The wolf", seed=1, max_new_tokens=8)
        ids, probabilities = story(tab)
        assert ids == expected.ids
        logprobs = [token.logprob for token in expected.logprobs]
        np.testing.assert_allclose(probabilities, np.exp(logprobs), atol=1e-6)
        assert "8 tokens written" in tab.inner_text("#status")

    def test_write_on_another_try_and_a_new_text(self, tab, lm):
        """Pieces that stay are not drawn again; another prompt hides the text until it is back."""
        write(tab, PROMPT, seed=3, max_tokens=3)
        first = story(tab)[0]
        tab.eval_on_selector_all("#story .piece:not(.next)", "all => all.map(p => p.isOld = true)")
        write(tab)
        pieces = tab.eval_on_selector_all("#story .piece", "all => all.map(p => Boolean(p.isOld))")
        assert pieces == [True] * (len(pieces) - 4) + [False] * 4
        longer = story(tab)[0]
        ids = [*lm.encode_prompt(PROMPT), *first]
        assert longer[:3] == first
        assert longer[3:] == generated(lm, ids, seed=6, max_new_tokens=3).ids
        tab.click("#retry")
        wait_for_end(tab)
        assert tab.input_value("#seed") == "4"
        assert story(tab)[0][:3] == first and story(tab)[0] != longer
        tab.click("#edit")
        tab.fill("#prompt", "The king")
        assert tab.is_hidden("#story") and tab.inner_text("#generate").startswith("Write ")
        tab.fill("#prompt", PROMPT)
        settle(tab)
        assert tab.is_visible("#story") and len(story(tab)[0]) == 6
        tab.click("#edit")
        tab.click("#generate")
        wait_for_end(tab)
        assert story(tab)[0] == generated(lm, seed=4, max_new_tokens=3).ids

    def test_numbers_out_of_range_and_tries_at_temperature_0(self, tab):
        open_below(tab)
        tab.fill("#max_tokens", "5000")
        tab.locator("#max_tokens").blur()
        assert tab.input_value("#max_tokens") == "1000"
        tab.fill("#seed", "1.5")
        tab.locator("#seed").blur()
        assert tab.input_value("#seed") == "2"
        write(tab, "The king", max_tokens=1, temperature=0)
        tab.click("#retry")
        assert "same text" in tab.inner_text("#status")
        tab.click("#river-run")
        tab.wait_for_selector("#status:has-text('At temperature 0')")
        set_inputs(tab, {"temperature": 0.8})  # as it was, for the other tests

    def test_a_text_that_is_cut_above_shows_it(self, tab):
        """A short text is whole; of a longer one the beginning fades, and no line is cut in two."""
        tab.set_viewport_size({"width": 390, "height": 844})
        write(tab, PROMPT, max_tokens=2)
        assert not tab.locator("#story.cut").count()
        write(tab, 6 * PROMPT)
        assert tab.locator("#story.cut").count() == 1
        lines = """s => [s.scrollTop, s.clientHeight].map(
            x => x / parseFloat(getComputedStyle(s).lineHeight))"""
        for count in tab.eval_on_selector("#story", lines):
            assert count == pytest.approx(round(count), abs=0.05)
        tab.eval_on_selector("#story", "s => { s.scrollTop = 0; }")
        tab.wait_for_selector("#story:not(.cut)")
        tab.set_viewport_size({"width": 1280, "height": 900})

    def test_stop_while_it_explains_and_while_it_writes(self, open_tab):
        """By the button or by a key: in the guide nothing is written; later a part is kept."""
        tab = open_tab()
        set_inputs(tab, {"max_tokens": 200, "temperature": 1})

        def stop(key):
            tab.keyboard.press(key) if key else tab.click("#generate:text('Stop')")
            tab.wait_for_selector("#edit:not([hidden])")
            assert "Stopped." in tab.inner_text("#status")
            return len(story(tab)[0])

        for key in (None, "Escape"):
            tab.click("#generate")
            tab.wait_for_selector("#machine[data-mode=guide]")
            assert stop(key) == 0
        tab.emulate_media(reduced_motion="reduce")
        for key in ("Enter", "Escape"):
            before = len(story(tab)[0])
            tab.click("#generate")
            if not before:
                tab.click(".skip-stops")
                tab.wait_for_selector("#machine[data-mode=writes]")
                assert tab.is_hidden(".transport .play") and tab.is_hidden(".forth")
                assert "faster" in tab.inner_text(".machine-caption")
                assert tab.evaluate("document.activeElement.id") == "generate"
            tab.locator("#story .piece:not(.given):not(.next)").nth(before).wait_for()
            assert 0 < stop(key) - before < 200
