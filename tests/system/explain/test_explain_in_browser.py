"""The page in headless Chromium, loaded from file:// without a network."""

import re
import shutil

import numpy as np
import pytest
from helpers.axe import axe_findings
from helpers.explain_numbers import Expected
from helpers.explain_pages import MARKUP, PROMPT, SIGNS, gpt2_small
from helpers.references import save_reference

from gpt2np import GenerationOptions, load
from gpt2np.explain import explain
from gpt2np.explain.details import described_layers
from gpt2np.generation.logits_processors import apply_temperature
from gpt2np.generation.sampling import next_probabilities
from gpt2np.interp import logit_lens
from gpt2np.interp.weights import nearest_tokens
from gpt2np.kernels.blas import small_kernels
from gpt2np.model.ops import softmax

A4 = 703  # CSS pixels between the margins
SETTINGS = [  # temperature, top-k, top-p, min-p
    (1, 0, 1, 0),
    (0, 0, 1, 0),
    (0.7, 0, 1, 0),
    (2, 0, 1, 0),
    (0.05, 0, 1, 0),
    (1, 1, 1, 0),
    (1, 40, 1, 0),
    (1, 0, 0.9, 0),
    (1, 0, 0.01, 0),
    (0.8, 40, 0.95, 0),
    (1.3, 100, 0.5, 0),
    (1, 0, 1, 0.1),
    (1.5, 0, 1, 0.05),
    (0.9, 50, 0.97, 0.02),
]


@pytest.fixture(scope="module")
def page(bundled):
    return explain(load(bundled), PROMPT)


