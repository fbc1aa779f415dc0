"""The playground for everybody: keys, sizes, dark pages, paper; and nothing from elsewhere."""

import re

import pytest
from helpers.axe import axe_findings
from helpers.explain_pages import MARKUP, SIGNS
from helpers.playground import (
    PROMPT,
    in_sight,
    look_at,
    open_below,
    open_text,
    set_inputs,
    settle,
    story,
    switch,
    wait_for_end,
    write,
)
from helpers.server import running_server

httpx = pytest.importorskip("httpx")


class TestStandards:
    @pytest.fixture(scope="class")
    def tab(self, open_shared_tab):
        """A tab in which nothing is written."""
        return open_shared_tab(reduced_motion="reduce")

    def test_escape_closes_what_has_opened_below(self, tab):
        for name in ("off", "teach", "more"):
            tab.click(f"#{name}-button")
            assert tab.is_visible(f"#{name}")
            tab.keyboard.press("Escape")
            assert not tab.is_visible(f"#{name}")
            assert tab.evaluate("document.activeElement.id") == f"{name}-button"

    def test_by_keyboard_only(self, open_tab):
        tab = open_tab(reduced_motion="reduce")
        set_inputs(tab, {"max_tokens": 3})

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
        for stop in range(8):
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
        assert tab.evaluate("document.activeElement.matches('.cell')")
        tab.keyboard.press("ArrowDown")
        tab.keyboard.press("Enter")
        tab.wait_for_selector("#story-name:not([hidden])")
        wait_for_end(tab)

    @pytest.fixture(scope="class")
    def full_tab(self, open_shared_tab):
        """A tab in which every part shows something, for a prompt with a long word."""
        tab = open_shared_tab(reduced_motion="reduce")
        write(tab, f"{PROMPT} {'ing' * 70}", max_tokens=6)
        tab.locator(".machine-bars li:not(.own) button").first.click()
        wait_for_end(tab)
        switch(tab, "5,1")
        tab.evaluate("window.glows = true")
        tab.locator("#story .piece").nth(5).click()
        tab.wait_for_selector("#story.glowing")
        settle(tab)
        return tab

    def test_axe_finds_nothing_on_the_first_screen_and_a_full_one(self, tab, full_tab):
        for each in (tab, full_tab):
            assert axe_findings(each, with_minor=False) == []

    def test_any_width(self, full_tab):
        for width in (320, 360, 768, 1023, 1280, 3840):
            full_tab.set_viewport_size({"width": width, "height": 900})
            assert full_tab.evaluate("document.documentElement.scrollWidth") <= width, width

    def test_at_200_percent(self, open_tab, lm):
        """All, or only the letters, twice as large: all can be used without scrolling sideways."""
        tab = open_text(open_tab, lm, n=12, width=640, height=360, device_scale_factor=2)
        open_below(tab)
        for width, height, letters in [(640, 360, 100), (1280, 720, 200)]:
            tab.set_viewport_size({"width": width, "height": height})
            tab.evaluate(f"document.documentElement.style.fontSize = '{letters}%'")
            look_at(tab, 19)
            assert tab.evaluate("document.documentElement.scrollWidth") <= width
            for heading in tab.locator("h2:visible").all():
                heading.scroll_into_view_if_needed()
            tab.locator("#story").scroll_into_view_if_needed()
            assert in_sight(tab, "#story") and in_sight(tab, ".forth", whole=True)
            rows = tab.eval_on_selector_all(
                ".machine-bars li", "all => all.map(li => [li.scrollHeight, li.clientHeight])"
            )
            assert all(content <= room + 1 for content, room in rows)

    def test_on_a_phone(self, open_tab):
        tab = open_tab(
            width=390, height=844, has_touch=True, is_mobile=True, reduced_motion="reduce"
        )
        more = "document.querySelector('#more-button').getBoundingClientRect().bottom"
        assert tab.evaluate(more) <= 844
        set_inputs(tab, {"max_tokens": 3})
        tab.tap("#generate")
        tab.wait_for_selector("#machine[data-mode=guide]")
        assert tab.evaluate(more) <= 844
        wait_for_end(tab)
        assert tab.evaluate(more) <= 844
        cut = tab.eval_on_selector_all(
            ".machine-lines > *, .machine-blocks button",
            "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent)",
        )
        assert cut == []
        tab.tap('#story [data-index="11"]')
        settle(tab)
        for part in ("#story", ".machine-canvas", ".machine-caption"):
            assert in_sight(tab, part), part
        assert tab.evaluate("document.documentElement.scrollWidth") <= 390

    def test_the_parts_fit_on_320_pixels(self, tab):
        tab.set_viewport_size({"width": 320, "height": 640})
        open_below(tab, "off")
        tab.wait_for_selector(".cell")
        edges = tab.eval_on_selector_all(
            ".cell, .parts th", "all => all.map(e => e.getBoundingClientRect().right)"
        )
        assert max(edges) <= 320
        tab.keyboard.press("Escape")  # as it was, for the other tests
        tab.set_viewport_size({"width": 1280, "height": 900})

    def test_nothing_moves(self, full_tab):
        assert full_tab.evaluate("document.getAnimations().length") == 0

    def test_a_hostile_prompt_does_nothing(self, open_tab):
        tab = open_tab(width=360, reduced_motion="reduce")
        for prompt in (MARKUP + SIGNS, "<|endoftext|>"):
            write(tab, prompt, max_tokens=1)
            assert tab.evaluate("[window.hacked, typeof hacked]") == [None, "undefined"]
            assert tab.evaluate("document.querySelectorAll('bdi *, button img').length") == 0
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360
        assert "⟨" not in tab.inner_text("main")  # the end of a text has one name

    def test_content_security_policy(self, client):
        response = client.get("/")
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert not re.search(r"unsafe-eval|script-src[^;]*unsafe|https?:|\*", policy)
        assert not re.search(r"(src|href)=\"(https?:)?//", response.text)
        for name in set(re.findall(r'"(playground/\w+\.\w+)"', response.text)):
            assert client.get(f"/{name}").status_code == 200
        for path in ("/playground/../app.py", "/playground/%2e%2e/app.py", "/playground/x.js"):
            assert client.get(path).status_code == 404

    def test_a_key_and_a_lost_connection(self, open_tab, tmp_path):
        """The page asks for the key. A loss of the connection is told, and the text is kept."""
        arguments = ("--model", "bundled", "--api-key", "secret")
        with running_server(tmp_path, *arguments) as guarded:
            assert httpx.post(f"{guarded.url}/api/inspect", json={"prompt": "a"}).status_code == 401
            assert httpx.get(f"{guarded.url}/api/model").status_code == 401
            expected = ["401", "ERR_", "status of 5"]
            options = {"url": guarded.url, "key": "secret", "expected": expected}
            tab = open_tab(**options, reduced_motion="reduce")
            assert not tab.locator("#status.wrong").count()  # the error before the key is gone
            set_inputs(tab, {"max_tokens": 200})
            tab.click("#generate")
            tab.click(".skip-stops")
            tab.wait_for_selector("#story .piece:not(.given):not(.next) >> nth=5")
            guarded.process.kill()
            tab.wait_for_selector("#edit:not([hidden])")
            assert "is lost" in tab.inner_text("#status.wrong")
            assert "kept" in tab.inner_text("#status")
            n_kept = len(story(tab)[0])
            port = guarded.url.rpartition(":")[2]
        assert 5 < n_kept < 200
        with running_server(tmp_path, *arguments, "--port", port):
            set_inputs(tab, {"max_tokens": 2})
            tab.click("#generate")
            tab.wait_for_function(
                "n => document.querySelectorAll('#story .piece').length > n",
                arg=n_kept + 2 + len(PROMPT.split()),
            )
            wait_for_end(tab)
            assert not tab.locator("#status.wrong").count()
            assert len(story(tab)[0]) == n_kept + 2
