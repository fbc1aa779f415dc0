"""Page sections on one block: overview, layer norm, MLP neurons, and the residual stream.

For the shape letters, see `gpt2np.explain.run`.
"""

from __future__ import annotations

import numpy as np

from gpt2np.explain.figures import Line, line_chart, strip
from gpt2np.explain.markup import Numbers, computed_by, details, formula, section, table, token_text
from gpt2np.explain.run import Run
from gpt2np.interp.description import active_neurons
from gpt2np.kernels.array import Array
from gpt2np.model.gpt2 import mlp, transformer_block
from gpt2np.model.ops import ACTIVATIONS, layer_norm

_N_CHANNELS = 8
_N_NEURONS = 10
_N_PROMOTED = 5


def block_section(run: Run) -> str:
    """Return the markup of the section that introduces the blocks."""
    layers, layer = run.config.n_layer, run.focus.layer
    summary = (
        f"The vectors go through {layers} blocks, one after another. Each block reads them twice "
        "and adds to them twice: attention lets tokens look at the tokens before them, and the "
        f"MLP works on each token by itself. This is block {layer} of 0 to {layers - 1}, opened."
    )
    body = formula("x ← x + attention(ln_1(x))      x ← x + mlp(ln_2(x))")
    body += computed_by(transformer_block)
    return section("block", f"One block, opened: block {layer}", summary, body)


def norm_steps(x: Array, weight: Array, bias: Array, epsilon: float) -> dict[str, Array]:
    """Compute the layer norm of one token step by step.

    `x`, `weight` and `bias` are (C,). Returns the steps by name: arrays (C,), or () for mean and
    variance.
    """
    mean = np.add.reduce(x) / x.dtype.type(len(x))
    centered = x - mean
    return {
        "norm.x": x,
        "norm.mean": np.asarray(mean),
        "norm.variance": np.asarray(np.add.reduce(centered * centered) / x.dtype.type(len(x))),
        "norm.centered": centered,
        "norm.normalized": layer_norm(x, np.ones_like(x), np.zeros_like(x), epsilon),
        "norm.weight": weight,
        "norm.bias": bias,
        "norm.out": layer_norm(x, weight, bias, epsilon),
    }


def norm_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on layer norm."""
    focus, w = run.focus, run.model.weights
    name = f"h.{focus.layer}.ln_1"
    x = run.residual(focus.layer)[focus.position]
    epsilon = run.config.layer_norm_epsilon
    steps = norm_steps(x, w[f"{name}.weight"], w[f"{name}.bias"], epsilon)
    for part, array in steps.items():
        numbers.add(part, array)
    strips = {
        "norm.x": "x: the residual stream, as it comes in",
        "norm.normalized": "x̂: the mean subtracted, divided by the standard deviation",
        "norm.out": "y: scaled and shifted, channel by channel",
    }
    for part in strips:
        numbers.add(f"{part}.row", steps[part][None], carry=True)
    summary = (
        f"Before attention, each token’s row of {len(x)} numbers is normalized to mean 0 and "
        "variance 1; then every channel is scaled and shifted by two learned numbers. "
        f"Here is the row of token {focus.position}, {run.token(run.ids[focus.position])}, in "
        f"block {focus.layer}: first the channels with the largest numbers, then all channels."
    )
    body = [
        formula("x̂ = (x − μ) / √(σ² + ε)      y = x̂ · weight + bias"),
        computed_by(layer_norm, norm_steps),
        f'<p class="facts">mean μ = {numbers.show("norm.mean", style="5g")} &emsp; variance σ² = '
        f"{numbers.show('norm.variance', style='5g')} &emsp; ε = {epsilon:g}</p>",
        _channel_table(numbers, x),
        *(strip(f"{part}.row", title, steps[part][None], "row") for part, title in strips.items()),
    ]
    return section("norm", "Layer norm, for one token", summary, "\n".join(body), level=3)


def _channel_table(numbers: Numbers, x: Array) -> str:
    largest = np.sort(np.argsort(-np.abs(x), kind="stable")[:_N_CHANNELS])
    parts = ("x", "centered", "normalized", "weight", "bias", "out")
    rows = [
        (str(channel), *(numbers.show(f"norm.{part}", int(channel)) for part in parts))
        for channel in largest
    ]
    head = ("channel", "x", "x − μ", "x̂", "weight", "bias", "y")
    return table(head, rows, f"The {len(rows)} channels with the largest numbers")


def mlp_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on the MLP."""
    focus = run.focus
    activation = run.arrays[f"blocks.{focus.layer}.mlp.act"][focus.position]
    _add_neuron_numbers(run, numbers)
    share = np.count_nonzero(activation > 0) / len(activation)
    summary = (
        f"After attention, each token goes through {len(activation):,} neurons by itself. A neuron "
        "that fires adds its own learned vector, times its activation, to the residual stream. "
        f"These {len(numbers.arrays['neuron.id'])} neurons wrote most for token {focus.position}, "
        f"{run.token(run.ids[focus.position])}; each is listed with the tokens whose logits its "
        f"vector would raise most, layer norms aside; {share:.0%} of all neurons are above zero."
    )
    function = ACTIVATIONS[run.config.activation_function]
    name = run.config.activation_function
    body = [
        formula(f"h = {name}(x · W_fc + b_fc)      out = h · W_proj + b_proj"),
        computed_by(mlp, function, active_neurons),
        _neuron_table(run, numbers),
        strip("mlp.act.row", f"all neurons of block {focus.layer}", activation[None], "row"),
    ]
    return section("mlp", "The MLP’s most active neurons", summary, "\n".join(body), level=3)


