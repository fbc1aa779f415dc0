"""The same text in another process, and by several processes."""

import json
import multiprocessing
import subprocess
import sys

from gpt2np import LanguageModel
from gpt2np.interp import zero_head

SCRIPT = """
import json, sys
from gpt2np import LanguageModel
lm = LanguageModel.load(sys.argv[1])
options = {"max_new_tokens": 25, "temperature": 1.2, "top_p": 0.95}
best = lm.generate("The king", num_return_sequences=2, seed=11, **options)
print(json.dumps([best.ids, best.alternatives[0].ids]))
"""


def test_the_same_seed_again_and_in_another_process(bundled):
    process = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(bundled)], capture_output=True, check=True, timeout=120
    )
    lm = LanguageModel.load(bundled)
    options = {"max_new_tokens": 25, "temperature": 1.2, "top_p": 0.95}
    here = [lm.generate("The king", seed=seed, **options).ids for seed in (11, 12)]
    assert here == [lm.generate("The king", seed=seed, **options).ids for seed in (11, 12)]
    assert json.loads(process.stdout) == here and here[0] != here[1]


def ablated(lm, hook):
    options = {"max_new_tokens": 8, "temperature": 0.0}
    return lm.generate("The queen said that", interventions=hook, **options).ids


def test_interventions_travel_to_another_process(lm):
    hook = zero_head(3, 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ablated, (lm, hook)) == ablated(lm, hook)
