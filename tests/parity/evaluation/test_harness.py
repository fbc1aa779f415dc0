"""Compare gpt2np in lm-evaluation-harness and `gpt2np eval` with transformers in the harness.

benchmarks/compare_harness.py prints the same tables for whole files.
"""

from types import SimpleNamespace

import pytest
from helpers.command_line import run_here
from helpers.paths import CHECKOUT

from gpt2np import LanguageModel
from gpt2np.errors import InvalidArgumentError

pytest.importorskip("lm_eval", reason="needs lm-evaluation-harness: pip install gpt2np[harness]")
pytest.importorskip(
    "accelerate", reason="needed by the harness's hf model: pip install lm-eval[hf]"
)

import compare_harness
from compare_harness import compare, greedy_texts, records_of
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

from gpt2np.evaluation.harness import HarnessModel, convert_options


def requests_of(kind, *arguments):
    return [Instance(kind, {}, args, i) for i, args in enumerate(arguments)]


@pytest.fixture(scope="module")
def own(bundled):
    return HarnessModel(LanguageModel.load(bundled))


@pytest.fixture(scope="module")
def peer(bundled):
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(bundled), dtype="float32", device="cpu", batch_size=1)


@pytest.fixture(scope="module", params=[4, pytest.param(24, marks=pytest.mark.slow)])
def numbers(request, data):
    """Of 4 passages and questions, and the start of a page (`-m slow`: 24, and the page)."""
    records = records_of(data, 100, request.param, 1)
    if request.param == 4:
        records["wikitext"] = [{"page": records["wikitext"][0]["page"][:4000]}]
    with pytest.MonkeyPatch.context() as patch:
        here = SimpleNamespace(run=lambda command, **_: run_here(*command[3:]))
        patch.setattr(compare_harness, "subprocess", here)  # no process per command
        return dict(compare(str(CHECKOUT / "weights"), records))


def test_accuracies_are_equal(numbers):
    names = [name for name in numbers if " acc" in name]
    assert len(names) == 7  # LAMBADA's, and two of each of three kinds of questions
    for name in names:
        theirs, *ours = numbers[name]
        assert ours == [theirs, theirs], name
    assert len({tuple(numbers[name]) for name in names}) > 3


def test_perplexities_are_equal(numbers):
    names = [name for name in numbers if "perplexity" in name or "bits" in name]
    assert len(names) == 4
    for name in names:
        theirs, *ours = numbers[name]
        assert ours == pytest.approx([theirs, theirs], rel=1e-4), name


def test_greedy_texts_are_equal(numbers):
    (values,) = [numbers[name] for name in numbers if name.startswith("greedy texts equal")]
    assert values == [1, 1, 1]


PAIRS = [
    ("The old woman said", " to the fox"),
    ("The old woman said  ", "to the fox"),
    ("", "Once upon a time"),
    ("", "<|endoftext|>Once"),
    ("The king\n", "and the queen"),
    ("A fox. " * 300, "The end"),
    ("Ein Fuchs – “größer", " als ich”"),
    ("Once upon a ti", "me there was a fox"),  # a token spans the border
    ("The wom", "an said, and th"),
    ("He said “N", "o” – and again “no”"),
]


def test_loglikelihood(own, peer):
    requests = requests_of("loglikelihood", *PAIRS)
    theirs = peer.loglikelihood(requests, disable_tqdm=True)
    ours = own.loglikelihood(requests, disable_tqdm=True)
    assert [nats for nats, _ in ours] == pytest.approx([nats for nats, _ in theirs], rel=1e-4)
    assert [greedy for _, greedy in ours] == [greedy for _, greedy in theirs]


def test_loglikelihood_rolling(own, peer):
    texts = ["", "One", "The fox went home. " * 10, "The fox went home. " * 300]
    requests = requests_of("loglikelihood_rolling", *((text,) for text in texts))
    theirs = peer.loglikelihood_rolling(requests, disable_tqdm=True)
    ours = own.loglikelihood_rolling(requests, disable_tqdm=True)
    assert ours == pytest.approx(theirs, rel=1e-4) and ours[0] == 0


