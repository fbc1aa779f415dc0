"""The page without a browser: numbers, named functions, escaping, errors."""

import ast
import re
import shutil
from html import unescape

import numpy as np
import pytest
from helpers.equal_results import assert_equal_results
from helpers.explain_pages import LONG, MARKUP, PROMPT, SIGNS, gpt2_small
from helpers.page_reader import PageReader, as_number, close_numbers, exact_numbers, half_a_unit
from helpers.paths import CHECKOUT
from helpers.references import save_reference

from gpt2np import CheckpointError, ContextLengthError, InvalidArgumentError, LanguageModel, load
from gpt2np.benchmark.counts import hook_point_flops
from gpt2np.explain.audit import seconds_per_part
from gpt2np.explain.figures import Line, line_chart, picture_url
from gpt2np.explain.markup import (
    Numbers,
    escape_prompt,
    format_number,
    token_text,
)
from gpt2np.explain.page import PROGRESS_STEPS, explain
from gpt2np.explain.run import MAX_TOKENS
from gpt2np.kernels.blas import small_kernels
from gpt2np.view import script_json


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


def check_numbers(page, steps=8):
    """Check that every number equals the library's and is displayed correctly rounded."""
    reader, run = PageReader(page.html), page.run
    points, exact = exact_numbers(run)
    close = close_numbers(run, points, steps)
    for name, array in reader.arrays.items():
        if name in exact:
            assert_equal_results(array, np.asarray(exact[name]))
        else:
            np.testing.assert_allclose(array, close[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name, place, digits, shown in reader.numbers:
        value = float(digits)
        assert abs(as_number(shown) - value) <= half_a_unit(shown) + 1e-12, (name, shown, digits)
        if name in exact:
            rel, absolute = (1e-7, 1e-12) if small_kernels() else (1e-5, 1e-6)
            expected = float(exact[name][place])
            assert value == pytest.approx(expected, rel=rel, abs=absolute), (name, place)
        elif name == "step.difference":
            assert 0 <= value < 1e-4
        else:
            expected = float(np.asarray(close[name])[place])
            assert value == pytest.approx(expected, rel=2e-4, abs=1e-5), (name, place)
    return reader


def test_every_number_is_the_librarys(bundled_page, small_folder, show):
    reader = check_numbers(bundled_page)
    assert len(reader.numbers) > 800
    shown = {name for name, *_ in reader.numbers}
    assert {"score.terms", "lens.probability", "next.logits", "tensor.count"} <= shown
    counts = bundled_page.numbers.arrays["tensor.count"]
    assert counts.sum() == bundled_page.numbers.arrays["parameters"] == 5_918_720
    small = check_numbers(explain(load(small_folder), PROMPT, layer=0, head=2, position=5))
    assert len(small.numbers) > 500
    show("gpt2np explain", f"{len(reader.numbers):,} numbers of the bundled model's page are right")


def test_bars_hold_probabilities_of_the_whole_vocabulary(bundled_page):
    bars = [a for _, a in PageReader(bundled_page.html).tags if "data-probability" in a]
    probabilities = bundled_page.numbers.arrays["next.probability"]
    assert len(bars) == 20 and len(probabilities) == 4096
    assert probabilities.sum() == pytest.approx(1)
    for bar in bars:
        assert float(bar["data-probability"]) == probabilities[int(bar["data-id"])]
    rest = bundled_page.numbers.arrays["next.rest"]
    shown = sum(float(bar["data-probability"]) for bar in bars)
    assert shown + rest == pytest.approx(1)


def test_every_named_function_is_in_the_named_file(bundled_page):
    functions = set(PageReader(bundled_page.html).functions)
    assert len(functions) > 20
    for name, file in functions:
        body = ast.parse((CHECKOUT / file).read_text(encoding="utf-8")).body
        for part in name.split("."):
            defined = (ast.FunctionDef, ast.ClassDef)
            found = [node for node in body if isinstance(node, defined) and node.name == part]
            assert found, f"{name} is not in {file}"
            body = found[0].body


def test_functions_are_short():
    """Functions have at most 40 lines, so that a section can be read at a glance."""
    for file in (CHECKOUT / "gpt2np" / "explain").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno - node.lineno < 40, (file.name, node.name)


def test_the_sections_in_the_order_of_the_datas_way(bundled_page):
    html = bundled_page.html
    sections = re.findall(r'<section id="(\w+)"', html)
    assert " ".join(sections) == (
        "text embedding block norm attention mlp residual lens sampling generation "
        "audit time precision"
    )
    contents = html.partition("<main>")[0]
    assert re.findall(r'<a href="#(\w+)">', contents) == sections
    for name in sections:
        body = html.partition(f'<section id="{name}"')[2]
        assert '<p class="says">' in body
    assert html.count('class="formula"') == len(sections) <= html.count('class="source"')


def test_each_section_says_what_it_is_in_a_few_sentences(bundled_page):
    said = re.findall(r'<p class="says">(.*?)</p>', bundled_page.html, re.DOTALL)
    assert len(said) == 13
    for words in said:
        assert 2 <= len(re.findall(r"[.](?: |$)", re.sub(r"<[^>]*>", "", words))) <= 3, words


def test_every_merge_with_its_rank(bundled_page):
    """Each step shows the tokens after the earlier merges, with the ranks of merges.txt."""
    lm = bundled_page.run.lm
    html = bundled_page.html
    for piece in lm.tokenizer.trace_merges(PROMPT):
        for step in piece.steps[:-1]:
            left, right = step.tokens[step.chosen], step.tokens[step.chosen + 1]
            assert lm.tokenizer.vocabulary.ranks[f"{left} {right}"] == step.ranks[step.chosen]
            assert f"rank {step.ranks[step.chosen]}</td>" in html
    assert " ".join(f"{byte:02x}" for byte in b" there") in html


def test_nothing_is_loaded_from_anywhere(bundled_page):
    reader = PageReader(bundled_page.html)
    assert reader.links and all(link.startswith(("#", "data:")) for link in reader.links)
    assert not {name for name, _ in reader.tags} & {"link", "iframe", "object", "embed", "base"}
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttp", bundled_page.html)


@pytest.mark.parametrize("prompt", [MARKUP, SIGNS], ids=["markup", "signs"])
def test_a_hostile_prompt_is_text_and_nothing_else(bundled, prompt):
    page = explain(load(bundled), prompt, steps=1, float64=False)
    reader = PageReader(page.html)
    assert len(reader.scripts) == 2 and "hacked" not in reader.scripts[1]
    assert not any(a.get("src") == "x" or "onerror" in a for _, a in reader.tags)
    signs = {
        "\u202e": "\\u202e",
        "\x00": "\\x00",
        "\x1b": "\\x1b",
        "\r": "\\r",
        "\n": "↵\n",
        "\t": "\\t",
        "\u2028": "\\u2028",
        "\xad": "\\u00ad",
        "\u200d": "\\u200d",
    }
    assert reader.prompt == "".join(signs.get(c, c) for c in prompt)
    assert b"".join(map(page.run.token_bytes, page.run.ids)) == prompt.encode()
    assert reader.content["tokens"] == [token_text(page.run.token_bytes(i)) for i in page.run.ids]
    for raw in ("\u202e", "\x00", "\x1b", "\u2028"):
        assert raw not in page.html


def test_a_hostile_name_and_vocabulary(bundled, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>&amp;"
    shutil.copytree(bundled, folder)
    vocabulary = (folder / "vocab.json").read_text(encoding="utf-8")
    assert '"\u0120the"' in vocabulary
    merges = (folder / "merges.txt").read_text(encoding="utf-8")
    # A token that no merge produces can still be a nearest token or a prediction.
    vocabulary = vocabulary.replace('"\u0120Weasel"', '"</script><b>x"')
    merges = "\n".join(line for line in merges.split("\n") if "Weasel" not in line.replace(" ", ""))
    (folder / "vocab.json").write_text(vocabulary, encoding="utf-8")
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    page = explain(load(folder), "The little fox", steps=1, float64=False)
    reader = PageReader(page.html)
    assert len(reader.scripts) == 2
    assert not any("onerror" in attributes for _, attributes in reader.tags)
    assert "&lt;/script&gt;&lt;b&gt;x" in page.html and "<b>x" not in page.html
    assert "<img src=x" in unescape(page.html) and "<img src=x" not in page.html


@pytest.mark.parametrize("prompt", ["", "a", "\n", "🦊"])
def test_short_prompts(bundled, prompt):
    page = explain(load(bundled), prompt, steps=2)
    reader = check_numbers(page, steps=2)
    assert reader.content["focus"]["position"] == len(page.run.ids) - 1
    assert ("The prompt is empty" in page.html) == (prompt == "")


def test_a_window_is_computed_as_a_text_of_its_own(bundled):
    lm = load(bundled)
    prompt = (LONG * 4).strip()
    ids = lm.tokenizer.encode(prompt)
    page = explain(lm, prompt, window=slice(10, 30), steps=1, float64=False)
    assert page.run.ids == ids[10:30]
    expected = lm.model.forward([ids[10:30]])
    np.testing.assert_allclose(page.run.arrays["logits"], expected, rtol=1e-4, atol=1e-4)
    assert f"The prompt has {len(ids)} tokens" in page.html
    shown = PageReader(page.html).prompt
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
    assert len(page.numbers.arrays["step.ids"]) == 1


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
    lm.model.weights["ln_f.bias"] = np.full(256, np.inf)
    with pytest.raises(CheckpointError, match=r"stored in ln_f\.bias"):
        explain(lm, "fox")


@pytest.mark.filterwarnings("error")
def test_a_model_of_zeros_has_a_page(bundled):
    """All lengths and differences are zero, so the logarithmic charts are empty."""
    lm = load(bundled)
    for name, array in lm.model.weights.items():
        lm.model.weights[name] = np.zeros_like(array)
    page = explain(lm, "The little fox", steps=1)
    assert not page.numbers.arrays["residual.norm"].any()
    assert not page.numbers.arrays["precision.residual"].any()
    assert "nan" not in page.html.partition("<main>")[2].partition("<script")[0].lower()


def test_a_logarithmic_chart_of_zeros_has_a_scale():
    chart = line_chart([Line("none", [0.0, 0.0])], ["0", "1"], "zeros", logarithmic=True)
    assert ">0.1</text>" in chart and ">1</text>" in chart
    assert "<circle" not in chart and "<circle" in line_chart([Line("one", [1])], ["0"], "one")


def test_it_tells_what_it_does(bundled):
    progress = []
    explain(load(bundled), "fox", steps=1, float64=False, on_progress=progress.append)
    assert len(progress) == len(set(progress)) == PROGRESS_STEPS


def test_what_is_chosen_to_look_at(bundled_page):
    """The default focus is the middle block and its largest weight on a token after the first."""
    run = bundled_page.run
    focus = run.focus
    assert (focus.layer, focus.position) == (3, len(run.ids) - 1)
    rows = run.arrays["blocks.3.attn.pattern"][:, -1, 1:-1]
    assert rows[focus.head, focus.key - 1] == rows.max()


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


def test_small_things():
    assert format_number(-0.5) == "\u22120.5000" and format_number(1234567, "n") == "1,234,567"
    assert format_number(0.25, "p") == "0.2500" and format_number(3.456e-7, "p") == "3.5e\u22127"
    assert format_number(12345.678) == "12,346" and format_number(1.5e8) == "1.500e+8"
    assert script_json({"a": "</script>&"}) == '{"a":"\\u003c/script\\u003e\\u0026"}'
    assert escape_prompt("a\nb<\x07") == (
        'a<span class="sign">↵</span>\nb&lt;<span class="sign">\\x07</span>'
    )
    assert token_text(b" caf\xc3") == "␣caf\\xc3"
    numbers = Numbers()
    numbers.add("x", np.array([[1, -2.5]], np.float32), carry=True)
    assert numbers.show("x", 0, 1) == (
        '<data data-of="x" data-at="0,1" value="-2.5">\u22122.500</data>'
    )
    assert numbers.as_json()["x"]["shape"] == [1, 2]


def test_a_picture_is_a_png_of_the_numbers(tmp_path):
    import base64
    import struct
    import zlib

    url = picture_url(np.array([[1.0, -1.0, 0.0], [0.5, -0.25, 9.0]]), 1.0)
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and struct.unpack(">II", data[16:24]) == (3, 2)
    at = data.index(b"IDAT")
    length = struct.unpack(">I", data[at - 4 : at])[0]
    lines = np.frombuffer(zlib.decompress(data[at + 4 : at + 4 + length]), np.uint8).reshape(2, 4)
    assert lines[:, 1:].tolist() == [[254, 0, 127], [191, 95, 254]]


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
    check_numbers(page)
    size = len(page.html.encode())
    assert size < 3_000_000
    show("gpt2np explain", f"124M parameters, 32 tokens: {size:,} bytes, all numbers right")