@pytest.fixture
def open_page(browser, tmp_path):
    """open_page(page, …): open the page in a new tab; fails on any error, dialog or request."""
    contexts, wrong = [], []

    def opened(page, width=1280, **options):
        file = tmp_path / "page.html"
        file.write_text(page.html, encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=True, **options
        )
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: wrong.append(message.text))
        tab.on("pageerror", lambda error: wrong.append(str(error)))
        tab.on("dialog", lambda dialog: wrong.append(dialog.message))
        tab.on("request", lambda request: wrong.append(request.url))
        tab.goto(file.as_uri())
        if options.get("java_script_enabled", True):
            tab.wait_for_selector("html[data-ready]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    strange = [each for each in wrong if not each.startswith(("file:", "data:"))]
    assert not strange and sum(each.startswith("file:") for each in wrong) == len(contexts)


def sampled(logits, temperature, top_k, top_p, min_p):
    """Probabilities (V) of the library's sampler."""
    options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    return next_probabilities(logits, options)


def tables(tab):
    """The numbers of each table by its class, row by row, with their displayed texts."""
    return tab.evaluate(
        """() => Object.fromEntries([...document.querySelectorAll(".machine-numbers table")].map(
            t => [t.className.split(" ")[0], [...t.tBodies[0].rows].map(row =>
                [...row.querySelectorAll("data")].map(d => [+d.value, d.textContent]))]))"""
    )


def as_number(shown):
    """A displayed number, and half a unit of its last digit."""
    shown = shown.replace("\N{MINUS SIGN}", "-").replace(",", "").replace("\xa0", "")
    unit = 0.01 if shown.endswith("%") else 1
    digits, _, power = shown.rstrip("%").partition("e")
    decimals = len(digits.partition(".")[2])
    return float(shown.rstrip("%")) * unit, 0.5 * unit * 10.0 ** (int(power or 0) - decimals)


def check_tables(tab, expected):
    """Check the numbers of tables, and their rounding where displayed; return how many."""
    shown, count = tables(tab), 0
    for name, rows in expected.items():
        assert len(shown[name]) == len(rows), name
        for row, numbers in zip(shown[name], rows, strict=True):
            values = [value for value, _ in row[: len(numbers)]]
            np.testing.assert_allclose(values, numbers, rtol=3e-4, atol=1e-5, err_msg=name)
            count += len(values)
            for value, text in row:
                if not re.search("<|discarded", text):
                    rounded, half = as_number(text)
                    assert abs(rounded - value) <= half * (1 + 1e-6) + 1e-12, (name, value, text)
    return count


def choose(tab, layer, line):
    tab.click(f'.machine-blocks [data-layer="{layer}"]')
    while not tab.locator(f'.machine-lines [data-line="{line}"]').count():
        first = int(tab.locator(".machine-lines [data-line]").first.get_attribute("data-line"))
        tab.click(f".machine-lines {'.earlier' if line < first else '.later'}")
    tab.click(f'.machine-lines [data-line="{line}"]')
    tab.mouse.move(1, 1)  # a resting pointer would look at the name that comes to lie under it


def check_page(tab, page, steps):
    """Check all tables of a page, and those of further blocks and tokens; return the count."""
    run, expected = page.run, Expected(page.run.lm, page.run.ids)
    model = expected.model_tables()
    flops = np.array(model.pop("flops"))
    flops = np.stack([flops, flops / flops.sum()], axis=1)
    focus = run.focus
    generation = expected.generation(steps)
    constant = expected.embedding() | expected.sampling(focus.position) | generation | model
    count = check_tables(tab, constant)
    count += check_tables(tab, expected.neurons(focus.layer, focus.position))
    time = [row[1:] for row in tables(tab)["time"] if len(row) > 1]
    np.testing.assert_allclose([[v for v, _ in row] for row in time], flops, rtol=1e-6)
    differences = [row[-1][0] for row in tables(tab)["cache"]]
    assert all(0 <= difference < 1e-4 for difference in differences)
    count += check_tables(tab, expected.block(focus.layer, focus.position))
    n = len(run.ids)
    last = (run.config.n_layer - 1, n // 2, run.config.n_head - 1)
    for layer, line, head in ((0, 0, 0), last, (focus.layer, n // 2, 0)):
        choose(tab, layer, line)
        count += check_tables(tab, expected.block(layer, line) | expected.lens(line))
        if layer not in described_layers(run):
            continue
        count += check_score(tab, expected, layer, line, head, line // 2)
        count += check_norm(tab, expected, layer, line)
    return count


def check_norm(tab, expected, layer, line):
    go_in(tab, f"block {layer} norm", "norm")
    columns, said = expected.norm(layer, line)
    np.testing.assert_allclose(zoom_table(tab), columns, rtol=3e-4, atol=1e-5)
    np.testing.assert_allclose(said_numbers(tab), said, rtol=3e-4, atol=1e-5)
    return columns.size + len(said)


def go_in(tab, place, level):
    tab.fill(".machine-crumbs input", place)
    tab.press(".machine-crumbs input", "Enter")
    tab.wait_for_selector(f".machine-picture:not([aria-busy])[data-level={level}]")


def check_score(tab, expected, layer, line, head, key):
    """Go into the picture down to one multiplication; return how many numbers were right."""
    go_in(tab, f"block {layer} head {head}", "head")
    tab.locator(".target.spot").nth(key).press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=score]")
    table, said = expected.score(layer, line, head, key)
    np.testing.assert_allclose(said_numbers(tab), said, rtol=3e-4, atol=1e-5)
    np.testing.assert_array_equal(zoom_table(tab), table)
    tab.locator(".target.term").first.press("Enter")
    tab.wait_for_selector(".machine-picture:not([aria-busy])[data-level=term]")
    np.testing.assert_allclose(said_numbers(tab), table[:, 0], rtol=1e-6)
    return table.size + len(said)


def zoom_table(tab):
    """The columns of the table of the place in the picture."""
    tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
    tab.wait_for_selector(".zoom-table[open] table")
    rows = tab.eval_on_selector_all(
        ".zoom-table tbody tr",
        """rows => rows.map(row => [...row.cells].slice(1).map(
            c => +(c.querySelector('data')?.value ?? c.textContent)))""",
    )
    return np.float32(rows).T


def said_numbers(tab):
    return tab.eval_on_selector_all(".machine-caption data", "all => all.map(d => +d.value)")


def test_every_number_is_the_librarys(open_page, page, show):
    tab = open_page(page)
    count = check_page(tab, page, steps=8)
    assert count > 947
    show("gpt2np explain", f"{count:,} numbers of the bundled model's page are right")


@pytest.fixture
def random_page(bundled, tmp_path):
    """random_page(seed): a page of a tiny random model with the bundled model's vocabulary."""

    def made(seed):
        rng = np.random.default_rng(seed)
        heads, layers = int(rng.integers(1, 5)), int(rng.integers(1, 5))
        shape = {"vocab_size": 4096, "n_positions": 48, "n_head": heads, "n_layer": layers}
        shape |= {"n_embd": heads * int(rng.integers(2, 9)), "scale_attn_weights": seed % 4 != 1}
        shape |= {"n_inner": int(rng.integers(3, 40)), "tie_word_embeddings": seed % 2 == 0}
        shape |= {"activation_function": ("gelu_new", "gelu", "relu")[seed % 3]}
        folder = tmp_path / str(seed)
        save_reference(folder, spread=0.2, seed=seed, **shape)
        for name in ("vocab.json", "merges.txt"):
            shutil.copy(bundled / name, folder / name)
        return explain(load(folder), PROMPT, steps=3, position=int(rng.integers(0, 12)))

    return made


@pytest.mark.parametrize(
    "seeds", [range(2), range(2, 4), pytest.param(range(4, 20), marks=pytest.mark.slow)], ids=str
)
def test_every_number_of_random_models(open_page, random_page, seeds):
    """The first four models have every activation, untied embeddings, and unscaled scores."""
    for seed in seeds:
        page = random_page(seed)
        assert check_page(open_page(page), page, steps=3) > 300


def test_exact_numbers_are_the_forward_passs(open_page, page):
    """What the page takes from the pass is equal to the bit where results do not depend on it."""
    tab = open_page(page)
    shown, focus, run = tables(tab), page.run.focus, page.run
    logits = run.lm.model.forward([run.ids])[focus.position]
    top = np.sort(logits)[::-1][:20]
    shown_logits = np.float32([row[0][0] for row in shown["next"][:20]])
    if small_kernels():
        np.testing.assert_array_equal(shown_logits, top)
    else:
        np.testing.assert_allclose(shown_logits, top, atol=1e-5)


def test_parameters_add_up(open_page, page):
    shown = tables(open_page(page))
    counts = [row[0][0] for row in shown["tensors"]]
    assert sum(counts[:-1]) == counts[-1] == page.run.model.weights.parameters == 5_918_720
    assert sum(row[0][0] for row in shown["groups"][:-1]) == counts[-1]


def set_sliders(tab, values):
    tab.evaluate(
        """values => {
            for (const [name, value] of Object.entries(values))
                document.querySelector(`.sliders [name=${name}]`).value = value;
            const moved = new Event("input", {bubbles: true});
            document.querySelector(".sliders input").dispatchEvent(moved);
        }""",
        values,
    )


def check_sliders(tab, logits):
    names = ("temperature", "top_k", "top_p", "min_p")
    for setting in SETTINGS:
        set_sliders(tab, dict(zip(names, setting, strict=True)))
        shown = tab.eval_on_selector_all(
            ".next tr[data-id]",
            "rows => rows.map(r => [+r.dataset.id, +r.querySelector('.sampled data').value])",
        )
        expected = sampled(logits, *setting)
        assert len(shown) == 20
        for number, probability in shown:
            assert probability == pytest.approx(expected[number], abs=1e-6), (setting, number)
        if not setting[0]:
            assert "always the most likely" in tab.inner_text(".mass-says")
            continue
        says = tab.eval_on_selector_all(".mass-says data", "all => all.map(d => +d.value)")
        count, kept, *lost = says
        whole = softmax(apply_temperature(logits, setting[0]).astype(np.float64))
        assert count == np.count_nonzero(expected), setting
        assert kept == pytest.approx(whole[expected > 0].sum(), abs=1e-6)
        assert kept + sum(lost) == pytest.approx(1, abs=1e-9)


def test_the_sliders_give_the_samplers_numbers(open_page, page):
    tab = open_page(page)
    check_sliders(tab, page.run.arrays["logits"][page.run.focus.position])
    tab.click(".sliders button")
    says = tab.locator(".mass-says", has_text="Nothing is discarded")
    says.wait_for()
    assert tab.input_value(".sliders [name=min_p]") == "0"


def test_a_slider_by_keyboard(open_page, page):
    tab = open_page(page)
    tab.focus(".sliders [name=top_k]")
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text(".sliders label:has([name=top_k]) output") == "1"
    assert tab.locator(".next tr.cut").count() == 19
    assert "Kept: 1 of 4,096 tokens" in tab.inner_text(".mass-says")
    choose(tab, 0, 2)
    assert tab.locator(".next tr.cut").count() == 19  # another line leaves the sliders alone


def shown_bars(tab):
    """Ids and probabilities of the bars at the right of the Machine."""
    return tab.eval_on_selector_all(
        ".machine-bars li",
        "all => all.map(li => [+li.dataset.id, +li.querySelector('data').value])",
    )


def set_moment(tab, moment):
    tab.eval_on_selector(
        ".moment",
        "(range, moment) => { range.value = moment; range.dispatchEvent(new Event('input')); }",
        moment,
    )


def test_any_heads_weights_can_be_read(open_page, page):
    """The table has all heads of the block and the line that are chosen."""
    tab = open_page(page)
    tab.set_viewport_size({"width": 1280, "height": 420})  # nine of the 17 tokens are in sight
    tab.wait_for_selector(".machine-lines .earlier")
    for layer, line in ((1, 5), (3, len(page.run.ids) - 1), (5, 0)):
        choose(tab, layer, line)
        shown = [[value for value, _ in row] for row in tables(tab)["looks"]]
        pattern = page.run.arrays[f"blocks.{layer}.attn.pattern"][:, line, : line + 1]
        np.testing.assert_array_equal(np.float32(shown).T, pattern)


def test_the_guess_of_every_line_after_every_block(open_page, page):
    tab = open_page(page)
    residuals = np.stack([page.run.residual(k) for k in range(7)])
    probabilities = softmax(logit_lens(page.run.lm, residuals).astype(np.float64))
    for line in (3, 8, len(page.run.ids) - 1):
        choose(tab, 0, line)
        for k, moment in enumerate([0, 3, 5, 7, 9, 11, 13]):
            set_moment(tab, moment)
            bars = shown_bars(tab)
            assert [i for i, _ in bars][:3] == np.argsort(-probabilities[k, line])[:3].tolist()
            for token_id, p in bars:
                assert p == pytest.approx(probabilities[k, line, token_id], abs=1e-6)


def test_the_draw_is_the_librarys(open_page, page):
    tab = open_page(page)
    lm, ids = page.run.lm, page.run.ids
    [drawn] = lm.generate(ids, max_new_tokens=1, temperature=1.0, top_k=0, seed=0).ids
    own = tab.locator(".machine-bars .own")
    assert own.get_attribute("data-id") == str(drawn)
    assert tab.inner_text(".slot").strip() == lm.tokenizer.decode([drawn]).strip()


def test_going_in_without_a_server(open_page, page):
    """Down to one multiplication of a score, and to a token's embedding; never to a dead end."""
    tab = open_page(page)
    choose(tab, 4, 7)
    check_score(tab, Expected(page.run.lm, page.run.ids), 4, 7, 2, 3)
    go_in(tab, "block 4 head 2", "head")
    assert tab.locator(".target.link").count() == 0  # the weights are not in the file
    go_in(tab, "token", "token")
    weights, ids = page.run.model.weights, page.run.ids
    cosines = nearest_tokens(weights["wte.weight"], [ids[7]], 6)[1]
    near = tab.eval_on_selector_all(".target.near", "all => all.map(e => +e.dataset.value)")
    np.testing.assert_allclose(near, cosines[0], atol=1e-6)
    for place in ("block 4 neuron 5", "h.4.mlp.c_fc.weight"):
        tab.fill(".machine-crumbs input", place)
        tab.press(".machine-crumbs input", "Enter")
        assert "no numbers beyond" in tab.inner_text(".machine-caption")


def test_the_weights_of_neurons_without_a_server(open_page, page):
    """Of the ten that write most at the page's token, in each block."""
    tab, run, weights = open_page(page), page.run, page.run.model.weights
    n = run.focus.position
    for layer in (0, 5):
        neuron = page.description["details"]["neurons"][layer][9]["neuron"]
        go_in(tab, f"block {layer} neuron {neuron}", "neuron")
        assert tab.locator(".target.link").count() == 0
        normalized = run.arrays[f"blocks.{layer}.ln_2"][n]
        column = weights[f"h.{layer}.mlp.c_fc.weight"][:, neuron]
        np.testing.assert_array_equal(zoom_table(tab)[:2], [normalized, column])
        points = [run.arrays[f"blocks.{layer}.mlp.{part}"][n, neuron] for part in ("pre", "act")]
        np.testing.assert_allclose(said_numbers(tab), points, rtol=3e-4, atol=1e-5)
    tab.locator(".target.term").first.press("Enter")
    tab.wait_for_selector(".machine-picture[data-level=term]")
    assert said_numbers(tab)[:2] == pytest.approx([normalized[0], column[0]], rel=1e-6)


def test_all_neurons_of_a_block(open_page, page):
    """The picture of a block has the activation of each neuron, of any token."""
    tab = open_page(page)
    choose(tab, 1, 3)
    go_in(tab, "block 1", "block")
    tip, tries = None, 0
    while tip is None and tries < 100:  # until the growing picture has its full size
        box = tab.locator(".machine-canvas").bounding_box()
        tab.mouse.move(box["x"] + 0.5 * box["width"] + tries % 2, box["y"] + box["height"] - 6)
        tab.wait_for_timeout(100)
        tip = re.fullmatch(r"neuron (\d+): (\S+)", tab.inner_text(".machine-tip"))
        tries += 1
    assert tip is not None
    index, value = tip.groups()
    rounded, half = as_number(value)
    assert abs(rounded - page.run.arrays["blocks.1.mlp.act"][3, int(index)]) <= half * 1.001


def test_tips_of_the_whole_picture(open_page, page):
    """What a pointer reads at the last line: embedding, attention, MLP, strip, logits."""
    tab, arrays, config = open_page(page), page.run.arrays, page.run.config
    box = tab.locator(".machine-canvas").bounding_box()
    line = tab.locator(".machine-lines [data-line]").last.bounding_box()
    start, end = min(56, 0.09 * box["width"]), box["width"] - min(64, 0.1 * box["width"])
    block = (end - start) / config.n_layer

    def tip(x):
        tab.mouse.move(box["x"] + x, line["y"] + line["height"] / 2)
        says = tab.inner_text(".machine-tip")
        *words, number = says.removesuffix("\xa0%").split()
        value, half = as_number(number + says[len(says.removesuffix("\xa0%")) :])
        return " ".join(words), pytest.approx(value, abs=half * 1.001 + 2e-3)

    says, value = tip(start / 2)
    [index] = map(int, re.findall(r"number (\d+):$", says))
    assert f"token {page.run.ids[-1]} at position {len(page.run.ids) - 1}" in says
    assert arrays["embed"][-1, index] == value
    says, value = tip(start + 1.2 * block)
    [head] = map(int, re.findall(r"^attention of block 1: .*\(head (\d+)\),$", says))
    pattern = arrays["blocks.1.attn.pattern"][:, -1, :-1]
    assert pattern.max() == pattern[head].max() == value
    says, value = tip(start + 1.5 * block)
    [neuron] = map(int, re.findall(r"^MLP of block 1: neuron (\d+) writes most", says))
    assert arrays["blocks.1.mlp.act"][-1, neuron] == value
    says, value = tip(start + 2 * block - 6)
    [index] = map(int, re.findall(r"after block 1, number (\d+):$", says))
    assert arrays["blocks.1.resid"][-1, index] == value
    says, value = tip(end + 4)
    assert says.startswith("logits: one for each of the 4,096 tokens")
    assert softmax(arrays["logits"][-1]).max() == value


def test_one_head_alone(open_page, page):
    tab = open_page(page)
    assert tab.locator(".machine-heads [aria-pressed=true]").inner_text() == "all heads"
    chosen = explain(page.run.lm, PROMPT, head=2, steps=1, float64=False)
    assert open_page(chosen).locator(".machine-heads [aria-pressed=true]").inner_text() == "2"


def test_every_merge_with_its_rank(open_page, page):
    """Each step shows the tokens after the earlier merges, with the ranks of merges.txt."""
    tab = open_page(page)
    text = tab.eval_on_selector("#text-panel", "e => e.textContent")
    lm = page.run.lm
    for piece in lm.tokenizer.trace_merges(PROMPT):
        for step in piece.steps[:-1]:
            left, right = step.tokens[step.chosen], step.tokens[step.chosen + 1]
            rank = lm.tokenizer.vocabulary.ranks[f"{left} {right}"]
            assert f"{left} + {right}, rank {rank}".replace("Ġ", "␣") in text
    assert " ".join(f"{byte:02x}" for byte in b" there") in text
    assert tab.locator(".pieces tbody tr").count() == len(lm.tokenizer.trace_merges(PROMPT))


def test_a_large_model_has_the_vectors_of_one_block(open_page, page, monkeypatch):
    monkeypatch.setattr("gpt2np.explain.details._MAX_PAGE_BYTES", 0)
    small = explain(page.run.lm, PROMPT, layer=2, steps=1, float64=False)
    assert len(small.html) < len(page.html)
    tab = open_page(small)
    check_norm(tab, Expected(page.run.lm, page.run.ids), 2, len(page.run.ids) - 1)
    choose(tab, 4, 3)
    tab.fill(".machine-crumbs input", "block 4 norm")
    tab.press(".machine-crumbs input", "Enter")
    assert "no numbers beyond" in tab.inner_text(".machine-caption")
    shown = np.float32([[value for value, _ in row] for row in tables(tab)["looks"]])
    np.testing.assert_array_equal(shown.T, small.run.arrays["blocks.4.attn.pattern"][:, 3, :4])
    go_in(tab, "block 4 head 1", "head")
    tab.locator(".target.spot").nth(1).press("Enter")
    tab.wait_for_selector(".machine-caption >> text=one block only")
    check_score(tab, Expected(page.run.lm, page.run.ids), 2, 3, 1, 2)


def test_axe_finds_nothing(open_page, page):
    """On a page with every kind of element, and few of each."""
    assert axe_findings(open_page(explain(page.run.lm, PROMPT[:16], steps=2))) == []


def test_first_paint(open_page, page, show):
    """The text is painted before the numbers are drawn; a generous limit for busy machines."""
    tab = open_page(page)
    times = tab.evaluate("performance.getEntriesByType('paint').map(e => e.startTime)")
    show("gpt2np explain", f"first paint of the bundled model's page: {max(times):.0f} ms")
    assert max(times) < 3000


def test_no_width_scrolls_sideways(open_page, page):
    tab = open_page(page)
    tab.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
    for width in (320, 360, 390, 768, 1080, 1280, 2000):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_and_light(open_page, page):
    grounds = [
        open_page(page, color_scheme=scheme).evaluate(
            "getComputedStyle(document.body).backgroundColor"
        )
        for scheme in ("light", "dark")
    ]
    assert grounds == ["rgb(253, 252, 250)", "rgb(20, 23, 27)"]


def test_on_paper_everything_is_open_and_nothing_cut_off(open_page, page):
    tab = open_page(page, width=A4)
    tab.emulate_media(media="print")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.evaluate("new Promise(drawn => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    shown = tab.evaluate(
        """() => [...document.querySelectorAll("details table")].map(t => [
            t.checkVisibility({contentVisibilityAuto: true}), t.getBoundingClientRect().height])"""
    )
    assert len(shown) > 10 and all(visible and height > 10 for visible, height in shown)
    assert tab.evaluate("document.documentElement.scrollWidth") <= A4
    cut = tab.evaluate(
        """() => [...document.querySelectorAll("main *")].filter(e => {
            const style = getComputedStyle(e);
            return e.scrollHeight > e.clientHeight + 2 && e.clientHeight > 0 &&
                /auto|scroll|hidden/.test(style.overflowY) && style.clipPath === "none" &&
                !e.closest(".token, #machine");
        }).map(e => e.outerHTML.slice(0, 80))"""
    )
    assert not cut
    assert tab.evaluate("[...document.querySelectorAll('nav, form')].every(e => !e.offsetHeight)")
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") > 4


def test_without_the_script(open_page, page):
    tab = open_page(page, java_script_enabled=False)
    assert "needs JavaScript" in tab.inner_text("main")
    assert PROMPT[:40] in tab.inner_text("h1")


@pytest.mark.parametrize("prompt", [MARKUP, SIGNS], ids=["markup", "signs"])
def test_a_hostile_prompt_shows_itself_and_does_nothing(open_page, bundled, prompt):
    page = explain(load(bundled), prompt, steps=1, float64=False)
    tab = open_page(page, width=360)
    shown = tab.evaluate("document.querySelector('pre.prompt').textContent")
    if prompt == MARKUP:
        assert shown == MARKUP
    else:
        assert all(character in shown for character in "🦊שלום")
        assert "\\u{202e}abc\\u{0}\\u{1b}[31m\\u{d}↵\n→end" in shown
    tab.click('.machine-blocks [data-layer="0"]')
    tab.locator(".machine-lines [data-line]").first.click()
    assert tab.evaluate("window.hacked") is None
    assert tab.evaluate("document.querySelectorAll('bdi script, pre img').length") == 0
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.slow
def test_gpt2_smalls_shape_in_the_browser(open_page, gpt2_vocabulary, tmp_path):
    lm = gpt2_small(gpt2_vocabulary, tmp_path)
    page = explain(lm, f"{PROMPT} it was to be out in the wood, under the", steps=2)
    check_sliders(open_page(page), page.run.arrays["logits"][-1])
    tab = open_page(page)  # the sliders of the other one have moved
    assert check_page(tab, page, steps=2) > 947
    for moment in np.arange(0, 27, 0.5):
        set_moment(tab, float(moment))
    assert np.median(tab.evaluate("document.getElementById('machine').frames")) < 16
    narrow = open_page(page, 360)
    assert narrow.evaluate("document.documentElement.scrollWidth") <= 360
