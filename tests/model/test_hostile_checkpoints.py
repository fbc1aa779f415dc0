"""Checkpoints from somebody who means harm: each is refused in one line, or it is what it says."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import save_reference
from hostile_files import HAND_MADE, SHAPE
from load_watched import digest
from mutations import as_it_should_be, mutate

LOAD_WATCHED = Path(__file__).parent / "load_watched.py"
SEED, MUTANTS = 4, 3000
SECONDS, BYTES = 1.0, 200 << 20  # that a folder may take

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is watched in /proc")


def load_watched(folders):
    """What came of each of [(folder, whether with its tokenizer)], loaded in a fresh process."""
    done = subprocess.run(
        [sys.executable, str(LOAD_WATCHED)],
        input=json.dumps([[str(folder), whole] for folder, whole in folders]),
        capture_output=True,
        text=True,
        timeout=10 + len(folders),
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(results) < len(folders):
        last = folders[min(len(results), len(folders) - 1)][0]
        pytest.fail(f"ended with {done.returncode} at {last}: {done.stderr[-2000:]}")
    assert done.stderr == ""
    return results


@pytest.fixture(scope="module")
def bases(tmp_path_factory, bundled):
    """Sound checkpoints in three formats, which the tests then break."""
    import torch

    folders = {}
    for dtype, shards in (("float32", "1GB"), ("float16", "1KB"), ("bfloat16", "1GB")):
        folder = folders[dtype] = tmp_path_factory.mktemp(dtype)
        model = save_reference(folder, **SHAPE)
        (folder / "model.safetensors").unlink()
        model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=shards)
        for file in ("vocab.json", "merges.txt"):
            shutil.copy(bundled / file, folder)
    assert len(list(folders["float16"].glob("model-*.safetensors"))) > 2
    return folders


@pytest.fixture(scope="module")
def outcomes(bases, tmp_path_factory):
    """Name of the case → what came of loading it."""
    root = tmp_path_factory.mktemp("hand-made")
    folders = []
    for number, case in enumerate(HAND_MADE.values()):
        folder = root / str(number) / "model"
        shutil.copytree(bases[case.base], folder)
        case.change(folder)
        folders.append((folder, case.whole))
    results = load_watched(folders)
    yield {name: r | {"folder": f} for name, r, (f, _) in zip(HAND_MADE, results, folders, strict=True)}
    shutil.rmtree(root)


@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made(outcomes, name):
    
    outcome, case = outcomes[name], HAND_MADE[name]
    if case.message is None:
        assert "error" not in outcome, outcome
        return
    assert outcome.get("error") == case.error, {k: str(v)[:600] for k,v in outcome.items()}
    assert re.search(case.message, outcome["message"]), outcome["message"][:1000]
    assert outcome["message"].isprintable() and len(outcome["message"]) < 3000, outcome["message"][:1000]
    assert outcome["seconds"] < SECONDS, outcome["seconds"]
    assert outcome["bytes"] < BYTES, outcome["bytes"]


@pytest.fixture(scope="module")
def mutants(bases, tmp_path_factory):
    """(what was done, folder, what came of loading it) for each of many damaged checkpoints."""
    rng, root = random.Random(SEED), tmp_path_factory.mktemp("mutants")
    folders, done = [], []
    for number in range(MUTANTS):
        base = bases[rng.choice(list(bases))]
        folder = root / str(number)
        shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.txt", "vocab.json"))
        done.append(f"{number}: {mutate(folder, rng)} of {base.name}")
        folders.append((folder, False))
    results = load_watched(folders)
    return [(d, f, r) for d, (f, _), r in zip(done, folders, results, strict=True)]


def test_mutants(mutants):
    wrong = []
    counts = {}
    for done, folder, outcome in mutants:
        try:
            expected = as_it_should_be(folder, digest)
        except Exception as error:
            expected = repr(error)[:200]
        if outcome.get("error") not in (None, "CheckpointError"):
            wrong.append(f"{done}: {outcome}"[:500])
        elif "error" not in outcome:
            if isinstance(expected, str) or outcome["weights"] != expected["weights"] or any(outcome["config"][k] != v for k, v in expected["config"].items()):
                wrong.append(f"{done}: loaded, but {str(expected)[:200]} {outcome['config']}")
            counts["loaded"] = counts.get("loaded", 0)+1
        else:
            if not isinstance(expected, str): wrong.append(f"{done}: REFUSED {outcome['message']}")
            counts["refused"] = counts.get("refused", 0)+1
    print(counts)
    assert not wrong, "\n".join(wrong)
