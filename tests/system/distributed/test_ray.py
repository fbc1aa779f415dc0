"""The three jobs on Ray: the results of the plain commands, up to rounding."""

import json
import os
import random
import signal
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers.command_line import run_here
from helpers.equal_results import assert_equal_results
from helpers.paths import CHECKOUT

from gpt2np import GPT2NPError, InvalidArgumentError, LanguageModel
from gpt2np.data.options import ScoreOptions
from gpt2np.distributed.cluster import Cluster, map_on_cluster
from gpt2np.distributed.jobs import ModelArguments, continue_on_ray, score_on_ray
from gpt2np.evaluation.corpus import score_corpus
from gpt2np.kernels.blas import small_kernels
from gpt2np.prompts import continue_file
from gpt2np.runtime.options import ModelOptions
from gpt2np.tokenizer.dataset import encode_dataset

SOURCE = ModelArguments(ModelOptions("bundled"))
QUANTIZED = ModelArguments(ModelOptions("bundled", weights="int8"))


@pytest.fixture(scope="module")
def ray():
    pytest.importorskip("ray.data", reason="needs Ray: pip install gpt2np[ray]")
    return pytest.importorskip("ray")


@pytest.fixture(scope="module")
def local_cluster(ray, request):
    """Ray on this machine, with one CPU or `param` CPUs whatever the machine has."""
    options = {"log_to_driver": False, "include_dashboard": False}
    # Each of these processes, and a worker before the first is needed, takes a second of CPU time.
    options["_system_config"] = {"prestart_worker_first_driver": False}
    with pytest.MonkeyPatch.context() as patch:
        for name in ("api_server", "monitor", "log_monitor"):
            patch.setattr(f"ray._private.node.Node.start_{name}", lambda *_, **__: None)
        ray.init("local", num_cpus=getattr(request, "param", 1), **options)
    yield
    ray.shutdown()


def write_corpus(folder, n_files, n_documents):
    rng, files = random.Random(1), []
    words = ["the", "king", "fox", "was", "old", "and", "ran", "to", "a", "house,", "no.", "é🦊"]
    for i in range(n_files):
        texts = [" ".join(rng.choices(words, k=rng.randrange(2, 90))) for _ in range(n_documents)]
        lines = [json.dumps({"text": text}) for text in texts]
        lines[2] = '{"text": 3}'
        files.append(folder / f"{i}.jsonl")
        files[-1].write_text("\n".join(lines))
    return files


