"""The playground's state in its address."""

import json
import re
from urllib.parse import quote

import numpy as np
import pytest
from helpers.playground import PROMPT, open_below, settle, story, switch, write

expect = pytest.importorskip("playwright.sync_api").expect


class TestShare:
    def test_the_address_holds_everything(self, open_tab, lm):
        tab = open_tab(reduced_motion="reduce")
        write(tab, f"{PROMPT} 🦊", seed=7, max_tokens=3, temperature=0.9)
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
        write(tab, "the " * 509, max_tokens=100)
        assert "context is full" in tab.inner_text("#status")
        tab.wait_for_function("() => location.hash.startsWith('#s=')")
        tab.wait_for_timeout(100)
        again = open_tab(tab.evaluate("location.hash"), reduced_motion="reduce")
        settle(again)
        assert story(again)[0] == story(tab)[0] and "Opened" in again.inner_text("#status")
        np.testing.assert_allclose(story(again)[1], story(tab)[1], atol=1e-5)

    @pytest.mark.slow
    @pytest.mark.parametrize("fragment", ["#s=xyz", "#s=", "#s={}", "#<script>"])
    def test_an_unreadable_address_is_a_new_page(self, open_tab, fragment):
        assert open_tab(fragment).inner_text("#status") == ""

    def test_a_damaged_address_says_so(self, open_tab):
        content = {"prompt": "a", "ids": [1], "path": 5, "model": "bundled"}
        tab = open_tab(f"#s={quote(json.dumps(content))}")
        assert "damaged" in tab.inner_text("#status")
