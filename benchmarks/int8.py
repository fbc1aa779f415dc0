"""Compare the predictions of 8-bit weights (`--weights int8`) with those of float32 weights.

    pip install llama-cpp-python gguf   # optional
    python benchmarks/int8.py ../shared/data/stories/valid.txt

The forms of one model compute the same tokens: float32, int8, the checkpoint rounded to bfloat16,
and llama.cpp with float32 and q8_0 weights.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from common import markdown, print_header
from numpy.typing import NDArray
from tqdm import tqdm

from gpt2np import GPT2, LanguageModel
from gpt2np.checkpoint.convert import convert
from gpt2np.checkpoint.load import read_checkpoint

Array = NDArray[Any]
Logits = Callable[[list[int]], Array]


def log_softmax(logits: Array) -> Array:
    """Return log probabilities in float64."""
    x = logits.astype(np.float64)
    x -= x.max(-1, keepdims=True)
    x -= np.log(np.exp(x).sum(-1, keepdims=True))
    return x


def gpt2np_forms(folder: Path, temporary: Path) -> dict[str, Logits]:
    """Return the logits functions of a model folder's forms by name; float32 comes first."""
    convert(read_checkpoint(folder), temporary / "bfloat16", dtype="bfloat16")
    models = {
        "float32": GPT2.from_folder(folder),
        "int8": GPT2.from_folder(folder, weights="int8"),
        "bfloat16": GPT2.from_folder(temporary / "bfloat16"),
    }

    def logits(model: GPT2, ids: list[int]) -> Array:
        return model.forward([ids])

    return {name: partial(logits, model) for name, model in models.items()}


def llama_forms(folder: Path, temporary: Path) -> dict[str, Logits]:
    """Return the logits functions of llama.cpp's float32 and q8_0 forms of a model folder."""
    import llama_cpp
    from compare_engines import LlamaCppFloat32
    from compare_models import make_gguf

    files = [temporary / name / "model.gguf" for name in ("float32", "q8_0")]
    for file in files:
        file.parent.mkdir()
    make_gguf(folder, files[0])
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype = llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0
    names = [bytes(file) for file in files]
    if llama_cpp.llama_model_quantize(*names, options):
        raise SystemExit("llama.cpp can't quantize the model")
    engines = {f"llama.cpp, {f.parent.name}": LlamaCppFloat32(f.parent, 2) for f in files}

    def logits(engine: LlamaCppFloat32, ids: list[int]) -> Array:
        engine.begin(1)
        rows: Array = engine.feed([ids], range(len(ids)))[0]
        return rows

    return {name: partial(logits, engine) for name, engine in engines.items()}


def compare(forms: Mapping[str, Logits], windows: Sequence[list[int]]) -> dict[str, Array]:
    """Compare forms with the first form, on all tokens of the windows but the first of each.

    Returns the means per token by form: nats, KL divergence from the first form, top-1 agreement.
    """
    sums = {name: np.zeros(3) for name in forms}
    for window in tqdm(windows, desc="windows", disable=None):
        targets = np.array(window[1:])[:, None]
        reference = None
        for name, logits in forms.items():
            log_p = log_softmax(logits(window[:-1]))
            reference = log_p if reference is None else reference
            sums[name] += (
                -np.take_along_axis(log_p, targets, -1).sum(),
                (np.exp(reference) * (reference - log_p)).sum(),
                (log_p.argmax(-1) == reference.argmax(-1)).sum(),
            )
    n_tokens = sum(len(window) - 1 for window in windows)
    return {name: total / n_tokens for name, total in sums.items()}


def print_quality(text: Path, model: str, n_tokens: int) -> None:
    """Print the comparison on the first tokens of the stories in a file."""
    lm = LanguageModel.load(model)
    assert lm.folder is not None and lm.bos_token_id is not None
    end, context = lm.bos_token_id, lm.model.config.n_positions
    stories = text.read_text(encoding="utf-8").split("<|endoftext|>")
    ids = [i for story in stories for i in [end, *lm.tokenizer.encode(story.strip("\n"))]]
    ids = ids[: n_tokens + 1]
    windows = [ids[start : start + context + 1] for start in range(0, len(ids) - 1, context)]
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder)
        forms = gpt2np_forms(lm.folder, temporary)
        if find_spec("llama_cpp"):
            forms |= llama_forms(lm.folder, temporary)
        results = compare(forms, windows)
    print(f"{lm.name}: {len(ids) - 1:,} tokens", end="\n\n")
    print_header("form", "perplexity", "KL divergence, nats", "same best")
    for name, (nats, divergence, agreement) in results.items():
        print(markdown(name, f"{math.exp(nats):.3f}", f"{divergence:.2e}", f"{agreement:.2%}"))


def main() -> None:
    """Compare the forms of a model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("text", type=Path, help="stories between <|endoftext|>")
    parser.add_argument("--model", default="bundled", help="default: bundled")
    parser.add_argument("--tokens", type=int, default=20_000, help="default: 20000")
    args = parser.parse_args()
    print_quality(args.text, args.model, args.tokens)


if __name__ == "__main__":
    main()
