"""A parser for the explain page, and the same numbers from the library."""

import base64
import json
from html.parser import HTMLParser

import numpy as np

from gpt2np.benchmark.counts import block_parameters, prefill_flops
from gpt2np.explain.output import SETTINGS
from gpt2np.generation import GenerationOptions, next_probabilities
from gpt2np.interp import logit_lens
from gpt2np.model import GPT2


class PageReader(HTMLParser):
    """Numbers, functions, links and texts of a page.

    Attributes:
        numbers: (array name, index, all digits, displayed text) of every `data` element with a
            source.
        functions: (name, file) of every function named in "Computed by".
        links: values of href and src.
        tags: (name, attributes) of every element.
        prompt: text of the prompt's element.
        scripts: contents of the script elements.
    """

    def __init__(self, page):
        super().__init__()
        self.numbers, self.functions, self.links, self.tags = [], [], [], []
        self.prompt, self.scripts = "", []
        self._open = None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append((tag, attributes))
        self.links += [attributes[name] for name in ("src", "href") if name in attributes]
        if "data-function" in attributes:
            self.functions.append((attributes["data-function"], attributes["data-file"]))
        if "data-of" in attributes:
            index = tuple(int(i) for i in attributes["data-at"].split(",") if i)
            self.numbers.append([attributes["data-of"], index, attributes["value"], ""])
            self._open = "number"
        elif tag == "pre":
            self._open = "prompt"
        elif tag == "script":
            self.scripts.append("")
            self._open = "script"

    def handle_endtag(self, tag):
        if tag in ("data", "pre", "script"):
            self._open = None

    def handle_data(self, data):
        if self._open == "number":
            self.numbers[-1][3] += data
        elif self._open == "prompt":
            self.prompt += data
        elif self._open == "script":
            self.scripts[-1] += data

    @property
    def content(self):
        """The JSON data of the page's script."""
        return json.loads(self.scripts[0])

    @property
    def arrays(self):
        """The arrays embedded in the page."""
        return {
            name: np.frombuffer(base64.b64decode(packed["base64"]), packed["dtype"]).reshape(
                packed["shape"]
            )
            for name, packed in self.content["arrays"].items()
        }


def as_number(shown):
    return float(shown.replace("\N{MINUS SIGN}", "-").replace(",", ""))


def half_a_unit(shown):
    """Half a unit of the last displayed digit."""
    digits, _, power = shown.replace("\N{MINUS SIGN}", "-").replace(",", "").partition("e")
    decimals = len(digits.partition(".")[2])
    return 0.5 * 10.0 ** (int(power or 0) - decimals) * (1 + 1e-9)


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


def exact_numbers(run):
    """Numbers that must equal the library's bit for bit: name → array."""
    model, focus, n = run.model, run.focus, len(run.ids)
    points, w = forward(model, run.ids), run.model.weights
    h, attn = f"h.{focus.layer}", f"blocks.{focus.layer}.attn"
    x = points[f"blocks.{focus.layer - 1}.resid" if focus.layer else "embed"][focus.position]
    exact = {f"{attn}.{letter}": points[f"{attn}.{letter}"] for letter in "qkv"}
    return points, exact | {
        "wte": w["wte.weight"][run.ids],
        "wpe": w["wpe.weight"][:n],
        "norm.x": x,
        "norm.x.row": x[None],
        "norm.weight": w[f"{h}.ln_1.weight"],
        "norm.bias": w[f"{h}.ln_1.bias"],
        "norm.out": points[f"blocks.{focus.layer}.ln_1"][focus.position],
        "norm.out.row": points[f"blocks.{focus.layer}.ln_1"][focus.position][None],
        "score.query": points[f"{attn}.q"][focus.head, focus.position],
        "score.key": points[f"{attn}.k"][focus.head, focus.key],
        "row.pattern": points[f"{attn}.pattern"][focus.head, focus.position],
        "pattern": points[f"{attn}.pattern"],
        "mlp.act.row": points[f"blocks.{focus.layer}.mlp.act"][focus.position][None],
        "next.logits": points["logits"][focus.position],
        "parameters": np.array(w.parameters),
        "tensor.count": np.array([w[name].size for name in w]),
    }


def close_numbers(run, points, steps):
    """Numbers derived from the hook points, recomputed in float64: name → array."""
    return {
        **_block_numbers(run, points),
        **_lens_numbers(run, points),
        **_generation_numbers(run, steps),
        **_work_numbers(run, points),
    }


