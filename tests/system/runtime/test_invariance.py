"""A token's logits are the same, to the bit, however it is computed; threads and memory.

That holds where `small_kernels()`: OpenBLAS on AVX-512. Elsewhere they agree to rounding.
"""

import gc
import platform
import subprocess
import sys
import textwrap
import threading
import tracemalloc

import numpy as np
import pytest
from helpers.random_models import SHAPES, random_model

from gpt2np.kernels import matmul, packed_matrix
from gpt2np.kernels.blas import small_kernels
from gpt2np.model import last_token_indices


@pytest.fixture(
    scope="module",
    params=[
        "GPT-2 small's width",
        "small heads",
        "small heads, int8",
        pytest.param("GPT-2 XL's width", marks=pytest.mark.slow),
        pytest.param("GPT-2 small's width, int8", marks=pytest.mark.slow),
    ],
)
def model(request):
    shape, _, weights = request.param.partition(", ")
    return random_model(**SHAPES[shape], weight_dtype=weights or None)


@pytest.fixture(scope="module")
def texts(model):
    """Of 20 lengths, and the logits of each text as one prompt."""
    rng = np.random.default_rng(1)
    texts = [rng.integers(0, 1031, n) for n in rng.integers(2, 90, 20)]
    return texts, [model.forward([text]) for text in texts]


@pytest.mark.skipif(not small_kernels(), reason="this machine's BLAS has no small-matrix kernels")
class TestToTheBit:
    def test_one_token_at_a_time(self, model, texts):
        for text, expected in list(zip(*texts, strict=True))[::4]:
            cache = model.new_cache()
            rows = [model.forward([[i]], [cache])[0] for i in text[:25]]
            np.testing.assert_array_equal(rows, expected[:25])

    @pytest.mark.parametrize("size", [2, 5, 16, 20])
    def test_in_a_batch_of_any_size(self, model, texts, size):
        """Prompts together, then a token each, at different lengths."""
        some = [text for text in texts[0] if len(text) > 3][:size]
        expected = [logits for text, logits in zip(*texts, strict=True) if len(text) > 3][:size]
        caches = [model.new_cache() for _ in some]
        prompts = [text[:-2] for text in some]
        logits = model.forward(prompts, caches, logits_indices=last_token_indices(prompts))
        np.testing.assert_array_equal(logits, [rows[-3] for rows in expected])
        for at in (-2, -1):
            logits = model.forward([[text[at]] for text in some], caches)
            np.testing.assert_array_equal(logits, [rows[at] for rows in expected])

    @pytest.mark.parametrize("drafted", [3, 8, 16])
    def test_as_drafts(self, model, texts, drafted):
        for text, expected in list(zip(*texts, strict=True))[::4]:
            cache = model.new_cache()
            model.forward([text[:1]], [cache])
            for start in range(1, len(text), drafted):
                rows = model.forward([text[start : start + drafted]], [cache])
                np.testing.assert_array_equal(rows, expected[start : start + drafted])

    def test_long_texts_in_random_parts(self, model):
        rng = np.random.default_rng(2)
        text = rng.integers(0, 1031, 1100)  # three passes
        whole = model.forward([text])
        cuts = np.sort(rng.choice(np.arange(1, 1100), 6, replace=False))
        cache = model.new_cache()
        parts = [model.forward([part], [cache]) for part in np.split(text, cuts)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)

    def test_looking_changes_nothing(self, model, texts):
        for text, expected in list(zip(*texts, strict=True))[::2]:
            seen = model.forward([text], hook=lambda name, array: array)
            np.testing.assert_array_equal(seen, expected)


def test_threads_in_the_very_first_pass(monkeypatch):
    """While the weights are not laid out yet."""
    monkeypatch.setattr(packed_matrix, "_MIN_SHARED_SIZE", 0)
    monkeypatch.setattr(matmul, "MIN_SHARED_WORK", 0)
    for _ in range(5):
        model, answers = random_model(**SHAPES["small heads"]), []
        work = threading.Barrier(8, timeout=60)

        def first(number, model=model, answers=answers, work=work):
            work.wait()
            long = list(range(number % 2 * 100))  # every second thread lays the weights out
            answers.append(model.forward([[1, 2, 3], [4, *long]])[:3])

        threads = [threading.Thread(target=first, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(answers) == 8
        for logits in answers:
            np.testing.assert_allclose(logits, answers[0], atol=1e-5)


def test_float32_throughout(monkeypatch):
    """All operands and results of products, and all arrays that a hook sees."""
    from gpt2np.kernels import packed_matrix
    from gpt2np.runtime import context

    seen = set()

    product = matmul.matmul

    def watched(x, w, out=None):
        y = product(x, w, out=out)
        seen.update((x.dtype, w.dtype, y.dtype))
        return y

    for module in (context, packed_matrix, matmul):
        monkeypatch.setattr(module, "matmul", watched)
    model = random_model(**SHAPES["small heads"])
    cache = model.new_cache()
    model.forward([list(range(100))], [cache])
    model.forward([[5]], [cache], hook=lambda name, array: seen.add(array.dtype) or array)
    assert seen == {np.dtype(np.float32)}


def test_decoding_takes_no_new_memory():
    """Beside the logits that it returns, a step leaves nothing and asks the system for nothing."""
    resource = pytest.importorskip("resource")
    model = random_model(**SHAPES["GPT-2 small's width"] | {"n_layer": 1})
    cache = model.new_cache()
    model.forward([list(range(400))], [cache])
    cache.truncate(200)  # so that the steps find room that has been used before

    def decode(steps):
        for _ in range(steps):
            model.forward([[7]], [cache])

    def page_faults():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        decode(30)
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

    decode(20)
    gc.collect()
    tries = (page_faults() for _ in range(3))  # the kernel may move pages about, too
    faults = next((n for n in tries if n < 30), 30)
    tracemalloc.start()
    decode(3)
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    decode(20)
    after, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert faults < 30  # one a step
    assert after - before < 20_000 and peak - before < 1_000_000


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's malloc")
@pytest.mark.parametrize("processes", [1, 2])
def test_a_prompt_takes_no_new_memory(tmp_path, processes):
    """After the first ones; in a program that has let go of nothing large before."""
    random_model(**SHAPES["GPT-2 small's width"] | {"n_layer": 1}).save(tmp_path)
    program = f"""
        import resource
        from gpt2np.model import GPT2
        model = GPT2.from_folder({str(tmp_path)!r})
        model.processes = {processes}
        cache = model.new_cache()
        for _ in range(4):
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            model.forward([range(512)], [cache], logits_indices=[511])
            cache.truncate(0)
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    """
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert min(map(int, found.stdout.split()[2:])) < 300  # without that care 1,120 or more
