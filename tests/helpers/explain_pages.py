"""Prompts of the explain page; the arrays and logits of a description."""

from base64 import b64decode

import numpy as np

PROMPT = "Once upon a time there was a little fox, and the fox said: what a fine day"
LONG = "It was the best of times, it was the worst of times, it was the age of wisdom, it was "
MARKUP = "</script><script>window.hacked=1</script><img src=x onerror='hacked=2'>&lt;${x}$x"
SIGNS = "🦊👩\u200d🚀 שלום \u202eabc\x00\x1b[31m\r\n\tend\u2028\xad <!-- ]]>"


def decoded(array):
    return np.frombuffer(b64decode(array["base64"]), array["dtype"]).reshape(array["shape"])


def described_logits(lm, ids):
    """Return the last logits, from as many rows as a lens: without AVX-512, bits depend on them."""
    rows = [len(ids) - 1] * (lm.model.config.n_layer + 1)
    return lm.model.forward([ids], logits_indices=rows)[-1]
