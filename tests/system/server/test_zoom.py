"""Going into the Machine: every number on the way is the library's."""

from contextlib import contextmanager

import numpy as np
import pytest
from helpers.playground import leave, open_tabs
from helpers.random_models import save_byte_model
from helpers.server import running_server

from gpt2np import LanguageModel, trace
from gpt2np.interp.description import MAX_LINES
from gpt2np.model.ops import softmax

PROMPT = "The little fox ran"
SCALED = {"scale_attn_by_inverse_layer_idx": True}
SHAPES = {
    "odd, scaled by block": {"n_embd": 35, "n_head": 5, "n_inner": 17, "n_layer": 4} | SCALED,
    "bundled": None,
    "12 blocks": {"n_embd": 192, "n_head": 12, "n_inner": 768, "n_layer": 12},
    "GPT-2 small": {"n_embd": 768, "n_head": 12, "n_inner": 3072, "n_layer": 12},
}
FIRST, *OTHERS = SHAPES


class Zoomed:
    """The playground's page with a model, and what the library says."""

    def __init__(self, tab, lm):
        self.tab, self.lm = tab, lm
        self.config, self.ids = lm.model.config, lm.encode_prompt(PROMPT)
        self.traced = trace(lm, PROMPT)
        self.layer = self.config.n_layer - 1
        self.line = len(self.ids) - 1

    def open_block(self):
        leave(self.tab)
        self.tab.locator(".machine-blocks button").nth(self.layer).press("Enter")
        self.settle("block")

    def open_head(self, head):
        self.open_block()
        self.tab.locator(".target.spot").nth(head).press("Enter")
        self.settle("head")

    def settle(self, level):
        self.tab.wait_for_selector(f".machine-picture:not([aria-busy])[data-level={level}]")

    def table(self):
        """The columns of the scene's table."""
        self.tab.eval_on_selector(".zoom-table", "t => { t.open = false; }")
        self.tab.wait_for_selector(".zoom-table table", state="detached")
        self.tab.eval_on_selector(".zoom-table", "t => { t.open = true; }")
        self.tab.wait_for_selector(".zoom-table[open] table", state="attached")
        rows = self.tab.eval_on_selector_all(
            ".zoom-table .vectors tbody tr",
            """rows => rows.map(r => [...r.cells].map(
                c => +(c.querySelector('data')?.value ?? c.textContent)))""",
        )
        return np.array(rows).T

    def said(self):
        return self.tab.eval_on_selector_all(
            ".machine-caption data", "all => all.map(d => +d.value)"
        )


@pytest.fixture(
    scope="module", params=[FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def zoomed(request, browser, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    name = "bundled"
    if SHAPES[request.param] is not None:
        name = str(folder / "model")
        save_byte_model(folder / "model", **SHAPES[request.param])
    with (
        running_server(folder, "--model", name) as server,
        contextmanager(open_tabs)(browser, server) as open_tab,
    ):
        tab = open_tab(height=720, reduced_motion="reduce")
        tab.fill("#prompt", PROMPT)
        lm = LanguageModel.load(name)
        last = lm.tokenizer.decode(lm.encode_prompt(PROMPT)[-1:]).replace(" ", "␣")
        tab.wait_for_selector(f"#machine [data-line][aria-selected=true]:has-text('{last}')")
        yield Zoomed(tab, lm)


def close(shown, expected, tolerance=1e-6):
    np.testing.assert_allclose(shown, expected, rtol=1e-5, atol=tolerance)


class TestNumbers:
    def test_block(self, zoomed):
        zoomed.open_block()
        _, *columns = zoomed.table()
        block = f"blocks.{zoomed.layer}."
        before = f"blocks.{zoomed.layer - 1}.resid" if zoomed.layer else "embed"
        points = [before, *(block + name for name in ("attn.out", "resid_mid", "mlp.out", "resid"))]
        for shown, point in zip(columns, points, strict=True):
            expected = zoomed.traced[point][-1]  # the description has three digits
            np.testing.assert_allclose(shown, expected, 2e-3, 2e-3 * np.abs(expected).max())

    def test_head_and_score(self, zoomed):
        """Three gestures from the model: block, head, token."""
        tab, layer, line = zoomed.tab, zoomed.layer, zoomed.line
        head = zoomed.config.n_head - 1
        key = max(0, len(zoomed.ids) - MAX_LINES) + 1
        at = f"blocks.{layer}."
        q = zoomed.traced[at + "attn.q"][head].astype(np.float64)
        k = zoomed.traced[at + "attn.k"][head].astype(np.float64)
        zoomed.open_head(head)
        _, *columns = zoomed.table()
        for shown, name in zip(columns, "qkv", strict=True):
            close(shown, zoomed.traced[f"{at}attn.{name}"][head, -1])
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


class TestMoving:
    def test_keys_lead_in_and_out(self, zoomed):
        zoomed.open_head(0)
        for level in ("block", "model"):
            zoomed.tab.keyboard.press("Escape")
            zoomed.settle(level)

    def test_pointer(self, zoomed):
        tab = zoomed.tab
        leave(tab)
        box = tab.locator(".machine-canvas").bounding_box()
        x, y = box["x"] + box["width"] * 0.55, box["y"] + box["height"] * 0.5
        tab.mouse.click(x, y)
        zoomed.settle("block")
        tab.mouse.click(x, box["y"] + box["height"] * 0.2)
        zoomed.settle("head")
        for level in ("block", "model"):
            tab.locator(".machine-crumbs li button").last.click()
            zoomed.settle(level)

    def test_a_press_on_a_blocks_name_opens_the_block(self, zoomed):
        """And nothing that lies under the name in the block's picture."""
        blocks = zoomed.tab.locator(".machine-blocks button")
        for n in range(blocks.count()):
            leave(zoomed.tab)
            blocks.nth(n).click()
            zoomed.tab.wait_for_timeout(100)
            zoomed.settle("block")

    def test_nothing_of_a_zoom_is_cut(self, zoomed):
        """In a window of 1280 × 720."""
        tab = zoomed.tab
        tab.set_viewport_size({"width": 1280, "height": 720})
        zoomed.open_head(0)
        tab.locator(".target.spot").nth(1).press("Enter")
        zoomed.settle("score")
        cut = tab.eval_on_selector_all(
            ".target",
            """all => all.filter(each => {
                const box = each.getBoundingClientRect();
                const view = document.querySelector(".machine-view").getBoundingClientRect();
                return box.bottom > view.bottom + 1 || each.scrollHeight > each.clientHeight + 2;
            }).map(each => each.textContent)""",
        )
        assert cut == []
