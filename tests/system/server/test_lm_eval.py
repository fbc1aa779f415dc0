"""lm-evaluation-harness, unmodified, scores a server as it scores transformers."""

import pytest
from compare_harness import compare_server, records_of
from helpers.paths import CHECKOUT
from helpers.server import running_server

for package in ("lm_eval", "accelerate", "aiohttp", "tenacity", "uvicorn", "prometheus_client"):
    pytest.importorskip(package)

TASKS = ("lambada", "wikitext", "hellaswag", "arc")


# Wrong answers come from three other passages: with fewer than four, answers would be tied.
@pytest.fixture(scope="module", params=[4, pytest.param(8, marks=pytest.mark.slow)])
def numbers(request, data, tmp_path_factory):
    records = records_of(data, 200, request.param, 1)
    with running_server(tmp_path_factory.mktemp("server"), "--model", "bundled") as server:
        chosen = {task: records[task] for task in TASKS}
        yield dict(compare_server(str(CHECKOUT / "weights"), server.url, chosen))


def test_accuracies_and_texts_are_equal(numbers):
    names = [name for name in numbers if " acc" in name or "match" in name or "texts" in name]
    assert len(names) == 7  # LAMBADA, two of two kinds of questions, generation, greedy texts
    for name in names:
        assert len(set(numbers[name])) == 1, name


def test_perplexities_are_equal(numbers):
    names = [name for name in numbers if "perplexity" in name or "bits" in name]
    assert len(names) == 4
    for name in names:
        theirs, *ours = numbers[name]
        assert ours == pytest.approx([theirs, theirs], rel=1e-5), name
