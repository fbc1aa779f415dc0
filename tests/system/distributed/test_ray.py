"""The three jobs on Ray: the files of the plain commands, byte for byte, also after kills."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import gpt2np.distributed
from gpt2np import InvalidArgumentError, LanguageModel
from gpt2np.distributed import Cluster
from gpt2np.distributed.jobs import ModelSource, continue_on_ray, encode_on_ray, score_on_ray
from gpt2np.evaluation.corpus import ScoreOptions, score_corpus
from gpt2np.prompts.job import continue_file
from gpt2np.tokenizer.dataset import encode_dataset

ray = pytest.importorskip("ray", reason="needs Ray: pip install gpt2np[ray]")

SOURCE = ModelSource("bundled")


@pytest.fixture(scope="module")
def local_cluster():
    """Ray on this machine, with two CPUs whatever the machine has."""
    ray.init(num_cpus=2, log_to_driver=False, include_dashboard=False)
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


def test_the_jobs(local_cluster, lm, tmp_path, monkeypatch):
    quantized = LanguageModel.load("bundled", weights="int8")
    monkeypatch.setattr("gpt2np.evaluation.corpus.BATCH_SIZE", 2000)
    files = write_corpus(tmp_path, 3, 12)
    prompts = tmp_path / "p.txt"
    prompts.write_text("".join(f"The king {i}\n" for i in range(70)))
    scoring, options = ScoreOptions(tokens=True), {"seed": 5, "max_new_tokens": 4}
    texts = tmp_path / "texts.txt"
    texts.write_text("One fox.<|endoftext|>Two kings." * 99)

    def to_json(completion):  # local functions are pickled by value: workers lack this module
        return {"ids": completion.ids, "seed": completion.seed}

    def make_to_json(lm):
        return to_json

    jobs = {
        "s.jsonl": (
            partial(score_corpus, quantized, files, options=scoring),
            lambda cluster: score_on_ray(replace(SOURCE, weights="int8"), scoring, cluster),
        ),
        "e.npz": (
            partial(encode_dataset, [texts, prompts], tokenizer=lm.tokenizer),
            lambda cluster: encode_on_ray(lm.tokenizer, "text", False, cluster),
        ),
        "g.jsonl": (
            partial(continue_file, lm, prompts, to_json=to_json, options=options),
            lambda cluster: continue_on_ray(SOURCE, prompts, make_to_json, options, cluster),
        ),
    }
    for name, (job, on_ray) in jobs.items():
        job(out=tmp_path / name)
        for workers in (1, 2) if name == "s.jsonl" else (2,):
            out = tmp_path / f"{workers}.{name}"
            job(out=out, run=on_ray(Cluster(workers=workers)))
            assert out.read_bytes() == (tmp_path / name).read_bytes(), (name, workers)
    with pytest.raises(InvalidArgumentError, match="cpus_per_worker is 9, but the cluster has 2"):
        Cluster(cpus_per_worker=9).actor_options()


def test_datasets(local_cluster, lm):
    texts = [f"The king number {i} was old." for i in range(9)]
    ds = ray.data.from_items([{"text": text, "index": i} for i, text in enumerate(texts)])
    cluster = Cluster(workers=1)
    scored = gpt2np.distributed.score(ds, "bundled", cluster=cluster)
    made = gpt2np.distributed.encode(scored, "bundled", cluster=cluster)
    options = {"seed": 7, "max_new_tokens": 3, "field": "text"}
    made = gpt2np.distributed.generate(made, "bundled", cluster=cluster, **options)
    rows = sorted(made.take_all(), key=lambda row: row["index"])
    assert [row["text"] for row in rows] == texts
    for row, text in zip(rows, texts, strict=True):
        assert row["log_probability"] == lm.score(text).total
        assert np.array_equal(row["ids"], lm.tokenizer.encode(text))
        completion = lm.generate(text, seed=7 + row["index"], max_new_tokens=3)
        assert list(row["completion_ids"]) == completion.ids


def score_command(files, out, *arguments):
    command = [sys.executable, "-m", "gpt2np", "score", *map(str, files), "--out", str(out)]
    return [*command, "--model", "bundled", *arguments]


@pytest.mark.slow
def test_the_driver_is_killed(tmp_path):
    """Ray is started by the driver and dies with it, so this kills the whole cluster, too."""
    files = write_corpus(tmp_path, 3, 400)
    subprocess.run(score_command(files, tmp_path / "whole.jsonl"), check=False)
    command = score_command(files, tmp_path / "o.jsonl", "--workers", "2", "--ray")
    rng, kills = random.Random(2), 0
    for _ in range(10):
        process = subprocess.Popen(command, start_new_session=True)
        time.sleep(rng.uniform(5, 30))
        kills += process.poll() is None
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=False)
    assert kills > 1
    assert (tmp_path / "o.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


@pytest.mark.slow
def test_two_nodes_and_a_killed_worker(lm, tmp_path, monkeypatch):
    """Each item that names a new marker file kills its worker once; Ray repeats the item."""
    from ray.cluster_utils import Cluster as LocalNodes

    from gpt2np.distributed.workers import map_in_order

    ray.shutdown()
    nodes = LocalNodes(initialize_head=True, head_node_args={"num_cpus": 1})
    nodes.add_node(num_cpus=1)
    try:
        ray.init(address=nodes.address, log_to_driver=False)
        cluster = Cluster(workers=2)

        def make():
            def work(item):
                marker = tmp_path / f"{item}"
                if item in (3, 7) and not marker.exists():
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return item * item, ray.get_runtime_context().get_node_id()

            return work

        readers = [partial(range, 0, 6), partial(range, 6, 12)]
        found = list(map_in_order(readers, make, cluster))
        assert [(item, square) for item, (square, _) in found] == [(i, i * i) for i in range(12)]
        assert {"3", "7"} <= {path.name for path in tmp_path.iterdir()}
        files = write_corpus(tmp_path, 2, 60)
        score_corpus(lm, files, tmp_path / "whole.jsonl")
        run = score_on_ray(SOURCE, ScoreOptions(), cluster)
        score_corpus(lm, files, tmp_path / "o.jsonl", run=run)
        assert (tmp_path / "o.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    finally:
        ray.shutdown()
        nodes.shutdown()
