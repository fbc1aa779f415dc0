"""Measure how soon the playground answers, in headless Chromium on this machine.

    python benchmarks/playground.py [--model bundled] [--rounds 9]

Times in ms, median and slowest of the rounds, each until the frame that shows the result:

- keystroke: from a key at the end of a prompt of 500 tokens to its tokens on the screen.
- token: from a click on "One token" to its token on the screen, less the time of `lm.generate`.
- inspect: from a click on the last of 200 tokens to all panels about it; each round other tokens.
- block: from a click on a block to its picture, which grows from there, and to its exact numbers.
- frame: scripting per animation frame while a pass is played.
- paint: the first paint of a new page, and the Machine's first picture, on a window and a phone.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, ViewportSize, sync_playwright

from gpt2np import LanguageModel

WORDS = "the king saw a fox and an old ship on the river while nobody slept in that small house "

# Starts to wait: from the next `event` to the frame with another number of matches of `selector`.
# An observer costs nothing while nothing changes; asking in each frame would slow the server down.
WATCH = """([event, selector]) => {
    const count = () => document.querySelectorAll(selector).length, old = count();
    window.elapsed = new Promise(resolve => {
        addEventListener(event, ({ timeStamp }) => {
            new MutationObserver((_, observer) => {
                if (count() === old) return;
                observer.disconnect();
                const drawn = () => resolve(performance.now() - timeStamp);
                requestAnimationFrame(() => setTimeout(drawn)); // after the frame
            }).observe(document.body, { subtree: true, childList: true, attributes: true });
        }, { once: true, capture: true });
    });
}"""
WATCH_BLOCK = """() => {
    const picture = document.querySelector(".machine-picture");
    const shown = () => picture.dataset.level === "block";
    const exact = () => shown() && !picture.hasAttribute("aria-busy");
    const after = (isThere, begin) => new Promise(resolve => {
        const look = () => {
            if (!isThere()) return requestAnimationFrame(look);
            setTimeout(() => resolve(performance.now() - begin));  // after the frame
        };
        requestAnimationFrame(look);
    });
    window.elapsed = new Promise(resolve => addEventListener("click", ({ timeStamp }) =>
        resolve(Promise.all([after(shown, timeStamp), after(exact, timeStamp)])),
        { once: true, capture: true }));
}"""
SETTLED = (
    "body:has(#inside-content:not([aria-busy]) #parts-panel)"
    ":has(#choices-content:not([aria-busy]) #kept:not(:empty))"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="bundled", help="a model of `gpt2np serve`")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    lm = LanguageModel.load(args.model)
    ids = lm.encode_prompt(WORDS * 60)
    with serving(args.model) as url, sync_playwright() as playwright:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        page.fill("#prompt", lm.tokenizer.decode(ids[:500]))
        page.wait_for_selector("#prompt-tokens button >> nth=490", state="attached")
        keys = ("1?a" * args.rounds)[: args.rounds]  # after a letter; each begins a new token
        report("keystroke", [keystroke(page, key) for key in keys])
        prompt = lm.tokenizer.decode(ids[:200])
        page.fill("#prompt", prompt)
        page.click("#step")
        page.wait_for_selector(SETTLED, timeout=60_000)
        steps = [token(page, lm) for _ in range(args.rounds)]
        report("token", [shown - step for shown, step in steps])
        report("  one step", [step for _, step in steps])
        report("inspect", [inspect(page, 199 - n) for n in range(args.rounds)])
        blocks = [block(page, n % lm.model.config.n_layer) for n in range(args.rounds)]
        report("block", [picture for picture, _ in blocks])
        report("  exact", [exact for _, exact in blocks])
        report("frame", frames(page))
        for width, height in ((1280, 720), (390, 844)):
            size = ViewportSize(width=width, height=height)
            paints = [first_paint(browser.new_page(viewport=size), url) for _ in range(args.rounds)]
            report(f"paint {width}", [text for text, _ in paints])
            report("  picture", [machine for _, machine in paints])
        browser.close()


@contextmanager
def serving(model: str) -> Iterator[str]:
    """Run `gpt2np serve` for the `with` block; return its URL."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "gpt2np", "serve", "--port", "0", "--model", model]
        with log.open("w") as stderr, subprocess.Popen(command, stderr=stderr) as server:
            try:
                while not (found := re.search(r" at (http://\S+)\n", log.read_text())):
                    if server.poll() is not None:
                        sys.exit(log.read_text())
                    time.sleep(0.1)
                yield found[1]
            finally:
                server.terminate()


def keystroke(page: Page, key: str) -> float:
    """Press a key at the end of the prompt."""
    page.press("#prompt", "Control+End")
    page.wait_for_timeout(300)
    return elapsed(page, "keydown", "#prompt-tokens button", lambda: page.keyboard.press(key))


def token(page: Page, lm: LanguageModel) -> tuple[float, float]:
    """Return the time of "One token" and that of the same step in the library."""
    ids = page.eval_on_selector_all(
        "#story .piece:not(.next)", "all => all.map(p => +p.dataset.id)"
    )
    start = time.perf_counter()
    lm.generate(ids, max_new_tokens=1, logprobs=10, temperature=0.8, top_k=40)
    step = 1000 * (time.perf_counter() - start)
    shown = elapsed(page, "click", "#story .piece", lambda: page.click("#step"))
    page.wait_for_selector(SETTLED, timeout=60_000)
    return shown, step


def inspect(page: Page, index: int) -> float:
    """Click the token at `index` of the text."""
    page.wait_for_timeout(300)
    chosen = page.locator(f'#story [data-index="{index}"]')
    page.evaluate("document.querySelector('#parts-panel').remove()")  # comes back with the answer
    return elapsed(page, "click", SETTLED, chosen.click)


def block(page: Page, layer: int) -> tuple[float, float]:
    """Return the times from a click on a block to its picture and to its exact numbers."""
    page.evaluate("document.querySelector('.transport .forth').click()")  # leaves the last block
    page.wait_for_timeout(900)
    page.evaluate(WATCH_BLOCK)
    page.click(f'.machine-blocks [data-layer="{layer}"]')
    picture, exact = page.evaluate("window.elapsed")
    return float(picture), float(exact)


def frames(page: Page) -> list[float]:
    """Play a pass; return the time of each frame's drawing."""
    page.click(".transport .forth")
    page.evaluate("document.getElementById('machine').frames = []")
    page.click(".transport .play")
    page.wait_for_timeout(5000)
    page.click(".transport .play")
    times: list[float] = page.evaluate("document.getElementById('machine').frames")
    return times


def first_paint(page: Page, url: str) -> tuple[float, float]:
    """Open the playground; return the times of the first paint and of the Machine's picture."""
    page.goto(url)
    page.wait_for_selector("#machine[data-ready]", timeout=60_000)
    machine = page.evaluate(
        """new Promise(done =>
            requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"""
    )
    text = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    page.close()
    return float(text), float(machine)


def elapsed(page: Page, event: str, selector: str, act: Callable[[], object]) -> float:
    """Return the ms from the event that `act` causes until the number of matches changes."""
    page.evaluate(WATCH, [event, selector])
    act()
    return float(page.evaluate("window.elapsed"))


def report(name: str, times: list[float]) -> None:
    """Print a row."""
    print(f"{name:12}{median(times):8.1f}{max(times):8.1f}", flush=True)


if __name__ == "__main__":
    main()
