"""Malicious and damaged checkpoints: a one-line error, or exactly the declared weights."""

import random
import re
import shutil
import signal
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

if sys.platform != "linux":
    pytest.skip("makes FIFOs and links, and sets an alarm", allow_module_level=True)

from helpers.hostile_files import HAND_MADE, LN_F, SHAPE
from helpers.mutations import mutate, read_with_safetensors
from helpers.references import save_reference

from gpt2np import GPT2, CheckpointError, GPT2Config, GPT2NPError, LanguageModel
from gpt2np.checkpoint.config import weight_shapes
from gpt2np.checkpoint.load import read_checkpoint
from gpt2np.checkpoint.safetensors_file import read_tensors

SEED = 4
SECONDS = 10  # for loading one folder
VOCABULARY = shutil.ignore_patterns("vocab.json", "merges.txt")  # needed by few tests
MAX_MESSAGE = 3000  # characters
MAX_BYTES = 200 << 20  # of Python and NumPy while a folder is loaded


@pytest.fixture(autouse=True)
def alarm():
    def fail(*_):
        pytest.fail(f"more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def load(folder, whole=False):
    """Return the model, or the error, whose message must be one line; in little memory."""
    tracemalloc.start()
    try:
        return LanguageModel.load(folder).model if whole else GPT2.from_folder(folder)
    except GPT2NPError as error:
        assert str(error).isprintable() and len(str(error)) < MAX_MESSAGE
        return error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MAX_BYTES


@pytest.fixture(scope="module")
def bases(tmp_path_factory, bundled):
    """Valid checkpoints in three formats, for the tests to break."""
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


def broken(name, bases, tmp_path):
    """Return the folder of a case, apart from the folders that it may name."""
    case, folder = HAND_MADE[name], tmp_path / "parent" / "model"
    shutil.copytree(bases[case.base], folder, ignore=None if case.whole else VOCABULARY)
    case.change(folder)
    return folder


@pytest.mark.filterwarnings("error")  # a warning would be a second line on stderr
@pytest.mark.parametrize("name", HAND_MADE)
def test_hand_made(bases, tmp_path, name):
    case, folder = HAND_MADE[name], broken(name, bases, tmp_path)
    found = load(folder, case.whole)
    if case.message is None:
        assert isinstance(found, GPT2)
    else:
        assert type(found).__name__ == case.error, found
        assert re.search(case.message, str(found))


@pytest.mark.parametrize(("name", "value"), [("weights nan", np.nan), ("weights inf", np.inf)])
def test_weights_that_are_no_numbers_are_loaded_as_they_are(bases, tmp_path, name, value):
    sound = read_with_safetensors(bases["float32"])
    changed = {LN_F.removeprefix("transformer."): np.full(8, value, np.float32)}
    assert_equal_weights(load(broken(name, bases, tmp_path)).weights, sound | changed)


def assert_equal_weights(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_mutant_is_refused_or_loaded_as_safetensors_reads_it(bases, tmp_path, count):
    """Weights that are loaded have safetensors' values and the shapes of the config."""
    rng, loaded = random.Random(SEED), 0
    for number in range(count):
        signal.alarm(SECONDS)
        base, folder = rng.choice(list(bases)), tmp_path / str(number)
        shutil.copytree(bases[base], folder, ignore=VOCABULARY)
        done = f"number {number}, {base}: {mutate(folder, rng)}"
        found = load(folder)
        if isinstance(found, GPT2):
            weights = read_with_safetensors(folder)
            assert_equal_weights(found.weights, weights)
            shapes = weight_shapes(GPT2Config.from_file(folder / "config.json"))
            stored = {name: array.shape for name, array in weights.items()}
            shapes |= {name: stored[name] for name in stored.keys() & {"lm_head.weight"}}
            assert stored == shapes, done
            loaded += 1
        else:
            assert isinstance(found, CheckpointError), f"{done}: {found!r}"
        shutil.rmtree(folder)
    assert count / 5 < loaded < count / 2  # 25 of the first 100 are sound


@pytest.mark.parametrize("base", ["float32", "bfloat16"])  # mapped and converted
@pytest.mark.parametrize("keep", [0, 4000, -1])
def test_a_file_that_is_cut_after_its_header_was_read(bases, tmp_path, base, keep):
    shutil.copytree(bases[base], tmp_path / "model")
    checkpoint = read_checkpoint(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"is truncated|cannot map"):
        GPT2(checkpoint.config, read_tensors(checkpoint.model_tensors(), np.float32))


def test_nothing_is_unpickled_from_start_to_text(bundled):
    """Unpickling raises an audit event for every class that the pickle names."""
    program = """
import pickle, sys
seen = []
sys.addaudithook(lambda event, arguments: seen.append(event) if event.startswith("pickle.") else 0)
import gpt2np
gpt2np.load(sys.argv[1]).generate("Once", max_new_tokens=3, seed=1)
print(len(seen))
pickle.loads(pickle.dumps(gpt2np.GPT2))
print(len(seen))
"""
    command = [sys.executable, "-c", program, str(bundled)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "1"]
