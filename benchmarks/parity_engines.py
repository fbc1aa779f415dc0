"""Other engines and random checkpoints through gpt2np's parity kit: is any called wrong?

    pip install ctranslate2 onnxruntime onnx gguf llama-cpp-python
    python benchmarks/parity_engines.py [ctranslate2 onnxruntime llama.cpp] [--checkpoints 100]

Each engine computes the logits of prompts at once, and of one prompt token by token through its
cache, and continues the prompts greedily. The models are the bundled model and a random one.
`--checkpoints` compares all hook points of our own float32 pass on as many random checkpoints.
The exit code is 1 after a false alarm.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from compare_engines import Array, CTranslate2, Engine, LlamaCppFloat32, OnnxRuntime, StepEngine
from compare_models import make_ctranslate2, make_gguf, make_onnx
from record_bits import BUNDLED, random_ids, random_model

import gpt2np
from gpt2np import LanguageModel
from gpt2np.parity import Reference, Report, check, check_texts, record

ENGINES = {
    "ctranslate2": (CTranslate2, make_ctranslate2),
    "onnxruntime": (OnnxRuntime, make_onnx),
    "llama.cpp": (LlamaCppFloat32, make_gguf),
}
STEPS = 16


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    """Write the models in float32. Yields names and folders."""
    random = random_model(vocab_size=4096, n_embd=128, n_head=4, n_layer=3)
    for name, model in {"bundled": gpt2np.load("bundled").model, "random": random}.items():
        target = folder / name
        model.save(target)
        for file in ("vocab.json", "merges.txt", "tokenizer_config.json"):
            if (BUNDLED / file).exists():
                shutil.copy(BUNDLED / file, target)
        yield name, target


def prompts(lm: LanguageModel) -> dict[str, list[int]]:
    n = lm.model.config.n_positions
    texts = {"short": "Once upon a time there was a", "token": "The", "unicode": "Zürich – 你好 🙂"}
    ids = {name: lm.encode_prompt(text) for name, text in texts.items()}
    return {**ids, "full": random_ids(min(n, 500), 1, lm.model.config.vocab_size)}


def tested(engine: Engine, reference: Reference) -> dict[str, Array]:
    """Return the engine's logits of each prompt."""
    if isinstance(engine, CTranslate2):
        tokens = {name: [engine.tokens[i] for i in ids] for name, ids in reference.ids.items()}
        forward = engine.generator.forward_batch
        return {f"{name}/logits": np.array(forward([text]))[0] for name, text in tokens.items()}
    assert isinstance(engine, StepEngine)
    found = {}
    for name, ids in reference.ids.items():
        engine.begin(1)
        parts = [[i] for i in ids] if name == "unicode" else [ids]  # one by one, or at once
        logits = [np.array(engine.feed([part], range(len(part)))[0]) for part in parts]
        found[f"{name}/logits"] = np.concatenate(logits)
    return found


def check_engine(name: str, folder: Path) -> bool:
    """Print the verdicts on one engine with one model. Returns whether all are rounding."""
    make_engine, write = ENGINES[name]
    write(folder)
    exact = gpt2np.load(folder, exact=True)
    reference = record(exact, prompts(exact), points=["logits"], max_new_tokens=STEPS)
    engine = make_engine(folder, 2)
    report = check(reference, tested(engine, reference), exact, "float32")
    print(f"{name} {engine.version}, {folder.name}: {report}", flush=True)
    texts = {
        prompt: engine.generate([ids], len(reference.greedy_ids[prompt])).ids[0]
        for prompt, ids in reference.ids.items()
    }
    verdicts = check_texts(reference, texts, exact)
    print(*(f"  greedy text of {prompt}: {text}" for prompt, text in verdicts.items()), sep="\n")
    return report.is_rounding and all(text.is_rounding for text in verdicts.values())


def check_checkpoint(seed: int) -> Report:
    """Compare all hook points of the float32 pass with a random checkpoint's exact pass."""
    rng = np.random.default_rng(seed)
    heads, size, vocab, layers = rng.integers((1, 2, 50, 1), (9, 17, 400, 5)).tolist()
    model = random_model(vocab_size=vocab, n_embd=heads * size, n_head=heads, n_layer=layers)
    ids = random_ids(int(rng.integers(1, 20)), seed, vocab)
    reference = Reference("random", {"text": ids}, {}, {}, {})
    return check(reference, dict(gpt2np.trace(model, ids).arrays), model)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=", ".join(ENGINES))
    parser.add_argument("--checkpoints", type=int, default=100)
    args = parser.parse_args()
    verdicts = []
    with tempfile.TemporaryDirectory() as folder:
        for _, model_folder in models(Path(folder)):
            verdicts += [check_engine(name, model_folder) for name in args.engines or ENGINES]
    reports = [check_checkpoint(seed) for seed in range(args.checkpoints)]
    verdicts += [report.is_rounding for report in reports]
    alarms = [report for report in reports if not report.is_rounding]
    print(f"{len(reports)} checkpoints of our own, {len(alarms)} alarms", *alarms, sep="\n")
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