def read_json_lines(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_a_command(local_cluster, tmp_path):
    files = write_corpus(tmp_path, 2, 12)
    for name, more in (("plain.jsonl", []), ("ray.jsonl", ["--workers", "1", "--ray"])):
        out = ["--out", tmp_path / name, "--model", "bundled"]
        done = run_here("score", *files, *out, *more)
        assert done.returncode == 1 and "skipped" in done.stderr, done.stderr  # a broken document
    plain, on_ray = (read_json_lines(tmp_path / name) for name in ("plain.jsonl", "ray.jsonl"))
    assert_equal_results(on_ray, plain)


def test_a_missing_token(ray, monkeypatch):
    """Ray itself raises an AuthenticationError here, or tries for 20 s and does not say why."""

    def fail(*arguments, **options):
        raise ConnectionError("Failed to connect to Ray cluster at x")

    monkeypatch.setattr(ray, "init", fail)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    hint = r"copy ~/\.ray/auth_token from its first node, and set RAY_AUTH_MODE=token"
    with pytest.raises(GPT2NPError, match=f"Failed to connect to Ray cluster at .*{hint}"):
        Cluster("x").connect()


@pytest.mark.slow
@pytest.mark.parametrize("local_cluster", [2], indirect=True)
def test_the_jobs(local_cluster, lm, tmp_path, monkeypatch):
    """The same bytes on one worker and on two, and, with small-matrix kernels, without Ray.

    Elsewhere the last digits of scores depend on the number of threads and on the batches, and
    workers have one thread each and batches of the usual size.
    """
    quantized = LanguageModel.load("bundled", weights="int8")
    monkeypatch.setattr("gpt2np.evaluation.corpus.BATCH_SIZE", 2000)
    files = write_corpus(tmp_path, 3, 12)
    prompts = tmp_path / "p.txt"
    prompts.write_text("".join(f"The king {i}\n" for i in range(70)))
    scoring, options = ScoreOptions(tokens=True), {"seed": 5, "max_new_tokens": 4}
    texts = tmp_path / "texts.txt"
    texts.write_text("One fox.<|endoftext|>Two kings." * 99)
    jobs = {
        "s.jsonl": (
            partial(score_corpus, quantized, files, options=scoring),
            lambda cluster: score_on_ray(QUANTIZED, scoring, files, cluster),
        ),
        "e.npz": (
            partial(encode_dataset, [texts, prompts], tokenizer=lm.tokenizer),
            lambda cluster: {"map_items": partial(map_on_cluster, cluster=cluster)},
        ),
        "g.jsonl": (
            partial(continue_file, lm, prompts, options=options),
            lambda cluster: {"run": continue_on_ray(SOURCE, prompts, options, None, cluster)},
        ),
    }
    for name, (job, on_ray) in jobs.items():
        job(out=tmp_path / name)
        outs = [tmp_path / f"{n}.{name}" for n in ((1, 2) if name == "s.jsonl" else (2,))]
        for workers, out in zip((1, 2)[-len(outs) :], outs, strict=True):
            job(out=out, **on_ray(Cluster(workers=workers)))
        for out in outs[1:]:
            assert out.read_bytes() == outs[0].read_bytes(), name
        if small_kernels() or name != "s.jsonl":
            assert outs[0].read_bytes() == (tmp_path / name).read_bytes(), name
        else:
            assert_equal_results(*(read_json_lines(file) for file in (outs[0], tmp_path / name)))
    with pytest.raises(InvalidArgumentError, match="cpus_per_worker is 9, but the cluster has 2"):
        list(map_on_cluster(object, [1], Cluster(cpus_per_worker=9)))


def test_another_model_on_a_worker():
    with pytest.raises(GPT2NPError, match=r"the worker on .* loads another model, bundled in"):
        replace(SOURCE, fingerprint="other").load()


def test_an_error_of_a_worker_is_one_line(local_cluster):
    def make():
        return lambda item: 1 // item

    with pytest.raises(GPT2NPError, match="the work on Ray has failed: integer division"):
        list(map_on_cluster(make, [1, 0], Cluster(workers=1)))


def test_the_class_of_the_guide_adds_a_column(ray, lm):
    """docs/guide/corpora.md, with a block of two rows, passed on as by Ray's `map_batches`."""
    from ray.data.block import BlockAccessor

    guide = (CHECKOUT / "docs/guide/corpora.md").read_text(encoding="utf-8")
    code = guide.partition("**Object storage.**")[2].partition("```python\n")[2].partition("```")[0]
    names: dict = {}
    exec(code.partition("ds = ")[0], names)
    texts = ["The king was old.", "A fox ran."]
    batch = BlockAccessor.for_block(BlockAccessor.batch_to_block({"text": np.array(texts)}))
    block = BlockAccessor.batch_to_block(names["Scorer"]("bundled")(batch.to_batch_format("numpy")))
    rows = BlockAccessor.for_block(block).iter_rows(public_row_format=True)
    found = {row["text"]: row["log_probability"] for row in rows}
    assert found == {text: pytest.approx(lm.score(text).total, rel=1e-6) for text in texts}


@pytest.mark.slow
def test_two_nodes_and_a_killed_worker(ray, lm, tmp_path, monkeypatch):
    """Each item that names a new marker file kills its worker once; Ray repeats only this item."""
    from ray.cluster_utils import Cluster as LocalNodes

    ray.shutdown()
    nodes = LocalNodes(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    try:
        ray.init(address=nodes.address, log_to_driver=False)
        cluster = Cluster(workers=2)

        def make():
            def work(item):
                marker = tmp_path / f"{item}"
                with (tmp_path / "log").open("a") as log:
                    log.write(f"{item}\n")
                if item in (3, 7) and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return item * item, ray.get_runtime_context().get_node_id()

            return work

        found = list(map_on_cluster(make, range(12), cluster))
        assert [(item, square) for item, (square, _) in found] == [(i, i * i) for i in range(12)]
        log = sorted(map(int, (tmp_path / "log").read_text().split()))
        assert {*log} == {*range(12)} and log.count(3) >= 2 and log.count(7) >= 2
        files = write_corpus(tmp_path, 2, 60)
        score_corpus(lm, files, tmp_path / "whole.jsonl")
        elsewhere = score_on_ray(SOURCE, ScoreOptions(), files, cluster)
        score_corpus(lm, files, tmp_path / "o.jsonl", **elsewhere)
        assert_equal_results(*(read_json_lines(tmp_path / f"{n}.jsonl") for n in ("o", "whole")))
    finally:
        ray.shutdown()
        nodes.shutdown()
