"""The page without a browser: numbers, named functions, escaping, errors."""

import ast
import base64
import json
import re
import shutil

import numpy as np
import pytest
from helpers.explain_pages import LONG, MARKUP, PROMPT, SIGNS, gpt2_small
from helpers.paths import CHECKOUT
from helpers.references import save_reference

from gpt2np import (
    GPT2,
    CheckpointError,
    ContextLengthError,
    InvalidArgumentError,
    LanguageModel,
    load,
)
from gpt2np.benchmark.counts import hook_point_flops
from gpt2np.explain.measure import seconds_per_part
from gpt2np.explain.page import PROGRESS_STEPS, explain
from gpt2np.explain.run import MAX_TOKENS, Focus
from gpt2np.view import script_json, web_files


@pytest.fixture(scope="module")
def bundled_page(bundled):
    return explain(load(bundled), PROMPT)


@pytest.fixture(scope="module")
def small_folder(bundled, tmp_path_factory):
    """A tiny random model with the bundled model's vocabulary and an untied unembedding."""
    folder = tmp_path_factory.mktemp("small")
    shape = {"vocab_size": 4096, "n_positions": 48, "n_embd": 24, "n_layer": 3, "n_head": 3}
    save_reference(folder, spread=0.2, tie_word_embeddings=False, **shape)
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(bundled / name, folder / name)
    return folder


def content(page):
    """The description in the page's data element."""
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html)
    return json.loads(data)["pass"]


def test_every_named_function_is_in_the_named_file():
    """The sections say which function computes their numbers."""
    sources = re.findall(r'source: "(\S+): (\w+)"', web_files()["details.js"].decode())
    assert len(sources) == 11
    for file, name in sources:
        body = ast.parse((CHECKOUT / "gpt2np" / file).read_text(encoding="utf-8")).body
        defined = (ast.FunctionDef, ast.ClassDef)
        assert [node for node in body if isinstance(node, defined) and node.name == name], name


def test_functions_are_short():
    """Functions have at most 40 lines, so that a section can be read at a glance."""
    for file in (CHECKOUT / "gpt2np" / "explain").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 40, (file.name, node.name)


def test_nothing_is_loaded_from_anywhere(bundled_page):
    markup = re.sub(r"<(script|style).*?</\1>", "", bundled_page.html, flags=re.DOTALL)
    links = re.findall(r'(?:src|href)="(.*?)"', markup)
    assert links and all(link.startswith("data:") for link in links)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttp", bundled_page.html)


@pytest.mark.parametrize("prompt", [MARKUP, SIGNS], ids=["markup", "signs"])
def test_a_hostile_prompt_is_text_and_nothing_else(bundled, prompt):
    page = explain(load(bundled), prompt, steps=1, float64=False)
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<img" not in page.html
    details = content(page)["details"]
    assert details["prompt"] == prompt
    pieces = b"".join(base64.b64decode(piece["bytes"]) for piece in details["pieces"])
    assert pieces == prompt.encode()
    for raw in ("\u202e", "\x00", "\x1b", "\u2028"):
        assert raw not in page.html


