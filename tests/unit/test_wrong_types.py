"""Arguments of a wrong type: gpt2np's error names the argument, not NumPy's or Python's error."""

import copy
from collections.abc import Callable

import numpy as np
import pytest

import gpt2np
from gpt2np import LanguageModel
from gpt2np.errors import InvalidArgumentError
from gpt2np.evaluation.perplexity import perplexity
from gpt2np.generation.scheduler import Scheduler
from gpt2np.interp import (
    attribution,
    chain,
    hook_point_shape,
    induction_scores,
    lens_table,
    logit_lens,
    mean_ablate,
    patch_from,
    scale,
    trace,
    zero,
)
from gpt2np.model import GPT2
from gpt2np.tokenizer.training import TrainingOptions, train
from gpt2np.view.explain import explain

CALLS: dict[str, tuple[Callable[[LanguageModel], object], str]] = {
    "processes": (lambda lm: setattr(lm.model, "processes", "2"), "processes is '2'"),
    "fraction of processes": (lambda lm: setattr(lm.model, "processes", 2.5), "processes is 2.5"),
    "defaults": (lambda lm: LanguageModel(lm.model, lm.tokenizer, defaults={}), "defaults is {}"),
    "prompts": (lambda lm: lm.generate_batch(5), "prompts is 5"),
    "text for prompts": (lambda lm: lm.generate_batch("abc"), "must be a list"),
    "prompt": (lambda lm: lm.generate(5), "prompt is 5; it must be a text or a list of ids"),
    "bool in a prompt": (lambda lm: lm.generate([5, True]), "must be a text or a list of ids"),
    "bytes for a prompt": (lambda lm: lm.generate(b"a"), "it must be a text or a list of ids"),
    "several": (lambda lm: lm.generate(["a", "b"]), "for several prompts, call generate_batch"),
    "array": (lambda lm: lm.generate("a", top_k=np.ones(2)), r"top_k is array\(\[1., 1.\]\); it"),
    "prefix": (lambda lm: lm.generate("a", prefix="b"), "prefix is 'b'; it must be made by"),
    "second prompt": (lambda lm: lm.generate_batch(["a", 5, "b"]), r"^prompt 2 of 3: prompt is 5"),
    "text that is missing": (
        lambda lm: lm.score(["a", float("nan"), "b"]),
        "text 2 of 3: text is nan",
    ),
    "stop id": (
        lambda lm: lm.generate("x", stop_token_ids=[4096]),
        "stop_token_ids: id 4096 is not in the model's vocabulary of",
    ),
    "biased id": (
        lambda lm: lm.generate("x", logit_bias={9999: 1}),
        "logit_bias: id 9999 is not in the model's vocabulary",
    ),
    "banned id": (
        lambda lm: lm.generate("x", bad_words_ids=[[5000]]),
        "bad_words_ids: id 5000 is not in the model's vocabulary",
    ),
    "number for a model": (
        lambda lm: gpt2np.load(3),
        "the model is 3; it must be a name or a path",
    ),
    "special bad word": (
        lambda lm: lm.generate("a", bad_words=["fox", "<|endoftext|>"]),
        r"^bad_words: <\|endoftext\|> is a special token, not a text; to forbid it, give",
    ),
    "texts to trace": (lambda lm: trace(lm, ["a", "b"]), "one text at a time"),
    "bytes to score": (lambda lm: lm.score(b"abc"), "text is b'abc'"),
    "stride": (lambda lm: lm.score("a text", stride="x"), "stride is 'x'"),
    "context": (lambda lm: lm.score("a text", context=3.5), "context is 3.5"),
    "given": (lambda lm: lm.score("a text", given=5), "given is 5"),
    "exact": (lambda lm: gpt2np.load("bundled", exact="no"), "exact is 'no'; it must be True or"),
    "exact and weights": (
        lambda lm: gpt2np.load("bundled", exact=True, weights="int8"),
        "`exact` and `weights` contradict",
    ),
    "encode": (lambda lm: lm.tokenizer.encode(3), "the text is 3"),
    "specials": (lambda lm: lm.tokenizer.encode("a", allowed_special=5), 'give "all", or a set'),
    "text in a batch": (lambda lm: lm.tokenizer.encode_batch([1]), "the text is 1"),
    "text with offsets": (lambda lm: lm.tokenizer.offsets(None), "the text is None"),
    "decode None": (lambda lm: lm.tokenizer.decode(None), "ids is None; it must be a list"),
    "encode_batch": (lambda lm: lm.tokenizer.encode_batch(3), "texts is 3"),
    "token_texts": (lambda lm: lm.tokenizer.token_texts(5), "ids is 5"),
    "sequences": (lambda lm: lm.model.forward(None), "sequences is None"),
    "number for a sequence": (lambda lm: lm.model.forward([5.0]), "each sequence"),
    "uneven lists": (lambda lm: lm.model.forward([[[1], [2, 3]]]), "each sequence"),
    "indices": (lambda lm: lm.model.forward([[1]], logits_indices=1.0), "logits_indices must be a"),
    "caches": (lambda lm: lm.model.forward([[1]], [5]), r"caches is \[5\]"),
    "one cache": (lambda lm: lm.model.forward([[1]], lm.model.new_cache()), "caches is <.*KVCache"),
    "hook": (lambda lm: lm.model.forward([[1]], hook=5), "hook is 5; it must be a function"),
    "points": (lambda lm: trace(lm, "a", points=5), "points is 5"),
    "interventions": (lambda lm: trace(lm, "a", interventions=5), "interventions is 5"),
    "model of trace": (lambda lm: trace("bundled", "a"), "model is 'bundled'; it must be a GPT2"),
    "model of induction": (lambda lm: induction_scores(5), "model is 5"),
    "residual": (lambda lm: logit_lens(lm, trace(lm, "a")), "residual is <Trace"),
    "width of residual": (lambda lm: logit_lens(lm, np.zeros((2, 3))), "residual is"),
    "trace of lens": (lambda lm: lens_table(lm, "a text"), "trace is 'a text'; it must be a Trace"),
    "n of lens": (lambda lm: lens_table(lm, trace(lm, "a"), "x"), "n is 'x'"),
    "trace of attribution": (lambda lm: attribution(lm, "a text", 5), "trace is 'a text'"),
    "model": (lambda lm: LanguageModel("a", lm.tokenizer), "model is 'a'; it must be a GPT2"),
    "tokenizer": (lambda lm: LanguageModel(lm.model, "a"), "tokenizer is 'a'"),
    "config": (lambda lm: GPT2(5, {}), "config is 5; it must be a GPT2Config"),
    "weights": (lambda lm: GPT2(lm.model.config, 5), "weights is 5"),
    "missing weights": (lambda lm: GPT2(lm.model.config, {}), "the weights lack wte.weight"),
    "path of a model": (lambda lm: lm.model.save(5), "path is 5"),
    "path of a tokenizer": (lambda lm: lm.tokenizer.save(5), "path is 5"),
    "folder": (lambda lm: GPT2.from_folder(5), "path is 5"),
    "decode nested": (lambda lm: lm.tokenizer.decode([[1, 2]]), "it must be integers from 0"),
    "length of a cache": (lambda lm: lm.model.new_cache().truncate("x"), "length is 'x'"),
    "points to zero": (lambda lm: zero(5), "points is 5; it must be a name of hook points"),
    "factor": (lambda lm: scale("embed", "x"), "factor is 'x'; it must be a number"),
    "source of a patch": (lambda lm: patch_from(5), "trace is 5; it must be a Trace"),
    "traces of a mean": (lambda lm: mean_ablate("embed", 5), "trace is 5; it must be a Trace"),
    "chained hook": (lambda lm: chain(5), r"interventions is \(5,\); it must be"),
    "hook point": (lambda lm: hook_point_shape("nope", lm.model.config, 3), "unknown hook point"),
    "an array of TransformerLens only": (
        lambda lm: lm.generate("a", interventions=zero("blocks.0.attn.hook_result")),
        "unknown hook point 'blocks.0.attn.hook_result'",
    ),
    "progress": (lambda lm: lm.score("a", progress=print), "progress is <built-in function print"),
    "processor": (lambda lm: lm.generate("a", logits_processor=5), "logits_processor is 5; it mus"),
    "criteria": (lambda lm: lm.generate("a", stopping_criteria=5), "stopping_criteria is 5; it"),
    "on_token": (lambda lm: lm.generate("a", on_token=5), "on_token is 5; it must be a function"),
    "scheduled stream of another model": (
        lambda lm: Scheduler(copy.deepcopy(lm.model)).add(lm.stream("a").sequence),
        "the sequence is another model's",
    ),
    "criterion of beams": (
        lambda lm: lm.generate("a", num_beams=3, stopping_criteria=lambda ids, logits: True),
        "num_beams to 1",
    ),
    "interventions and prompt_logprobs": (
        lambda lm: lm.generate("a", interventions=zero("embed"), prompt_logprobs=1),
        "interventions cannot be combined",
    ),
    "size of a vocabulary": (lambda lm: TrainingOptions(vocab_size="x"), "vocab_size is 'x'; it"),
    "a text to evaluate": (lambda lm: perplexity(lm, "a text"), "documents is 'a text'; it must"),
    "a text to train on": (lambda lm: train("a", TrainingOptions()), "documents is 'a'; it must"),
    "model of explain": (lambda lm: explain(lm.model, "a"), "lm is <GPT2"),
}


