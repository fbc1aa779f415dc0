"""The page of a prompt without a browser: its data, escaping, and errors."""

import base64
import json
import re
import shutil

import numpy as np
import pytest
from helpers.explain_pages import LONG, MARKUP, PROMPT, SIGNS, decoded

from gpt2np import ContextLengthError, InvalidArgumentError, load
from gpt2np.interp import nearest_tokens, trace
from gpt2np.view import _without_comments, joined_modules, web_files
from gpt2np.view.explain import MAX_TOKENS, explain


def content(page):
    """The description in the page's data element."""
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.html)
    return json.loads(data)["pass"]


def test_nothing_is_loaded_from_anywhere(lm):
    page = explain(lm, PROMPT)
    markup = re.sub(r"<(script|style).*?</\1>", "", page.html, flags=re.DOTALL)
    links = re.findall(r'(?:src|href)="(.*?)"', markup)
    assert links and all(link.startswith("data:") for link in links)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttp", page.html)


def test_joined_modules_come_once_each_after_their_imports():
    joined, files = joined_modules(), web_files()
    lines = [
        "const find = ",
        "function readPass(",
        "function drawStage(",
        "function createMachine(",
    ]
    places = [joined.index(line) for line in lines]
    assert places == sorted(places) and joined.count(lines[0]) == 1
    assert not re.search(r"^(import|export)\b| from \"\./", joined, re.MULTILINE)
    assert "unhandledrejection" in files["app.js"].decode() and "unhandledrejection" not in joined


def test_comments_go_and_code_beside_them_stays():
    source = "/* a\n   b */\n:root {\n/** c */\n // d\n /** @type {e} */ (f).g = 1; // h\n}\n"
    assert _without_comments(source) == ":root {/** @type {e} */ (f).g = 1;}\n"


def test_no_text_of_the_sources_runs_over_lines():
    """Joined sources lose their indentation, also within a text."""
    for name, content in web_files().items():
        if name.endswith(".js"):
            assert all(x.count('"') % 2 == 0 for x in re.findall("(.*) // ", content.decode())), (
                name
            )
            source = "\n".join(x for x in content.decode().splitlines() if x.strip()[:2] != "//")
            assert all(line.count("`") % 2 == 0 for line in source.splitlines()), name


def test_a_page_is_small_beside_its_data(lm):
    page = explain(lm, PROMPT).html
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert len(page.encode()) - len(data) <= 60 * 1024


def test_the_points_of_a_score_are_those_of_the_pass(lm):
    found, traced = content(explain(lm, PROMPT)), trace(lm, PROMPT)
    assert found["ids"] == traced.ids.tolist()
    for name, array in found["points"].items():
        np.testing.assert_array_equal(decoded(array), traced[name].astype(np.float16))
    assert len(found["points"]) == 2 * lm.model.config.n_layer


def test_every_token_has_its_neighbors_and_its_merges(lm):
    details = content(explain(lm, PROMPT))["details"]
    assert set(map(int, details)) == set(lm.encode_prompt(PROMPT))
    for token_id, found in details.items():
        ids, _ = nearest_tokens(lm.model.weights["wte.weight"], [int(token_id)], 12)
        assert [each["id"] for each in found["nearest"]] == ids[0].tolist()
        steps = lm.tokenizer.merge_steps(lm.tokenizer.decode([int(token_id)]))
        assert [each["ranks"] for each in found["steps"]] == [list(step.ranks) for step in steps]


@pytest.mark.parametrize("prompt", [MARKUP, SIGNS], ids=["markup", "signs"])
def test_a_hostile_prompt_is_text_and_nothing_else(lm, prompt):
    page = explain(lm, prompt)
    assert page.html.count("<script") == page.html.count("</script>") == 2
    assert "<img" not in page.html
    found = content(page)
    texts = [base64.b64decode(found["texts"][str(i)]) for i in found["ids"]]
    assert b"".join(texts) == prompt.encode()
    for raw in ("\u202e", "\x00", "\x1b", "\u2028"):
        assert raw not in page.html


def test_a_hostile_name_is_escaped(bundled, tmp_path):
    folder = tmp_path / "<img src=x onerror=alert(1)>&amp;"
    shutil.copytree(bundled, folder)
    page = explain(load(folder), "The little fox")
    assert page.html.count("<script") == 2 and "<img" not in page.html
    assert content(page)["model"] == folder.name


def test_a_prompt_that_is_too_long_names_the_limit(lm):
    n = len(lm.tokenizer.encode(LONG * 6))
    with pytest.raises(ContextLengthError, match=f"has {n} tokens, .* at most {MAX_TOKENS}"):
        explain(lm, LONG * 6)
    with pytest.raises(InvalidArgumentError, match="the prompt is empty"):
        explain(lm, [])
