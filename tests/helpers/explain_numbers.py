"""The numbers that the tables of an explain page must show, computed from a plain forward pass."""

import numpy as np

from gpt2np.benchmark.counts import block_parameters, prefill_flops
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampling import next_probabilities
from gpt2np.interp import logit_lens
from gpt2np.model import GPT2

SETTINGS = ((1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 40, 1.0), (1.0, 0, 0.9), (0.8, 40, 0.95))


def forward(model, ids):
    """Every hook point of a forward pass, recorded without gpt2np.interp."""
    arrays = {}

    def keep(name, array):
        arrays[name] = array.copy()
        return array

    model.forward([ids], hook=keep)
    return arrays


def softmax64(logits):
    raised = np.exp(np.float64(logits) - np.float64(logits).max(-1, keepdims=True))
    return raised / raised.sum(-1, keepdims=True)


class Expected:
    """The numbers of each table by its class, as rows; one method for each kind."""

    def __init__(self, lm, ids):
        self.lm, self.model, self.ids = lm, lm.model, ids
        self.config, self.weights = lm.model.config, lm.model.weights
        self.points = forward(self.model, ids)
        residuals = [self.points[f"blocks.{i}.resid"] for i in range(self.config.n_layer)]
        self.residuals = np.stack([self.points["embed"], *residuals])  # (L+1, N, C)

    def embedding(self):
        wte = np.float64(self.weights["wte.weight"])
        wte /= np.linalg.norm(wte, axis=1, keepdims=True)
        cosines = wte[self.ids] @ wte.T
        cosines[np.arange(len(self.ids)), self.ids] = -2
        lengths = np.linalg.norm(np.float64(self.residuals), axis=2).T
        return {"nearest": -np.sort(-cosines, axis=1)[:, :6], "lengths": lengths}

    def block(self, layer, line):
        return {"looks": self.points[f"blocks.{layer}.attn.pattern"][:, line, : line + 1].T}

    def norm(self, layer, line):
        """The columns of the layer norm's table, and the mean and variance that are said."""
        x = np.float64(self.residuals[layer][line])
        normalized = (x - x.mean()) / np.sqrt(x.var() + self.config.layer_norm_epsilon)
        columns = [x, normalized, self.points[f"blocks.{layer}.ln_1"][line]]
        return np.stack(columns), [x.mean(), x.var()]

    def score(self, layer, line, head, key):
        attn = f"blocks.{layer}.attn"
        q = self.points[f"{attn}.q"][head, line]
        k = self.points[f"{attn}.k"][head, : line + 1]
        scale = self.config.attention_scale(layer)
        total = np.float64(k[key]) @ np.float64(q)
        share = self.points[f"{attn}.pattern"][head, line, key]
        return np.stack([q, k[key], q * k[key]]), [total, scale, total * scale, share]

    def neurons(self, layer, line):
        act = self.points[f"blocks.{layer}.mlp.act"][line]
        output = np.float64(self.weights[f"h.{layer}.mlp.c_proj.weight"])
        lengths = np.abs(act) * np.linalg.norm(output, axis=1)
        neurons = np.argsort(-lengths, kind="stable")[:10]
        return {"neurons": np.stack([act, lengths], axis=1)[neurons]}

    def lens(self, line):
        logits = logit_lens(self.model, self.residuals[:, line])
        answer = logits[-1].argmax()
        probabilities = softmax64(logits)
        best = -np.sort(-probabilities, axis=1)
        ranks = 1 + (logits > logits[:, [answer]]).sum(1)
        columns = [best[:, 0], probabilities[:, answer], ranks, *best[:, 1:5].T]
        return {"lens": np.stack(columns, axis=1)}

    def sampling(self, line):
        logits = self.points["logits"][line]
        probabilities = softmax64(logits)
        order = np.argsort(-logits, kind="stable")[:20]
        rows = [[logits[i], probabilities[i], probabilities[i]] for i in order]
        rest = 1 - probabilities[order].sum()
        settings = [self._setting(logits, *each) for each in SETTINGS]
        return {"next": [*rows, [rest, rest]], "common": settings}

    def _setting(self, logits, temperature, top_k, top_p):
        options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        sampled = next_probabilities(logits, options)
        kept = softmax64(np.float64(logits) / temperature)[sampled > 0].sum()
        return [np.count_nonzero(sampled), kept, 1 - kept, sampled.max()]

    def generation(self, steps):
        """The tables of the continuation; that of the cache without its measurements."""
        ids, config = list(self.ids), self.config
        tops, cache = [], []
        for step in range(steps):
            n = len(ids)
            probabilities = softmax64(self.model.forward([ids], logits_indices=[n - 1])[0])
            tops.append(-np.sort(-probabilities)[:5])
            whole = prefill_flops(config, n)
            one = whole - prefill_flops(config, n - 1) if n > 1 else whole
            # A prefill's last block computes one row only, which cancels out in the difference.
            one += 2 * (block_parameters(config) - 2 * config.n_embd**2)
            one += 2 * config.vocab_size * config.n_embd + 4 * config.n_embd * (n - 1)
            cache.append([8 * n * config.n_embd * config.n_layer, one if step else whole, whole])
            ids.append(int(probabilities.argmax()))
        return {"steps": tops, "cache": cache}

    def model_tables(self):
        config, n = self.config, len(self.ids)
        counts = [[array.size] for array in self.weights.values()]
        total = sum(array.size for array in self.weights.values())
        double = {name: np.float64(array) for name, array in self.weights.items()}
        reference = forward(GPT2(config, double), self.ids)
        logits = np.abs(self.points["logits"] - reference["logits"])
        p = np.abs(softmax64(self.points["logits"]) - softmax64(reference["logits"]))
        c, f, layers = config.n_embd, config.n_inner, config.n_layer
        products = [(n, c, 3 * c), (n, c, c), (n, c, f), (n, f, c)]  # rows, inputs, outputs
        qkv, out, pre, proj = (2 * layers * np.prod(sizes) for sizes in products)
        pairs = 2 * np.tril(np.ones((n, n))).sum() * c * layers
        flops = [qkv, pairs, pairs, out, pre, proj, 2 * n * c * config.vocab_size]
        return {
            "tensors": [*counts, [total]],
            "precision": [[logits.max(), logits.mean()], [p.max(), p.mean()]],
            "flops": flops,
        }
