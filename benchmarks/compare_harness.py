"""lm-evaluation-harness with transformers, with gpt2np, and `gpt2np eval`: the same numbers?

    pip install "lm-eval[hf]>=0.4.10"
    python benchmarks/compare_harness.py weights ../shared/data --limit 300

One checkpoint, and the harness's own tasks: lambada_openai, wikitext, hellaswag, arc_easy and piqa.
Their data are local files: LAMBADA's test set, pages of WikiText-2's, and, as there is no copy of
the others here, questions in their layouts made of LAMBADA's passages. Greedy texts, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from gpt2np.evaluation.perplexity import split_pages

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the tasks name data sets on the Hub

Numbers = dict[str, float]
Record = dict[str, Any]

TASKS = {  # the harness's file, our command, and the names of the numbers in both
    "lambada": ("lambada/lambada_openai.yaml", "lambada", {"acc": "accuracy"}),
    "wikitext": ("wikitext/wikitext.yaml", "wikitext", {}),
    "hellaswag": ("hellaswag/hellaswag.yaml", "choices", {}),
    "arc": ("arc/arc_easy.yaml", "choices", {}),
    "piqa": ("piqa/piqa.yaml", "choices", {}),
}


def records_of(data: Path, first: int, limit: int, pages: int) -> dict[str, list[Record]]:
    """What each task is to read: `limit` passages or questions from number `first` on."""
    lines = (data / "eval" / "lambada_test.jsonl").read_text(encoding="utf-8").splitlines()
    passages = [json.loads(line) for line in islice(lines, first, first + limit)]
    wiki = split_pages((data / "eval" / "wiki.test.raw").read_bytes().decode())
    texts = [passage["text"] for passage in passages]
    return {
        "lambada": passages,
        "wikitext": [{"page": page} for page in (wiki[first % len(wiki) :] + wiki)[:pages]],
        **questions_of(texts),
    }


def questions_of(texts: Sequence[str]) -> dict[str, list[Record]]:
    """Questions in three layouts: how does a passage go on, not as one of its neighbours does?"""
    parts = []
    for text in texts:
        words = text.split()
        half = len(words) // 2
        parts.append([" ".join(some) for some in (words[:half], words[half:-5], words[-5:])])
    made: dict[str, list[Record]] = {"hellaswag": [], "arc": [], "piqa": []}
    for i, (start, middle, end) in enumerate(parts):
        others = [parts[(i + step) % len(parts)] for step in range(1, 4)]
        answer = i % 4
        ends = [other[2] for other in others]
        ends.insert(answer, end)
        rests = [other[1] for other in others]
        rests.insert(answer, middle)
        made["hellaswag"].append(
            {
                "activity_label": "Reading",
                "ctx_a": start,
                "ctx_b": middle.partition(" ")[0],
                "endings": [f"{rest} [step] {end}" for rest in rests],
                "label": str(answer),
            }
        )
        letters = list("ABCD")
        options = {"text": ends, "label": letters}
        made["arc"].append({"question": middle, "choices": options, "answerKey": letters[answer]})
        pair = [end, others[0][2]] if i % 2 == 0 else [others[0][2], end]
        made["piqa"].append({"goal": middle, "sol1": pair[0], "sol2": pair[1], "label": i % 2})
    return made


def write_tasks(folder: Path, records: dict[str, list[Record]]) -> list[str]:
    """Data files, and the harness's own tasks made to read them; returns the tasks' names."""
    import lm_eval

    own = Path(lm_eval.__file__).parent / "tasks"
    names = []
    for name, lines in records.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        task: Record = {
            "include": str(own / TASKS[name][0]),
            "task": f"local_{name}",
            "tag": [],
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"test": str(file)}},
            "training_split": None,
            "validation_split": None,
            "test_split": "test",
        }
        (folder / f"local_{name}.yaml").write_text(json.dumps(task), encoding="utf-8")
        names.append(f"local_{name}")
    return names


def by_harness(model: Any, folder: Path, names: Sequence[str]) -> dict[str, Numbers]:
    """The numbers of each task, by the harness."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    manager = TaskManager(include_path=str(folder))
    found = lm_eval.simple_evaluate(
        model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0
    )
    return {
        task.removeprefix("local_"): {
            name.removesuffix(",none"): value
            for name, value in numbers.items()
            if name.endswith(",none") and isinstance(value, float)
        }
        for task, numbers in found["results"].items()
    }


