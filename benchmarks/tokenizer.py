"""Compare the speed of the tokenizers of gpt2np, tiktoken and tokenizers.

    pip install tiktoken tokenizers
    python benchmarks/tokenizer.py

Every measurement has its own process, which encodes one text once, with GPT-2's vocabulary and one
thread. The engines take turns; the tables have medians of processor time, which other programs
disturb less than elapsed time. Cold: the first text after loading the vocabulary. Warm: after 20 MB
of other stories. GPT2NP_TEST_DATA names the folder of the test data; by default, shared/data in or
beside the checkout.
"""

import argparse
import json
import os
import random
import resource
import statistics
import sys
import time
from collections.abc import Callable

from common import DATA, VOCABULARY, in_new_process

FILES = (VOCABULARY / "vocab.json", VOCABULARY / "merges.txt")
Encode = Callable[[str], list[int]]


def gpt2np() -> Encode:
    """Load GPT-2's vocabulary with gpt2np."""
    from gpt2np import Tokenizer

    return Tokenizer.load(VOCABULARY).encode


def tiktoken() -> Encode:
    """Load GPT-2's vocabulary with tiktoken."""
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    from gpt2np.tokenizer.pre_tokenizer import GPT2_PATTERN

    ranks = data_gym_to_mergeable_bpe_ranks(str(FILES[1]), str(FILES[0]))
    encoding = tiktoken.Encoding(
        "gpt2", pat_str=GPT2_PATTERN, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )
    return encoding.encode


def tokenizers() -> Encode:
    """Load GPT-2's vocabulary with tokenizers."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import ByteLevelBPETokenizer

    rust = ByteLevelBPETokenizer(str(FILES[0]), str(FILES[1]))
    return lambda text: list(rust.encode(text).ids)


ENGINES: dict[str, Callable[[], Encode]] = {
    "gpt2np": gpt2np,
    "tiktoken": tiktoken,
    "tokenizers": tokenizers,
}


def stories(start: float, megabytes: float) -> str:
    """Return a range of the shuffled stories; both numbers in millions of characters."""
    parts = (DATA / "stories" / "train.txt").read_text(encoding="utf-8").split("<|endoftext|>")
    random.Random(0).shuffle(parts)  # the file is ordered by book
    text = "".join(parts)
    return text[int(start * 1e6) : int((start + megabytes) * 1e6)]


def measure(engine: str, task: str) -> dict[str, float]:
    """Measure seconds, characters and peak memory (MiB) of a task, in a new process."""
    encode = ENGINES[engine]()
    kind, start, megabytes = task.split()
    text = stories(float(start), float(megabytes))
    if kind == "warm":
        encode(stories(10, 20))
    before = time.process_time()
    encode(text)
    seconds = time.process_time() - before
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "characters": len(text), "peak": peak}


def measure_in_turns(
    engines: list[str], task: str, rounds: int
) -> dict[str, list[dict[str, float]]]:
    """Measure a task with each engine in turn, several times."""
    results: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
    for _ in range(rounds):
        for engine in engines:
            results[engine].append(in_new_process(__file__, "--measure", engine, task))
    return results


def print_speeds(rounds: int) -> None:
    """Print MB/s on stories."""
    print(f"MB/s (peak MiB), median of {rounds} rounds; ratio to tiktoken, to tokenizers")
    for task, is_short in (("cold 0 3", True), ("cold 4 20", False), ("warm 30.5 3", True)):
        engines = list(ENGINES) if is_short else list(ENGINES)[:2]
        results = measure_in_turns(engines, task, rounds)
        speed, cells = {}, []
        for engine in engines:
            seconds = statistics.median(result["seconds"] for result in results[engine])
            speed[engine] = results[engine][0]["characters"] / seconds / 1e6
            peak = max(result["peak"] for result in results[engine])
            cells.append(f"{engine} {speed[engine]:.1f} ({peak:.0f})")
        ratios = [f"{speed['gpt2np'] / speed[engine]:.2f}×" for engine in engines[1:]]
        kind, _, megabytes = task.split()
        print(f"  {kind} {megabytes:>2} MB: {', '.join(cells)}; {', '.join(ratios)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--measure", nargs=2, metavar=("ENGINE", "TASK"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(*args.measure)))
        return
    if not FILES[0].is_file():
        sys.exit(f"{FILES[0]} does not exist; set GPT2NP_TEST_DATA to the folder of the test data")
    print_speeds(args.rounds)


if __name__ == "__main__":
    main()
