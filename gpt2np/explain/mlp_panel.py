"""The MLP of one block: its most active neurons for one token, and what they write."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt2np.explain.embedding_panel import strip
from gpt2np.explain.html import formula, panel, source, table, token
from gpt2np.explain.numbers import Numbers
from gpt2np.explain.run import Run
from gpt2np.kernels.linear import linear
from gpt2np.model.ops import ACTIVATIONS

Array = NDArray[Any]

_NEURONS = 10
_TOKENS = 5


def active_neurons(activation: Array, output: Array, count: int) -> tuple[Array, Array]:
    """The neurons that write the longest vectors, activation (F) times rows of output (F, C).

    Their numbers, the longest first, and the lengths of what they write, both (count,).
    """
    lengths = np.abs(activation) * np.sqrt(np.einsum("fc,fc->f", output, output))  # (F,)
    neurons = np.argsort(-lengths, kind="stable")[:count]
    return neurons, lengths[neurons]


def mlp_panel(run: Run, numbers: Numbers) -> str:
    """The panel's markup."""
    focus, w = run.focus, run.model.weights
    name = f"blocks.{focus.layer}.mlp"
    before, activation = (run.arrays[f"{name}.{part}"][focus.position] for part in ("pre", "act"))
    output = w[f"h.{focus.layer}.mlp.c_proj.weight"]
    neurons, lengths = active_neurons(activation, output, _NEURONS)
    written = output[neurons] * np.sign(activation[neurons])[:, None]
    towards = run.model.unembed(written)  # (10, V)
    promoted = np.argsort(-towards, axis=1, kind="stable")[:, :_TOKENS]
    numbers.add("neuron.pre", before[neurons])
    numbers.add("neuron.act", activation[neurons])
    numbers.add("neuron.length", lengths)
    numbers.add("neuron.id", neurons)
    numbers.add("neuron.tokens", promoted)
    numbers.add("mlp.act.row", activation[None], carry=True)
    share = np.count_nonzero(activation > 0) / len(activation)
    says = (
        f"After attention each token goes through {len(activation):,} neurons by itself. A neuron "
        "that fires adds its own learned vector to the residual stream, times its activation. "
        f"These are the {len(neurons)} that wrote most for token {focus.position}, "
        f"{token(run.bytes_of(run.ids[focus.position]))}, and the tokens whose logits that vector "
        f"would raise most, layer norms aside; {share:.0%} of all neurons are above zero."
    )
    function = ACTIVATIONS[run.config.activation_function]
    body = [
        formula(
            f"h = {run.config.activation_function}(x · W_fc + b_fc)      out = h · W_proj + b_proj"
        ),
        source(linear, function, active_neurons),
        _neurons(run, numbers),
        strip("mlp.act.row", f"all neurons of block {focus.layer}", activation[None], "row"),
    ]
    return panel("mlp", "The MLP’s most active neurons", says, "\n".join(body), level=3)


def _neurons(run: Run, numbers: Numbers) -> str:
    rows = []
    for at, promoted in enumerate(numbers.arrays["neuron.tokens"]):
        raised = " ".join(token(run.bytes_of(int(number))) for number in promoted)
        parts = (numbers.show(f"neuron.{part}", at) for part in ("pre", "act", "length"))
        rows.append((numbers.show("neuron.id", at, as_="n"), *parts, raised))
    head = ("neuron", "before", "activation", "length written", "raises the logits of")
    return table(head, rows, f"The most active neurons of block {run.focus.layer}")