def by_commands(model: str, folder: Path, names: Sequence[str]) -> dict[str, Numbers]:
    """The numbers of each task, by `gpt2np eval`, with the harness's names."""
    found = {}
    for name in (task.removeprefix("local_") for task in names):
        _, command, renamed = TASKS[name]
        arguments = [command, str(folder / f"{name}.jsonl"), "--model", model, "--json"]
        run = [sys.executable, "-m", "gpt2np", "eval", *arguments]
        content = json.loads(subprocess.run(run, check=True, capture_output=True).stdout)
        found[name] = content | {theirs: content[ours] for theirs, ours in renamed.items()}
    return found


def greedy_texts(model: Any, prompts: Sequence[str], tokens: int) -> list[str]:
    """What the model writes after each prompt, up to a line's end."""
    from lm_eval.api.instance import Instance

    options = {"until": ["\n\n", "“"], "max_gen_toks": tokens, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, dict(options)), i)
        for i, prompt in enumerate(prompts)
    ]
    texts: list[str] = model.generate_until(requests, disable_tqdm=True)
    return texts


def compare(model: str, records: dict[str, list[Record]]) -> Iterator[tuple[str, list[float]]]:
    """Each number by transformers in the harness, by gpt2np in the harness, by `gpt2np eval`."""
    from lm_eval.models.huggingface import HFLM

    from gpt2np.evaluation.harness import HarnessModel

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tasks = write_tasks(folder, records)
        peer = HFLM(pretrained=model, dtype="float32", device="cpu", batch_size=1)
        own = HarnessModel(model)
        ways = [
            _timed("transformers in the harness", by_harness, peer, folder, tasks),
            _timed("gpt2np in the harness", by_harness, own, folder, tasks),
            _timed("gpt2np eval", by_commands, model, folder, tasks),
        ]
    for task, numbers in ways[0].items():
        for metric in numbers:
            yield f"{task} {metric}", [way[task][metric] for way in ways]
    if "lambada" in records:
        prompts = [record["text"] for record in records["lambada"][:20]]
        theirs, ours = (greedy_texts(lm, prompts, 40) for lm in (peer, own))
        same = sum(a == b for a, b in zip(theirs, ours, strict=True)) / len(prompts)
        yield f"greedy texts equal, of {len(prompts)}", [1.0, same, same]


def _timed(way: str, run: Callable[..., dict[str, Numbers]], *arguments: Any) -> dict[str, Numbers]:
    start = time.perf_counter()
    found = run(*arguments)
    print(f"{way}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="a folder that both can read")
    parser.add_argument("data", type=Path)
    parser.add_argument("--first", type=int, default=0, help="number of the first passage and page")
    parser.add_argument("--limit", type=int, default=100, help="passages and questions")
    parser.add_argument("--pages", type=int, default=2, help="of WikiText")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    args = parser.parse_args()
    records = records_of(args.data, args.first, args.limit, args.pages)
    counts = {name: len(records[name]) for name in args.tasks}
    print(f"{args.model}, from number {args.first} on: {counts}\n")
    print("| | transformers in the harness | gpt2np in the harness | `gpt2np eval` | apart |")
    print("|---|---|---|---|---|")
    for name, values in compare(args.model, {name: records[name] for name in args.tasks}):
        apart = max(abs(value / values[0] - 1) if values[0] else value for value in values)
        shown = " | ".join(f"{value:.6g}" for value in values)
        print(f"| {name} | {shown} | {apart:.1e} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