def _add_neuron_numbers(run: Run, numbers: Numbers) -> None:
    mlp, position = f"blocks.{run.focus.layer}.mlp", run.focus.position
    before, activation = (run.arrays[f"{mlp}.{part}"][position] for part in ("pre", "act"))
    output = run.model.weights[f"h.{run.focus.layer}.mlp.c_proj.weight"]
    neurons, lengths = active_neurons(activation, output, _N_NEURONS)
    written = output[neurons] * np.sign(activation[neurons])[:, None]
    logits = run.model.unembed(written)  # (n, V)
    numbers.add("neuron.pre", before[neurons])
    numbers.add("neuron.act", activation[neurons])
    numbers.add("neuron.length", lengths)
    numbers.add("neuron.id", neurons)
    numbers.add("neuron.tokens", np.argsort(-logits, axis=1, kind="stable")[:, :_N_PROMOTED])
    numbers.add("mlp.act.row", activation[None], carry=True)


def _neuron_table(run: Run, numbers: Numbers) -> str:
    rows = []
    for i, promoted in enumerate(numbers.arrays["neuron.tokens"]):
        tokens = " ".join(run.token(int(token_id)) for token_id in promoted)
        cells = (numbers.show(f"neuron.{part}", i) for part in ("pre", "act", "length"))
        rows.append((numbers.show("neuron.id", i, style="n"), *cells, tokens))
    head = ("neuron", "before", "activation", "length written", "raises the logits of")
    return table(head, rows, f"The most active neurons of block {run.focus.layer}")


def residual_norms(run: Run) -> Array:
    """Compute each token's residual norm before the first block and after each block, (L+1, N)."""
    rows = np.stack([run.residual(layer) for layer in range(run.config.n_layer + 1)])
    lengths: Array = np.sqrt(np.einsum("lnc,lnc->ln", rows, rows))
    return lengths


def residual_section(run: Run, numbers: Numbers) -> str:
    """Return the markup of the section on the residual stream's growth."""
    norms = numbers.add("residual.norm", residual_norms(run))  # (L+1, N)
    medians = numbers.add("residual.median", np.median(norms, axis=1))
    labels = run.layer_labels
    lines = [Line("median of all", medians.tolist())]
    for position in dict.fromkeys((run.focus.position, 0)):
        name = f"{position} {token_text(run.token_bytes(run.ids[position]))}"[:16]
        lines.append(Line(name, norms[:, position].tolist()))
    summary = (
        "Every block only adds to the residual stream, so its vectors mostly grow from block "
        "to block. That is why layer norms are needed, and why the contribution of an early block "
        "counts for less at the end. In many models the first token’s vector grows far beyond the "
        "others: heads that have nothing to do look at the first token."
    )
    rows = []
    for position in range(len(run.ids)):
        cells = (numbers.show("residual.norm", layer, position) for layer in range(len(labels)))
        rows.append((run.numbered_token(position), *cells))
    caption = "The residual stream’s length at each token, after each block"
    body = [
        formula("length = √(Σ x²), over the channels"),
        computed_by(transformer_block, residual_norms),
        line_chart(lines, labels, "The residual stream’s length, block by block", logarithmic=True),
        details("All lengths as a table", table(("token", *labels), rows, caption)),
    ]
    return section("residual", "The residual stream grows", summary, "\n".join(body), level=3)
