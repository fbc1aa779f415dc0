"""What notebooks show: `repr` and `_repr_html_` of the public classes."""

import json
import pickle
import re
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from gpt2np import GPT2, trace
from gpt2np.model import weights
from gpt2np.model.hook_points import hook_point_names
from gpt2np.progress import progress_bar
from gpt2np.view.explain import explain

HOSTILE = '<script>alert("x")</script>'
N_ARRAYS = f"{len(hook_point_names(2))} arrays"  # of the model `lm`


def elements(shown):
    """Return the elements of an object's HTML, which must be well-formed XML."""
    return list(fromstring(f"<p>{shown._repr_html_()}</p>").iter())


@pytest.fixture(scope="module")
def shown(lm):
    """One object of each class."""
    cache = lm.model.new_cache()
    lm.model.forward([[5, 6, 7]], [cache])
    traced = trace(lm, f"The king {HOSTILE}")
    options = {"max_new_tokens": 5, "seed": 1, "logprobs": 0}
    return {
        "LanguageModel": lm,
        "GPT2": lm.model,
        "Completion": lm.generate(f"Once {HOSTILE}", **options),
        "TextScore": lm.score(f"Once {HOSTILE} 🦊"),
        "Trace": traced,
        "Page": explain(lm, f"Once {HOSTILE}"),
    }


WITH_HTML = ("Completion", "TextScore", "Trace", "Page")


@pytest.mark.parametrize("name", WITH_HTML)
def test_html_is_escaped_and_balanced(shown, name):
    for element in elements(shown[name]):
        assert element.tag != "script" and "script" not in element.get("style", "")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("LanguageModel", "LanguageModel.*2 blocks.*million parameters.*float32"),
        ("GPT2", "GPT2.*2 blocks.*256 channels"),
        ("TextScore", "TextScore of .*perplexity"),
        ("Trace", f"Trace of .*{N_ARRAYS}"),
        ("Page", "Page about.*characters"),
    ],
)
def test_repr_is_one_short_line(shown, name, pattern):
    text = repr(shown[name])
    assert "\n" not in text and len(text) < 200 and re.search(pattern, text)


def test_tokens_are_colored_by_probability(lm):
    completion = lm.generate("Once upon a time", max_new_tokens=5, seed=1, logprobs=0)
    whole, *spans = elements(completion)
    text = "".join(whole.itertext())
    assert text == completion.prompt + completion.text
    titles = [span.get("title") for span in spans if span.get("title")]
    assert titles == [f"{np.exp(t.logprob):.3%}" for t in completion.logprobs]
    plain = lm.generate("Once upon a time", max_new_tokens=5, seed=1)
    assert "hsla" not in plain._repr_html_()
    assert "".join(elements(plain)[0].itertext()) == text


def test_a_whole_trace_is_a_picture(lm):
    traced = trace(lm, f"The king {HOSTILE}")
    page = elements(traced)[1].get("srcdoc")
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page)[1]
    described = json.loads(data)["pass"]
    assert described["ids"] == traced.ids.tolist()
    assert HOSTILE not in page and not re.search(r"https?://|^import ", page, re.MULTILINE)
    copy = pickle.loads(pickle.dumps(traced))
    assert np.array_equal(copy.ids, traced.ids)
    assert copy.lm is None and copy._repr_html_() is None


def test_loading_shows_a_bar_if_weights_are_converted(bundled, monkeypatch, capsys):
    """The bundled weights are stored as float16."""
    for slow_size, is_shown in ((1, True), (10**8, False)):
        monkeypatch.setattr(weights, "_SLOW_SIZE", slow_size)
        monkeypatch.setattr(
            weights,
            "progress_bar",
            lambda *args: progress_bar(*args[:3], True if args[3] is None else args[3]),
        )
        GPT2.from_folder(bundled)
        assert ("loading" in capsys.readouterr().err) == is_shown


def test_progress_bars(lm, capsys):
    prompts = ["Once", "The"]
    for progress, is_shown in ((True, True), (None, False), (False, False)):
        lm.generate_batch(prompts, max_new_tokens=2, seed=1, progress=progress)
        assert ("generating" in capsys.readouterr().err) == is_shown
        lm.score(prompts, progress=progress)
        assert ("scoring" in capsys.readouterr().err) == is_shown
