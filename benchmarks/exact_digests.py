"""Check that the exact pass has the same bits here as on every other machine.

    python benchmarks/exact_digests.py check
    OPENBLAS_CORETYPE=Haswell python benchmarks/exact_digests.py check
    NPY_DISABLE_CPU_FEATURES="AVX512F AVX2 FMA3 …" python benchmarks/exact_digests.py check
    python benchmarks/exact_digests.py check "bundled: " "wide heads: hooks"

40 cases, with one SHA-256 each: of logits (whole, cached and batched), hooked arrays, generated ids
and scores. The file tests/references/exact_digests.json has the digests. `record` writes it.
A new hook point changes the cases *hooks*. If the digest of a case that was not edited changes, so
have the results of exact models: say so in CHANGELOG.md.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
from record_bits import BUNDLED, SHAPES, Array, digest, hooked, random_ids, random_model

from gpt2np import GPT2, LanguageModel
from gpt2np.generation.options import Options

DIGESTS = Path(__file__).parent.parent / "tests" / "references" / "exact_digests.json"

STORY = "Once upon a time there was a little dog. The little dog"

bundled = cache(partial(LanguageModel.load, BUNDLED, exact=True))

DECODINGS: dict[str, Options] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"seed": 3},
    "top-p": {"seed": 4, "temperature": 1.0, "top_k": 0, "top_p": 0.9},
    "min-p": {"seed": 5, "temperature": 1.5, "top_k": 0, "min_p": 0.02},
    "typical": {"seed": 6, "temperature": 1.0, "top_k": 0, "typical_p": 0.8},
    "penalties": {"seed": 7, "repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
    "presence": {"seed": 8, "presence_penalty": 0.4, "frequency_penalty": 0.2},
    "beams": {"num_beams": 4},
    "regex": {"regex": "[a-z ]+\\.", "seed": 9},
    "log probabilities": {"seed": 10, "logprobs": 3, "prompt_logprobs": 2},
}


def exact_model(shape: dict[str, object]) -> GPT2:
    """A random model with an exact pass. Normal weights would need the machine's logarithm."""
    model, rng = random_model(**shape), np.random.default_rng(0)  # type: ignore[arg-type]
    weights = {
        name: (rng.random(array.shape, np.float32) - np.float32(0.5)) * np.float32(0.17)
        + np.float32(".ln_" in name)
        for name, array in model.weights.items()
    }
    return GPT2(model.config, weights, exact=True)


def logits(shape: dict[str, object]) -> Iterator[Array]:
    """Logits of one text: whole, through a cache in parts, and in a batch; all must be equal."""
    model, ids = exact_model(shape), random_ids(150, 1)
    whole = model.forward([ids])
    yield whole
    cache, cuts = model.new_cache(), [0, 1, 2, 70, 71, 149, 150]
    parts = zip(cuts, cuts[1:], strict=False)
    assert np.array_equal(
        whole, np.concatenate([model.forward([ids[i:j]], [cache]) for i, j in parts])
    )
    others = [random_ids(n, n) for n in (3, 90, 40)]
    yield (batched := model.forward([others[0], ids, *others[1:]]))
    assert np.array_equal(whole, batched[3:153])


def hooks(shape: dict[str, object]) -> Iterator[Array]:
    """Every array that a hook sees."""
    return hooked(exact_model(shape))


def completion(options: Options) -> Iterator[Array]:
    """The ids and log probabilities of one text of the bundled model."""
    given: Options = {**options, "max_new_tokens": 16}
    done = bundled().generate(STORY, **given)
    yield np.array(done.ids)
    for logprob in [*(done.logprobs or []), *(done.prompt_logprobs or [])]:
        if logprob:
            yield np.array([(logprob.id, logprob.logprob), *logprob.top])


def many() -> Iterator[Array]:
    """Texts of a batch, each equal to the text alone."""
    lm = bundled()
    prompts = [STORY[:n] for n in range(10, 40, 4)]
    for i, done in enumerate(lm.generate_batch(prompts, max_new_tokens=20, seed=1)):
        alone = lm.generate(prompts[i], max_new_tokens=20, seed=1 + i)
        assert alone.ids == done.ids
        yield np.array(done.ids)


def scores() -> Iterator[Array]:
    """Scores of two texts, one of them longer than the context."""
    for score in bundled().score([STORY, STORY * 20]):
        yield score.logprobs
        yield np.array([score.total, score.perplexity])
        yield score.best


def cases() -> Iterator[tuple[str, Callable[[], Iterator[Array]]]]:
    """Yield the name of each case, and the function that computes its arrays."""
    long = {"n_embd": 64, "n_head": 2, "n_layer": 2, "n_inner": 1500}
    small = {"vocab_size": 50257, "n_embd": 768, "n_head": 12, "n_layer": 2}
    for name, shape in {**SHAPES, "long sums": long, "GPT-2's width": small}.items():
        yield f"{name}: logits", partial(logits, shape)
        yield f"{name}: hooks", partial(hooks, shape)
    for name, options in DECODINGS.items():
        yield f"bundled: {name}", partial(completion, options)
    for name in ("sampled", "top-p", "min-p", "typical"):
        yield f"bundled: {name}, seed 99", partial(completion, {**DECODINGS[name], "seed": 99})
    yield "bundled: batch", many
    yield "bundled: scores", scores


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("action", nargs="?", default="check", choices=("record", "check"))
    parser.add_argument("part", nargs="*", help="check only cases whose name contains PART")
    args = parser.parse_args()
    if args.part and args.action == "record":
        parser.error("record writes all cases")
    expected = {} if args.action == "record" else json.loads(DIGESTS.read_text(encoding="utf-8"))
    found, differing = {}, []
    for name, arrays in cases():
        if not args.part or any(part in name for part in args.part):
            found[name] = digest(arrays())
            differing += [name] if expected.get(name) != found[name] else []
            print(f"{found[name][:16]}  {name}", file=sys.stderr, flush=True)
    if args.action == "record":
        DIGESTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        return 0
    differing += [name for name in expected if name not in found and not args.part]
    print(f"{len(found)} cases, {len(differing)} differ", *differing, sep="\n")
    return 1 if differing or not found else 0


if __name__ == "__main__":
    sys.exit(main())
