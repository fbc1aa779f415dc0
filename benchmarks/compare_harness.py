"""Compare a server with transformers in lm-evaluation-harness.

    pip install "lm-eval[hf,api]>=0.4.10"
    gpt2np serve --model weights
    python benchmarks/compare_harness.py weights ../shared/data http://127.0.0.1:8000 --limit 300

The harness's model `local-completions` runs the tasks lambada_openai, wikitext, hellaswag and
arc_easy on a running `gpt2np serve` of the same checkpoint, with 1 and with 8 requests at a time.
All data are local files: LAMBADA's test set and pages of WikiText-2's test set. Questions for the
other tasks are made from LAMBADA's passages. Greedy texts are compared, too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.request import urlopen

from common import markdown, print_header

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the tasks refer to data sets on the Hub

Numbers = dict[str, float]
Record = dict[str, Any]

TASKS = {  # the harness's files
    "lambada": "lambada/lambada_openai.yaml",
    "wikitext": "wikitext/wikitext.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "arc": "arc/arc_easy.yaml",
}


def records_of(data: Path, first: int, limit: int, pages: int) -> dict[str, list[Record]]:
    """Return the records of each task: `limit` passages or questions from index `first` on."""
    lines = (data / "eval" / "lambada_test.jsonl").read_text(encoding="utf-8").splitlines()
    passages = [json.loads(line) for line in islice(lines, first, first + limit)]
    wiki = split_pages((data / "eval" / "wiki.test.raw").read_bytes().decode())
    texts = [passage["text"] for passage in passages]
    return {
        "lambada": passages,
        "wikitext": [{"page": page} for page in (wiki[first % len(wiki) :] + wiki)[:pages]],
        **questions_of(texts),
    }


def split_pages(text: str) -> list[str]:
    """Split the text of a WikiText file before every title, a line such as " = Robert Boulter = ".

    Titles of sections have several = at each end. Blank text before the first title is no page.
    """
    pages = re.split(r"(?m)^(?= = [^=].*[^=] = $)", text)
    return [page for page in pages if page.strip()]


def questions_of(texts: Sequence[str]) -> dict[str, list[Record]]:
    """Make multiple-choice questions in two layouts.

    The right answer is the rest of a passage; wrong answers come from neighboring passages.
    """
    parts = []
    for text in texts:
        words = text.split()
        half = len(words) // 2
        parts.append([" ".join(part) for part in (words[:half], words[half:-5], words[-5:])])
    questions: dict[str, list[Record]] = {"hellaswag": [], "arc": []}
    for i, (start, middle, _) in enumerate(parts):
        answer = i % 4
        choices = [parts[(i + step - answer) % len(parts)] for step in range(4)]
        questions["hellaswag"].append(
            {
                "activity_label": "Reading",
                "ctx_a": start,
                "ctx_b": middle.partition(" ")[0],
                "endings": [f"{rest} [step] {end}" for _, rest, end in choices],
                "label": str(answer),
            }
        )
        options = {"text": [end for _, _, end in choices], "label": list("ABCD")}
        questions["arc"].append(
            {"question": middle, "choices": options, "answerKey": "ABCD"[answer]}
        )
    return questions


def write_tasks(folder: Path, records: dict[str, list[Record]]) -> list[str]:
    """Write data files, and harness tasks that read them; return the names of the tasks."""
    import lm_eval

    harness_tasks = Path(lm_eval.__file__).parent / "tasks"
    names = []
    for name, lines in records.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        task: Record = {
            "include": str(harness_tasks / TASKS[name]),
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


def write_generation_task(folder: Path) -> str:
    """Write a task that generates LAMBADA's last word; return its name."""
    first_word = {"function": "regex", "regex_pattern": r"(\w+)"}
    task: Record = {
        "include": str(folder / "local_lambada.yaml"),
        "task": "local_lambada_generation",
        "output_type": "generate_until",
        "doc_to_target": "{{text.split(' ')[-1]}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 8, "temperature": 0},
        "filter_list": [{"name": "none", "filter": [first_word, {"function": "take_first"}]}],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean"}],
    }
    (folder / "local_lambada_generation.yaml").write_text(json.dumps(task), encoding="utf-8")
    return "local_lambada_generation"


