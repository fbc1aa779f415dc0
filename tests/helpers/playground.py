"""The playground in a browser: opening it, writing, and what it shows."""

import json
from urllib.parse import quote

PROMPT = "Once upon a time there was a little fox"

# Most tests only wait for what the page writes and shows: let its time pass `speed` times as fast,
# and the server never answer which tokens should glow, for which it computes half a second.
FASTER = """((speed, glows) => {
    const { fetch, setTimeout, requestAnimationFrame } = window;
    const now = performance.now.bind(performance);
    window.setTimeout = (call, delay) => setTimeout(call, delay / speed);
    window.requestAnimationFrame = (draw) => requestAnimationFrame((time) => draw(speed * time));
    performance.now = () => speed * now();
    window.glows = glows;
    window.fetch = (path, options) =>
        path === "api/saliency" && !window.glows ? new Promise(() => {}) : fetch(path, options);
})"""


def open_tabs(browser, server):
    contexts, wrong = [], []

    def opened(fragment="", url=server.url, key=None, expected=(), before=None, **options):
        speed, glows = options.pop("speed", 10), options.pop("glows", False)
        size = {"width": options.pop("width", 1280), "height": options.pop("height", 900)}
        context = browser.new_context(viewport=size, **options)
        contexts.append(context)
        context.add_init_script(f"{FASTER}({speed}, {int(glows)})")

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
    assert not wrong, wrong


def open_text(open_tab, lm, prompt=PROMPT, n=4, *, index=None, seed=1, **options):
    """Open a link to a text, which is faster than writing it, at its last token or at `index`."""
    ids = lm.encode_prompt(prompt)
    path = generated(lm, prompt, seed=seed, max_new_tokens=n).ids
    pinned = len(ids) + n - 1 if index is None else index
    text = {"model": "bundled", "prompt": prompt, "text": prompt, "ids": ids, "path": path}
    content = {**text, "pinned": pinned, "settings": {"max_tokens": n}}
    tab = open_tab(f"#s={quote(json.dumps(content))}", reduced_motion="reduce", **options)
    settle(tab)
    return tab


def write(tab, prompt=None, **settings):
    """Set the prompt and the settings, and let the model write without the guide's stops."""
    if prompt is not None:
        if tab.is_visible("#edit"):
            tab.click("#edit")
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
    """Wait until a text is written; the guide does not stop."""
    tab.wait_for_function(
        """() => {
            if (document.querySelector("#machine").dataset.mode === "guide")
                document.querySelector(".skip-stops").click();
            return !document.querySelector("#edit").hidden;
        }"""
    )
    settle(tab)


def settle(tab):
    """Wait until the picture shows the selected token's pass."""
    tab.wait_for_timeout(30)
    tab.wait_for_selector("#machine:not([aria-busy])")


def look_at(tab, index):
    tab.click(f'#story [data-index="{index}"]')
    settle(tab)


def open_below(tab, name="more"):
    if tab.is_hidden(f"#{name}"):
        tab.click(f"#{name}-button")


def switch(tab, part):
    """Press a part of the model, and wait for the second text."""
    open_below(tab, "off")
    tab.click(f'.cell[data-part="{part}"]')
    tab.wait_for_selector("#story-name:not([hidden])", state="attached")
    wait_for_end(tab)


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


def set_moment(tab, moment):
    tab.eval_on_selector(
        ".moment",
        "(range, moment) => { range.value = moment; range.dispatchEvent(new Event('input')); }",
        float(moment),
    )


def leave(tab):
    """Go from a part of the picture back to the model."""
    if tab.locator(".machine-crumbs li button").count():
        tab.locator(".machine-crumbs li button").first.click()
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=model]")


def in_sight(tab, selector, whole=False):
    """Whether an element, or all of it, is soon in the window and nothing covers its top."""
    script = """(element, whole) => {
        const [{ left, top, bottom, width }] = [...element.getClientRects()].slice(-1);
        const at = document.elementFromPoint(left + width / 2, top + 3);
        const isThere = at && (element.contains(at) || at.contains(element));
        return isThere && top > -1 && (whole ? bottom <= innerHeight : top < innerHeight);
    }"""
    for _ in range(30):
        if tab.eval_on_selector(selector, script, whole):
            return True
        tab.wait_for_timeout(100)  # the page may still scroll or lay itself out
    return False
