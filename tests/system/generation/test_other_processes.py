"""The same text in another process."""

import multiprocessing

from gpt2np.interp import zero_head


def ablated(lm, hook):
    options = {"max_new_tokens": 8, "temperature": 0.0}
    return lm.generate("The queen said that", interventions=hook, **options).ids


def test_interventions_travel_to_another_process(lm):
    hook = zero_head(3, 2)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(ablated, (lm, hook)) == ablated(lm, hook)