def by_harness(model: Any, folder: Path, names: Sequence[str]) -> dict[str, Numbers]:
    """Evaluate the tasks with the harness."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    # Without the harness's own tasks, whose 13,000 files take 10 seconds to read.
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    with patch("lm_eval.evaluator.add_env_info"):  # runs commands for three seconds
        evaluation = lm_eval.simple_evaluate(
            model=model, tasks=list(names), task_manager=manager, bootstrap_iters=0
        )
    return {
        task.removeprefix("local_"): {
            name.removesuffix(",none"): value
            for name, value in numbers.items()
            if name.endswith(",none") and isinstance(value, float)
        }
        for task, numbers in evaluation["results"].items()
    }


def greedy_texts(model: Any, prompts: Sequence[str], tokens: int) -> list[str]:
    """Continue each prompt greedily, up to an empty line or a quotation mark."""
    from lm_eval.api.instance import Instance

    options = {"until": ["\n\n", "“"], "max_gen_toks": tokens, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, dict(options)), i)
        for i, prompt in enumerate(prompts)
    ]
    texts: list[str] = model.generate_until(requests, disable_tqdm=True)
    return texts


def compare_server(
    model: str, url: str, records: dict[str, list[Record]]
) -> Iterator[tuple[str, list[float]]]:
    """Yield the name of each metric, and its values in transformers and on the server at `url`.

    The server is asked with 1 and with 8 requests at a time; the tokenizer is that of `model` in
    transformers with 1 request at a time, else the server's own.
    """
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    with urlopen(f"{url}/v1/models") as response:
        served = json.load(response)["data"][0]
    name, context = served["id"], served["max_model_len"]
    # The client cuts long texts into windows that are two ids shorter than its max_length.
    peer = HFLM(
        pretrained=model, dtype="float32", device="cpu", batch_size=1, max_length=context - 2
    )
    one, eight = (
        LocalCompletionsAPI(
            base_url=f"{url}/v1/completions",
            model=name,
            tokenizer_backend="huggingface" if tokenizer else "remote",
            tokenizer=tokenizer,
            num_concurrent=n,
            max_length=context,
            max_retries=1,
        )
        for tokenizer, n in ((model, 1), (None, 8))
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tasks = [*write_tasks(folder, records), write_generation_task(folder)]
        ways = [
            _timed(way, by_harness, lm, folder, tasks)
            for way, lm in (("transformers", peer), ("server, 1", one), ("server, 8", eight))
        ]
    for task, numbers in ways[0].items():
        for metric in numbers:
            yield f"{task} {metric}", [way[task][metric] for way in ways]
    prompts = [record["text"] for record in records["lambada"][:20]]
    texts = greedy_texts(peer, prompts, 40)
    same = [sum(map(str.__eq__, texts, greedy_texts(lm, prompts, 40))) for lm in (one, eight)]
    yield "greedy texts equal", [len(prompts), *same]


def _timed(way: str, run: Callable[..., dict[str, Numbers]], *arguments: Any) -> dict[str, Numbers]:
    start = time.perf_counter()
    results = run(*arguments)
    print(f"{way}: {time.perf_counter() - start:.0f} s", file=sys.stderr)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    add = parser.add_argument
    add("model", help="model folder, readable for transformers and gpt2np")
    add("data", type=Path, help="folder of the test data, with eval/ inside")
    add("server", metavar="URL", help="address of a server of the model, as http://HOST:PORT")
    add("--first", type=int, default=0, help="index of the first passage and page (default: 0)")
    add("--limit", type=int, default=100, help="passages and questions (default: 100)")
    add("--pages", type=int, default=2, help="pages of WikiText (default: 2)")
    add("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), help="tasks (default: all)")
    args = parser.parse_args()
    records = records_of(args.data, args.first, args.limit, args.pages)
    counts = {name: len(records[name]) for name in args.tasks}
    print(f"{args.model}, from index {args.first} on: {counts}\n")
    records = {name: records[name] for name in args.tasks}
    ways = ("transformers in the harness", "server, 1 at a time", "server, 8 at a time")
    print_header("", *ways, "difference")
    for name, values in compare_server(args.model, args.server, records):
        difference = max(abs(value / values[0] - 1) if values[0] else value for value in values)
        cells = (f"{value:.6g}" for value in values)
        print(markdown(name, *cells, f"{difference:.1e}"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