@pytest.mark.parametrize(("call", "message"), CALLS.values(), ids=CALLS.keys())
def test_error_names_the_argument(
    lm: LanguageModel, call: Callable[[LanguageModel], object], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call(lm)


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**70)])
def test_ids_beyond_64_bits(lm: LanguageModel, number: int) -> None:
    for call in (lm.generate, lm.prefix, lm.score, lambda ids: lm.model.forward([ids])):
        with pytest.raises(InvalidArgumentError, match=f"id {number} is not in the .*vocabulary"):
            call([5, number])


def test_batch_takes_iterables_and_names_the_prompt(lm: LanguageModel) -> None:
    options = gpt2np.GenerationOptions(max_new_tokens=2, seed=1)
    expected = lm.generate_batch(["a", "b"], options)
    assert lm.generate_batch((prompt for prompt in "ab"), options) == expected
    with pytest.raises(InvalidArgumentError, match=r"^max_new_tokens is -1"):
        lm.generate_batch(["a", "b"], max_new_tokens=-1)


@pytest.mark.parametrize(
    ("function", "name", "message"),
    [
        ("generate", "max_tokens", "no option 'max_tokens'; did you mean 'max_new_tokens'"),
        ("generate", "temprature", "did you mean 'temperature'"),
        ("generate", "stop_strings", "did you mean 'stop'"),
        ("generate", "do_sample", "for greedy decoding, set temperature to 0"),
        ("generate", "response_format", "did you mean 'json_schema'"),
        ("generate", "streamer", "call stream, which yields the pieces"),
        ("generate", "n", "did you mean 'num_return_sequences'"),
        ("generate", "xyz", "there are token_healing, "),
    ],
)
def test_unknown_argument_is_a_type_error_with_a_hint(
    lm: LanguageModel, function: str, name: str, message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        getattr(lm, function)(None, **{name: 1})