def test_greedy_texts_up_to_what_ends_them(own, peer):
    prompts = ["Once upon a time", "The king said:", "A fox. " * 300, "He had a dog, and"]
    assert greedy_texts(own, prompts, 30) == greedy_texts(peer, prompts, 30)


def test_equal_requests_are_sampled_anew(own):
    drawn = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 12}
    arguments = [("Once upon a time", drawn)] * 9
    arguments += [("Once upon a time", drawn | {"until": ["never"]}), ("Once upon a time", drawn)]
    requests = requests_of("generate_until", *arguments)
    texts = own.generate_until(requests, disable_tqdm=True)
    assert len(set(texts)) == 11  # across batches of eight, and across changes of the options
    assert own.generate_until(requests, disable_tqdm=True) == texts


def test_sampling_is_from_as_many_as_in_transformers(own, peer, monkeypatch):
    from transformers import GenerationConfig

    monkeypatch.setattr(peer.model, "generation_config", GenerationConfig())
    prompt, drawn = "Once upon a time", {"temperature": 100.0, "max_gen_toks": 1}
    requests = requests_of("generate_until", *[(prompt, drawn)] * 80)
    ranked = own.lm.generate(prompt, max_new_tokens=1, logprobs=100).logprobs[0].top
    ranks = {own.lm.tokenizer.decode([token_id]): rank for rank, (token_id, _) in enumerate(ranked)}
    for model in (peer, own):
        texts = model.generate_until(requests, disable_tqdm=True)
        assert 40 <= max(ranks.get(text, 100) for text in texts) < 50


def test_the_answers_go_to_the_harness_cache(own, monkeypatch):
    entries = []
    monkeypatch.setattr(own.cache_hook, "add_partial", lambda *entry: entries.append(entry))
    (answer,) = own.loglikelihood(requests_of("loglikelihood", PAIRS[0]), disable_tqdm=True)
    assert entries == [("loglikelihood", PAIRS[0], answer)]


def test_it_is_registered_and_takes_what_the_command_line_hands_over(bundled):
    assert get_model("gpt2np") is HarnessModel
    arguments = {"pretrained": str(bundled), "dtype": "float64"}
    more = {"batch_size": 1, "max_batch_size": None, "device": "cpu"}
    model = HarnessModel.create_from_arg_obj(arguments, more)
    assert model.lm.model.dtype == "float64"


class TestOptions:
    @pytest.mark.parametrize(
        ("harness_options", "expected"),
        [
            ({}, {"max_new_tokens": 256, "temperature": 0.0, "stop": []}),
            ({"until": "\n", "max_gen_toks": 5}, {"max_new_tokens": 5, "stop": ["\n"]}),
            ({"until": ["a", ""], "max_tokens": 7}, {"max_new_tokens": 7, "stop": ["a"]}),
            ({"temperature": 0.5}, {"temperature": 0.5, "top_k": 50, "top_p": 1.0}),
            ({"temperature": 0.5, "top_k": None}, {"top_k": 0}),
            ({"temperature": 0.5, "do_sample": False}, {"temperature": 0.0}),
            ({"do_sample": True, "top_k": 3, "top_p": 0.9}, {"temperature": 1.0, "top_k": 3}),
        ],
    )
    def test_by_hand(self, harness_options, expected):
        options = convert_options(harness_options)
        assert {name: options[name] for name in expected} == expected

    def test_an_unknown_one(self):
        with pytest.raises(InvalidArgumentError, match="unknown generation option num_beams"):
            convert_options({"num_beams": 4})

    def test_no_room_for_a_prompt(self, own):
        with pytest.raises(InvalidArgumentError, match="512 new tokens leave no room"):
            greedy_texts(own, ["The"], 512)