def test_a_hostile_name(bundled, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>&amp;"
    shutil.copytree(bundled, folder)
    page = explain(load(folder), "The little fox", steps=1, float64=False)
    assert page.html.count("<script") == 2 and "<img" not in page.html
    assert content(page)["model"] == folder.name


@pytest.mark.parametrize("prompt", ["", "a", "\n", "🦊"])
def test_short_prompts(bundled, prompt):
    page = explain(load(bundled), prompt, steps=2)
    details = content(page)["details"]
    assert details["focus"]["position"] == len(page.run.ids) - 1
    assert bool(details["pieces"]) == bool(prompt)
    assert len(details["steps"]["ids"]) == 2


def test_a_window_is_computed_as_a_text_of_its_own(bundled):
    lm = load(bundled)
    prompt = (LONG * 4).strip()
    ids = lm.tokenizer.encode(prompt)
    page = explain(lm, prompt, window=slice(10, 30), steps=1, float64=False)
    assert page.run.ids == ids[10:30]
    expected = lm.model.forward([ids[10:30]])
    np.testing.assert_allclose(page.run.arrays["logits"], expected, rtol=1e-4, atol=1e-4)
    details = content(page)["details"]
    assert (details["n_tokens"], details["window"]) == (len(ids), [10, 30])
    shown = details["prompt"]
    assert lm.tokenizer.decode(ids[10:30]) in shown and len(shown) < 150


def test_what_is_too_long_says_how_to_choose(bundled, small_folder):
    lm, small = load(bundled), load(small_folder)
    prompt = LONG * 6
    n = len(lm.tokenizer.encode(prompt))
    advice = f"the prompt has {n} tokens.* at most {MAX_TOKENS}; .* window=slice.{n - 64}, {n}. "
    with pytest.raises(ContextLengthError, match=advice):
        explain(lm, prompt)
    with pytest.raises(ContextLengthError, match="the window has 65, and a page holds at most 64"):
        explain(lm, prompt, window=slice(0, 65))
    with pytest.raises(ContextLengthError, match=r"at most 48; .* window=slice"):
        explain(small, prompt)
    page = explain(small, prompt, window=slice(0, 48), steps=5)  # the context is full
    assert len(page.description["details"]["steps"]["ids"]) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": slice(3, 3)}, "the window 3:3 is not within the prompt's 3 tokens"),
        ({"window": slice(2, 0)}, "the window 2:0 is not within the prompt's 3 tokens"),
        ({"window": slice(0, 9)}, "the window 0:9 is not within the prompt's 3 tokens"),
        ({"layer": 6}, "there is no layer 6; choose from 0 to 5"),
        ({"head": -1}, "there is no head -1; choose from 0 to 3"),
        ({"position": 3}, "there is no position 3; choose from 0 to 2"),
        ({"position": 0.5}, "there is no position 0.5; choose from 0 to 2"),
        ({"layer": True}, "there is no layer True; choose from 0 to 5"),
        ({"steps": 0}, "steps is 0; it must be an integer of at least 1"),
        ({"steps": -1}, "steps is -1; it must be an integer of at least 1"),
        ({"steps": 1.5}, "steps is 1.5; it must be an integer of at least 1"),
        ({"window": slice(0, 3, 2)}, r"window is slice\(0, 3, 2\); it must be START and STOP"),
        ({"window": slice(0, 2.5)}, r"window is slice\(0, 2.5, None\); it must be START and STOP"),
    ],
)
def test_what_there_is_not(bundled, options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        explain(load(bundled), "The little fox", **options)


def test_only_float32(bundled):
    with pytest.raises(InvalidArgumentError, match="the page needs a float32 model"):
        explain(LanguageModel.load(bundled, "float64"), "fox")


def test_damaged_weights(bundled):
    lm = load(bundled)
    weights = {**lm.model.weights, "ln_f.bias": np.full(256, np.inf)}
    lm.model = GPT2(lm.model.config, weights)
    with pytest.raises(CheckpointError, match=r"stored in ln_f\.bias"):
        explain(lm, "fox")


@pytest.mark.filterwarnings("error")
def test_a_model_of_zeros_has_a_page(bundled):
    lm = load(bundled)
    weights = {name: np.zeros_like(array) for name, array in lm.model.weights.items()}
    lm.model = GPT2(lm.model.config, weights)
    page = explain(lm, "The little fox", steps=1)
    details = content(page)["details"]
    assert not np.frombuffer(base64.b64decode(details["lengths"]["base64"]), "<f4").any()
    assert not any(details["precision"]["residual"])
    assert "NaN" not in page.html.partition('id="data">')[2].partition("</script>")[0]


def test_it_tells_what_it_does(bundled):
    progress = []
    explain(load(bundled), "fox", steps=1, float64=False, on_progress=progress.append)
    assert len(progress) == len(set(progress)) == PROGRESS_STEPS


def test_what_is_chosen_to_look_at(bundled_page):
    """The default focus is the middle block, all heads, and the last token."""
    run = bundled_page.run
    assert run.focus == Focus(3, None, len(run.ids) - 1)


def test_time_and_operations(bundled):
    model = load(bundled).model
    seconds = seconds_per_part(model, [5, 6, 7], passes=2)
    assert [*seconds][::13] == ["embed", "logits"]
    assert all(value > 0 for value in seconds.values())
    flops = hook_point_flops(model.config, 3)
    matrices = sum(w.size for name, w in model.weights.items() if "attn.c" in name or "mlp" in name)
    biases = sum(
        w.size
        for name, w in model.weights.items()
        if name.endswith("bias") and ("attn" in name or "mlp" in name)
    )
    of_matrices = sum(flops[name] for name in ("attn.q", "attn.out", "mlp.pre", "mlp.out"))
    assert of_matrices == 2 * 3 * (matrices - biases)


def test_the_data_cannot_end_its_element():
    assert script_json({"a": "</script>&"}) == '{"a":"\\u003c/script\\u003e\\u0026"}'


def luminance(color):
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_on_every_ground():
    """Contrast is at least 4.5 to 1 in light, dark and print (WCAG 2.1, 1.4.3)."""
    style = (CHECKOUT / "gpt2np" / "view" / "colors.css").read_text(encoding="utf-8")
    palettes = [
        dict(re.findall(r"--(\w+): ?(#\w{6}|#\w{3});", block))
        for block in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    ]
    assert len(palettes) == 3
    for palette in palettes:
        full = {
            name: c if len(c) == 7 else "#" + 2 * c[1] + 2 * c[2] + 2 * c[3]
            for name, c in palette.items()
        }
        for ink in ("ink", "soft", "blue", "orange"):
            for ground in ("paper", "raised"):
                assert contrast(full[ink], full[ground]) >= 4.5, (ink, ground, full)


@pytest.mark.slow
def test_gpt2_smalls_shape(gpt2_vocabulary, tmp_path, show):
    lm = gpt2_small(gpt2_vocabulary, tmp_path)
    ids = lm.tokenizer.encode(LONG * 3)[:32]
    page = explain(lm, lm.tokenizer.decode(ids))
    assert len(page.run.ids) == 32
    size = len(page.html.encode())
    assert size < 3_000_000
    show("gpt2np explain", f"124M parameters, 32 tokens: {size:,} bytes")