def _block_numbers(run, points):
    model, focus = run.model, run.focus
    config, w = run.config, model.weights
    x = np.float64(points[f"blocks.{focus.layer - 1}.resid" if focus.layer else "embed"])
    x = x[focus.position]
    normalized = (x - x.mean()) / np.sqrt(x.var() + config.layer_norm_epsilon)
    attn, mlp = f"blocks.{focus.layer}.attn", f"blocks.{focus.layer}.mlp"
    q = np.float64(points[f"{attn}.q"][focus.head, focus.position])
    k = np.float64(points[f"{attn}.k"][focus.head, : focus.position + 1])
    scores = k @ q * config.attention_scale(focus.layer)
    output = np.float64(w[f"h.{focus.layer}.mlp.c_proj.weight"])
    act = np.float64(points[f"{mlp}.act"][focus.position])
    lengths = np.abs(act) * np.linalg.norm(output, axis=1)
    neurons = np.argsort(-lengths)[:10]
    wte = np.float64(w["wte.weight"])
    wte /= np.linalg.norm(wte, axis=1, keepdims=True)
    cosines = wte[run.ids] @ wte.T
    cosines[np.arange(len(run.ids)), run.ids] = -2
    residuals = [points["embed"], *(points[f"blocks.{i}.resid"] for i in range(config.n_layer))]
    norms = np.linalg.norm(np.float64(residuals), axis=2)
    return {
        "cosine": -np.sort(-cosines, axis=1)[:, :6],
        "norm.mean": x.mean(),
        "norm.variance": x.var(),
        "norm.centered": x - x.mean(),
        "norm.normalized": normalized,
        "norm.normalized.row": normalized[None],
        "score.terms": q * k[focus.key],
        "score.sums": np.cumsum(q * k[focus.key]),
        "score.scaled": scores[focus.key],
        "row.scores": scores,
        "row.exp": np.exp(scores - scores.max()),
        "row.softmax": softmax64(scores),
        "neuron.id": neurons,
        "neuron.pre": points[f"{mlp}.pre"][focus.position][neurons],
        "neuron.act": act[neurons],
        "neuron.length": lengths[neurons],
        "residual.norm": norms,
    }


def _lens_numbers(run, points):
    answers = points["logits"].argmax(1)[:, None]
    tops, ids, of_answer, ranks = [], [], [], []
    for layer in range(run.config.n_layer + 1):
        x = points[f"blocks.{layer - 1}.resid" if layer else "embed"]
        logits = logit_lens(run.model, x)
        ids.append(np.argsort(-logits, axis=1, kind="stable")[:, :5])
        probabilities = softmax64(logits)
        tops.append(np.take_along_axis(probabilities, ids[-1], 1))
        of_answer.append(np.take_along_axis(probabilities, answers, 1)[:, 0])
        ranks.append(1 + (logits > np.take_along_axis(logits, answers, 1)).sum(1))
    logits = points["logits"][run.focus.position]
    probability = softmax64(logits)
    settings = {}
    for at, (temperature, top_k, top_p) in enumerate(SETTINGS):
        options = GenerationOptions(temperature=temperature, top_k=top_k, top_p=top_p)
        sampled = next_probabilities(logits, options)
        whole = softmax64(np.float64(logits) / temperature)
        kept = whole[sampled > 0].sum()
        settings[f"setting{at}.probability"] = sampled
        settings[f"setting{at}.kept"] = [np.count_nonzero(sampled), kept, 1 - kept]
    falling = -np.sort(-probability)
    return settings | {
        "last.probability": softmax64(points["logits"][-1]),
        "lens.ids": np.array(ids),
        "lens.probability": np.array(tops),
        "lens.answer": np.array(of_answer),
        "lens.rank": np.array(ranks),
        "next.probability": probability,
        "next.rest": falling[20:].sum(),
        "next.tokens_for_mass": [
            np.flatnonzero(np.cumsum(falling) >= m)[0] + 1 for m in (0.5, 0.9, 0.99)
        ],
    }


def _generation_numbers(run, steps):
    ids, config = list(run.ids), run.config
    tops, nbytes, flops, without = [], [], [], []
    for step in range(steps):
        n = len(ids)
        probabilities = softmax64(run.model.forward([ids], logits_indices=[n - 1])[0])
        tops.append(-np.sort(-probabilities)[:5])
        nbytes.append(sum(2 * n * config.n_embd * 4 for _ in range(config.n_layer)))
        whole = prefill_flops(config, n)
        one = prefill_flops(config, n) - prefill_flops(config, n - 1) if n > 1 else whole
        # A prefill's last block computes one row only, which cancels out in the difference.
        one += 2 * (block_parameters(config) - 2 * config.n_embd**2)
        one += 2 * config.vocab_size * config.n_embd + 4 * config.n_embd * (n - 1)
        flops.append(one if step else whole)
        without.append(whole)
        ids.append(int(probabilities.argmax()))
    return {
        "step.probability": np.array(tops),
        "step.bytes": nbytes,
        "step.flops": flops,
        "step.flops_without": without,
    }


def _work_numbers(run, points):
    config, n = run.config, len(run.ids)
    double = GPT2(config, {name: np.float64(array) for name, array in run.model.weights.items()})
    reference = forward(double, run.ids)
    difference = np.abs(points["logits"] - reference["logits"])
    probability = np.abs(softmax64(points["logits"]) - softmax64(reference["logits"]))
    c, f, layers = config.n_embd, config.n_inner, config.n_layer
    products = {  # rows, inputs, outputs, count
        "attn.q": (n, c, 3 * c, layers),
        "attn.out": (n, c, c, layers),
        "mlp.pre": (n, c, f, layers),
        "mlp.out": (n, f, c, layers),
        "logits": (n, c, config.vocab_size, 1),
    }
    flops = {name: 2 * np.prod(sizes) for name, sizes in products.items()}
    pairs = np.tril(np.ones((n, n))).sum()
    flops |= dict.fromkeys(("attn.pattern", "attn.z"), 2 * pairs * c * layers)
    order = (
        "embed ln_1 attn.q attn.pattern attn.z attn.out resid_mid ln_2 mlp.pre mlp.act mlp.out "
        "resid ln_f logits"
    )
    return {
        "precision.logits": [difference.max(), difference.mean()],
        "precision.probability": [probability.max(), probability.mean()],
        "precision.range": [reference["logits"].min(), reference["logits"].max()],
        "part.flops": [flops.get(name, 0) for name in order.split()],
    }
