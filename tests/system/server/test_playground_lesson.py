"""The lesson of docs/guide/playground.md."""

import os
from pathlib import Path

import pytest
from helpers.playground import look_at, set_inputs, switch, wait_for_end, write


@pytest.mark.slow
def test_the_lesson_of_the_guide(open_tab, tmp_path):
    """Follow docs/guide/playground.md; GPT2NP_SCREENSHOTS names a folder for its pictures."""
    folder = Path(os.environ.get("GPT2NP_SCREENSHOTS", tmp_path))
    tab = open_tab(height=720, reduced_motion="reduce")
    tab.click("#generate")
    tab.wait_for_selector("#machine[data-mode=guide]")
    tab.screenshot(path=folder / "guide.png")
    wait_for_end(tab)
    tab.mouse.move(0, 0)
    look_at(tab, 16)
    tab.screenshot(path=folder / "write.png")
    tab.locator(".machine-bars li:not(.own) button").nth(2).click()
    wait_for_end(tab)
    set_inputs(tab, {"temperature": 0})
    write(tab)
    set_inputs(tab, {"temperature": 0.8})
    tab.select_option("#examples", index=2)
    write(tab)
    switch(tab, "5,2")
    tab.mouse.move(0, 0)
    tab.screenshot(path=folder / "off.png")
    assert (folder / "write.png").stat().st_size > 20_000
