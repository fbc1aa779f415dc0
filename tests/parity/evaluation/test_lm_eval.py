"""lm-evaluation-harness, unmodified, scores a server as it scores transformers."""

import json
import os
import re
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # the tasks refer to data sets on the Hub

import pytest
from helpers.paths import CHECKOUT
from helpers.server import running_server

for package in ("lm_eval", "accelerate", "aiohttp", "tenacity", "uvicorn", "prometheus_client"):
    if find_spec(package) is None:
        pytest.skip(f"needs {package}", allow_module_level=True)

FIRST = 200  # index of the first passage
CONTEXT = 512  # of the bundled model
TASKS = {  # the harness's files
    "lambada": "lambada/lambada_openai.yaml",
    "wikitext": "wikitext/wikitext.yaml",
    "arc": "arc/arc_easy.yaml",
}


def read_records(data, limit, n_questions):
    """Return the records of each task: passages, a page, and questions made from the passages.

    The right answer to a question is the rest of a passage; the wrong ones are those of the next.
    """
    lines = (data / "eval" / "lambada_test.jsonl").read_text(encoding="utf-8").splitlines()
    passages = [json.loads(line) for line in lines[FIRST : FIRST + limit]]
    wiki = (data / "eval" / "wiki.test.raw").read_text(encoding="utf-8")
    pages = re.split(r"(?m)^(?= = [^=].*[^=] = $)", wiki)  # titles of sections have several =
    parts = []
    for passage in passages:
        words = passage["text"].split()
        parts.append([" ".join(part) for part in (words[len(words) // 2 : -5], words[-5:])])
    arc = []
    for i, (middle, _) in enumerate(parts[:n_questions]):
        answer = i % 4
        ends = [parts[(i + step - answer) % len(parts)][1] for step in range(4)]
        options = {"text": ends, "label": list("ABCD")}
        arc.append({"question": middle, "choices": options, "answerKey": "ABCD"[answer]})
    page = [{"page": [page for page in pages if page.strip()][FIRST % 60][:1800]}]
    return {"lambada": passages, "wikitext": page, "arc": arc}


def write_tasks(folder, records):
    """Write data files, and harness tasks that read them; return the names of the tasks."""
    harness_tasks = Path(find_spec("lm_eval").origin).parent / "tasks"
    for name, lines in records.items():
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        task = {
            "include": str(harness_tasks / TASKS[name]),
            "task": name,
            "tag": [],
            "dataset_path": "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {"test": str(file)}},
            "training_split": None,
            "validation_split": None,
            "test_split": "test",
        }
        (folder / f"{name}.yaml").write_text(json.dumps(task), encoding="utf-8")
    return [*records]


def evaluate(model, folder, names):
    """Evaluate the tasks with the harness. Returns the numbers by task and metric."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    # Without the harness's own tasks, whose 13,000 files take 10 seconds to read.
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    with patch("lm_eval.evaluator.add_env_info"):  # runs commands for three seconds
        evaluation = lm_eval.simple_evaluate(
            model=model, tasks=names, task_manager=manager, bootstrap_iters=0
        )
    return {
        f"{task} {name.removesuffix(',none')}": value
        for task, numbers in evaluation["results"].items()
        for name, value in numbers.items()
        if name.endswith(",none") and isinstance(value, float)
    }


def greedy_texts(model, prompts):
    """Continue each prompt greedily, up to an empty line or a quotation mark."""
    from lm_eval.api.instance import Instance

    options = {"until": ["\n\n", "“"], "max_gen_toks": 8, "do_sample": False}
    requests = [
        Instance("generate_until", {}, (prompt, dict(options)), i)
        for i, prompt in enumerate(prompts)
    ]
    return model.generate_until(requests, disable_tqdm=True)


# Wrong answers come from three other passages: with fewer than four, answers would be tied.
# By default, the first client asks no pages, and the second no questions.
FEW = (4, 2, ["lambada", "arc"], ["lambada", "wikitext"])
MANY = pytest.param((8, 8, [*TASKS], [*TASKS]), marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[FEW, MANY], ids=["few", "many"])
def evaluations(request, data, tmp_path_factory):
    """The numbers and texts in transformers, and on the server with 1 and 8 requests at a time.

    The tokenizer is that of transformers with 1 request at a time, else the server's own.
    """
    from lm_eval.models.huggingface import HFLM
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    limit, n, *tasks = request.param
    model, records = str(CHECKOUT / "weights"), read_records(data, limit, n)
    folder = tmp_path_factory.mktemp("tasks")
    names = write_tasks(folder, records)
    # The client cuts long texts into windows that are two ids shorter than its max_length.
    peer = HFLM(model, dtype="float32", device="cpu", batch_size=1, max_length=CONTEXT - 2)
    prompts = [passage["text"] for passage in records["lambada"][:n]]
    with running_server(folder, "--model", "bundled") as server:
        ours = [
            LocalCompletionsAPI(
                base_url=f"{server.url}/v1/completions",
                model="bundled",
                tokenizer_backend="huggingface" if tokenizer else "remote",
                tokenizer=tokenizer,
                num_concurrent=n,
                max_length=CONTEXT,
                max_retries=1,
            )
            for tokenizer, n in ((model, 1), (None, 8))
        ]
        runs = zip((peer, *ours), (names, *tasks), strict=True)
        return [(evaluate(lm, folder, some), greedy_texts(lm, prompts)) for lm, some in runs]


def test_numbers_and_texts_are_equal(evaluations):
    (theirs, texts), *ours = evaluations
    assert {name for numbers, _ in ours for name in numbers} == {*theirs} and len(theirs) == 7
    for numbers, found in ours:
        assert found == texts
        for name, value in numbers.items():
            tolerance = 0 if " acc" in name else 1e-5
            assert value == pytest.approx(theirs[name], rel=tolerance, abs=0), name
