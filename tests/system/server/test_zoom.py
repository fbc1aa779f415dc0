"""Going into the Machine: every number on the way is the library's."""

import numpy as np
import pytest
from helpers.random_models import save_byte_model
from helpers.server import running_server

from gpt2np import LanguageModel, trace
from gpt2np.interp import zero_head
from gpt2np.interp.description import MAX_LINES
from gpt2np.interp.weights import nearest_tokens
from gpt2np.model.ops import softmax

pytest.importorskip("playwright.sync_api")
for package in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

PROMPT = "The little fox said"
SHAPES = {
    "bundled": None,
    "one block": {},
    "odd": {"n_embd": 35, "n_head": 5, "n_inner": 17, "n_layer": 3},
    "scaled by block": {
        "n_embd": 24,
        "n_head": 3,
        "n_layer": 4,
        "scale_attn_by_inverse_layer_idx": True,
    },
    "unscaled": {"n_embd": 16, "n_head": 1, "n_layer": 2, "scale_attn_weights": False},
    "12 blocks": {"n_embd": 192, "n_head": 12, "n_inner": 768, "n_layer": 12},
    "GPT-2 small": {"n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12},
}


def shapes(names):
    """Parametrize by the shapes: those of `names`, and with `-m slow` the others."""
    return [
        name if name in names else pytest.param(name, marks=pytest.mark.slow) for name in SHAPES
    ]


class Zoomed:
    """The playground's page with a model, and what the library says."""

    def __init__(self, tab, lm):
        self.tab, self.lm = tab, lm
        self.config, self.ids = lm.model.config, lm.encode_prompt(PROMPT)
        self.traced = trace(lm, PROMPT)
        self.layer = self.config.n_layer - 1
        self.line = len(self.ids) - 1

    def go(self, place):
        self.tab.fill(".machine-crumbs input", place)
        self.tab.press(".machine-crumbs input", "Enter")
        self.settle()

    def settle(self, level=None):
        level = f"[data-level={level}]" if level else ":not([data-level=model])"
        self.tab.wait_for_selector(f".machine-picture:not([aria-busy]){level}")

    def table(self):
        """The columns of the scene's table."""
        self.tab.eval_on_selector(".zoom-table", "t => { t.open = false; }")
        self.tab.wait_for_timeout(20)
        self.tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
        self.tab.wait_for_selector(".zoom-table[open] table")
        rows = self.tab.eval_on_selector_all(
            ".zoom-table tbody tr",
            """rows => rows.map(r => [...r.cells].map(
                c => +(c.querySelector('data')?.value ?? c.textContent)))""",
        )
        return np.array(rows).T

    def said(self):
        return self.tab.eval_on_selector_all(
            ".machine-caption data", "all => all.map(d => +d.value)"
        )


@pytest.fixture(scope="module", params=shapes(SHAPES.keys() - {"GPT-2 small"}))
def zoomed(request, browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    name = "bundled"
    if SHAPES[request.param] is not None:
        name = str(folder / "model")
        save_byte_model(folder / "model", **SHAPES[request.param])
    with running_server(folder, "--model", name) as server:
        context = browser.new_context(reduced_motion="reduce")
        tab = context.new_page()
        foreign = []
        tab.on("request", lambda r: None if r.url.startswith(server.url) else foreign.append(r.url))
        tab.on("pageerror", lambda error: foreign.append(str(error)))
        tab.goto(server.url)
        tab.wait_for_selector("html[data-ready]")
        tab.fill("#prompt", PROMPT)
        lm = LanguageModel.load(name)
        last = lm.tokenizer.decode(lm.encode_prompt(PROMPT)[-1:]).replace(" ", "␣")
        tab.wait_for_selector(f"#machine [data-line][aria-pressed=true]:has-text('{last}')")
        yield Zoomed(tab, lm)
        context.close()
        assert not [each for each in foreign if not each.startswith("data:")]


def close(shown, expected, tolerance=1e-6):
    np.testing.assert_allclose(shown, expected, rtol=1e-5, atol=tolerance)


class TestNumbers:
    def test_block(self, zoomed):
        zoomed.go(f"block {zoomed.layer}")
        _, *columns = zoomed.table()
        block = f"blocks.{zoomed.layer}."
        before = f"blocks.{zoomed.layer - 1}.resid" if zoomed.layer else "embed"
        points = [before, *(block + name for name in ("attn.out", "resid_mid", "mlp.out", "resid"))]
        for shown, point in zip(columns, points, strict=True):
            close(shown, zoomed.traced[point][-1])

    def test_head(self, zoomed):
        head = zoomed.config.n_head - 1
        zoomed.go(f"block {zoomed.layer} head {head}")
        _, *columns = zoomed.table()
        for shown, name in zip(columns, "qkvz", strict=True):
            close(shown, zoomed.traced[f"blocks.{zoomed.layer}.attn.{name}"][head, -1])

    def test_score_and_one_multiplication(self, zoomed):
        """Four gestures from the model: block, head, token, number."""
        tab, layer, line = zoomed.tab, zoomed.layer, zoomed.line
        head, i = zoomed.config.n_head - 1, 2
        key = max(0, len(zoomed.ids) - MAX_LINES) + 1
        at = f"blocks.{layer}."
        q = zoomed.traced[at + "attn.q"][head].astype(np.float64)
        k = zoomed.traced[at + "attn.k"][head].astype(np.float64)
        zoomed.go(f"block {layer} head {head}")
        tab.locator(".target.spot").nth(1).press("Enter")
        zoomed.settle("score")
        _, first, second, products = zoomed.table()
        close(first, q[line])
        close(second, k[key])
        close(products, q[line] * k[key])
        total, scale, score, share = zoomed.said()
        close(scale, zoomed.config.attention_scale(layer))
        close([total, score], [q[line] @ k[key], q[line] @ k[key] * scale], 1e-4)
        close(share, zoomed.traced[at + "attn.pattern"][head, line, key])
        close(share, softmax(q[line] @ k.T * scale)[key], 1e-5)
        tab.locator(".target.term").nth(i).press("Enter")
        zoomed.settle("number")
        a, b, product, made = zoomed.said()
        close([a, b, product], [q[line, i], k[key, i], q[line, i] * k[key, i]])
        close(made, q[line, i], 1e-4)
        _, first, second, _ = zoomed.table()
        close(first, zoomed.traced[at + "ln_1"][line])
        column = head * zoomed.config.n_embd // zoomed.config.n_head + i
        close(second, zoomed.lm.model.weights[f"h.{layer}.attn.c_attn.weight"][:, column])
        tab.locator(".target.term").nth(0).press("Enter")
        zoomed.settle("term")
        close(zoomed.said(), [first[0], second[0], first[0] * second[0]])
        tab.keyboard.press("Escape")
        zoomed.settle("number")
        tab.click(".target.link")
        tab.wait_for_selector(".machine-crumbs [aria-current]:has-text('k2')")
        zoomed.settle("number")
        close(zoomed.table()[1], zoomed.traced[at + "ln_1"][key])
        close(zoomed.said()[-1], k[key, i], 1e-4)

    def test_neuron(self, zoomed):
        neuron = zoomed.config.n_inner - 1
        zoomed.go(f"block {zoomed.layer} neuron {neuron}")
        weights, mlp = zoomed.lm.model.weights, f"h.{zoomed.layer}.mlp."
        _, first, second, _ = zoomed.table()
        close(first, zoomed.traced[f"blocks.{zoomed.layer}.ln_2"][-1])
        close(second, weights[mlp + "c_fc.weight"][:, neuron])
        total, act = zoomed.said()
        close(total, zoomed.traced[f"blocks.{zoomed.layer}.mlp.pre"][-1, neuron], 1e-5)
        close(act, zoomed.traced[f"blocks.{zoomed.layer}.mlp.act"][-1, neuron])

    def test_token(self, zoomed):
        zoomed.go("token")
        weights, token = zoomed.lm.model.weights, zoomed.ids[-1]
        _, what, where, both = zoomed.table()
        close(what, weights["wte.weight"][token])
        close(where, weights["wpe.weight"][zoomed.line])
        close(both, zoomed.traced["embed"][-1])
        ids, cosines = nearest_tokens(weights["wte.weight"], [token], 10)
        shown = zoomed.tab.eval_on_selector_all(
            ".target.near", "all => all.map(e => [e.textContent, +e.dataset.value])"
        )
        close([value for _, value in shown], cosines[0])
        for (text, _), i in zip(shown, ids[0], strict=True):
            word = zoomed.lm.tokenizer.decode([int(i)]).strip()
            assert not word.isalnum() or word in text

    def test_matrix(self, zoomed):
        """From a whole matrix to its numbers, by the keyboard."""
        name = f"h.{zoomed.layer}.attn.c_proj.weight"
        zoomed.go(name)
        weight = zoomed.lm.model.weights[name]
        for _ in range(5):
            parts = zoomed.tab.locator(".target.spot")
            if not parts.count():
                break
            parts.last.press("Enter")
            zoomed.settle("matrix")
            zoomed.tab.wait_for_timeout(50)
        row, *columns = zoomed.table()
        n = len(columns)
        np.testing.assert_array_equal(np.float32(columns).T, weight[row.astype(int), -n:])
        figures = zoomed.tab.eval_on_selector_all(
            ".target.figure", "all => all.map(e => +e.dataset.value)"
        )
        np.testing.assert_array_equal(np.float32(figures), weight[-len(row) :, -n:].ravel())
        for name in ("wpe.weight", f"h.{zoomed.layer}.mlp.c_fc.bias"):
            zoomed.go(name)
            rows, columns = np.atleast_2d(zoomed.lm.model.weights[name]).shape
            zoomed.tab.wait_for_selector(f".target >> text={rows:,} rows × {columns:,} columns")
        zoomed.go("wpe.nothing")
        assert "wpe.nothing" in zoomed.tab.inner_text(".machine-caption")


@pytest.mark.parametrize("zoomed", shapes({"bundled", "12 blocks"}), indirect=True, scope="module")
class TestMoving:
    def test_keys_lead_in_and_out(self, zoomed):
        tab = zoomed.tab
        zoomed.go("token")
        tab.keyboard.press("Escape")
        zoomed.settle("model")
        tab.locator(".machine-blocks button").first.press("Enter")
        zoomed.settle("block")
        tab.keyboard.press("Escape")
        zoomed.settle("model")

    def test_wheel_and_pointer(self, zoomed):
        tab = zoomed.tab
        box = tab.locator(".machine-canvas").bounding_box()
        x, y = box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.5
        tab.keyboard.press("Escape")
        tab.mouse.click(x, y)
        zoomed.settle("block")
        tab.mouse.move(x, box["y"] + box["height"] * 0.2)
        tab.mouse.wheel(0, -200)
        zoomed.settle("head")
        tab.wait_for_timeout(500)
        tab.mouse.wheel(0, 200)
        zoomed.settle("block")
        tab.wait_for_timeout(500)
        tab.mouse.wheel(0, 200)
        zoomed.settle("model")

    def test_a_press_on_a_blocks_name_opens_the_block(self, zoomed):
        """And nothing that lies under the name in the block's picture."""
        blocks = zoomed.tab.locator(".machine-blocks button")
        for n in range(blocks.count()):
            zoomed.tab.click(".transport .forth")
            zoomed.settle("model")
            blocks.nth(n).click()
            zoomed.tab.wait_for_timeout(100)
            zoomed.settle("block")

    def test_a_wrong_place_is_said(self, zoomed):
        zoomed.tab.fill(".machine-crumbs input", "block 999")
        zoomed.tab.press(".machine-crumbs input", "Enter")
        assert "no “block 999”" in zoomed.tab.inner_text(".machine-caption")

    def test_a_head_switched_off_where_it_is_seen(self, zoomed):
        tab, lm = zoomed.tab, zoomed.lm
        zoomed.go(f"block {zoomed.layer} head 0")
        tab.click(".switch")
        tab.wait_for_selector(".switch:has-text('on')")
        tab.wait_for_selector(".machine-bars .was")
        hook = zero_head(zoomed.layer, 0)
        logits = trace(lm, PROMPT, "logits", interventions=hook)["logits"][-1]
        said = tab.inner_text(".machine-says")
        assert "changed" in said
        token, p = tab.eval_on_selector(
            ".machine-bars li", "li => [+li.dataset.id, +li.querySelector('data').value]"
        )
        close(p, softmax(logits)[token], 1e-5)
        tab.click(".switch")
        tab.wait_for_selector(".switch:has-text('off')")
