"""GPT-2's backward pass: gradient of the logits → gradients at every hook point and of the weights.

The page runs `gpt2np.model.gpt2` from its last line to its first (Rumelhart et al. 1986). d_x is
the gradient of a scalar loss with respect to x, in the shape of x. The chain rule gives, for

    y = x @ w.weight + w.bias     d_x = d_y @ w.weightᵀ, d_weight = xᵀ @ d_y, d_bias = Σ rows of d_y
    y = x + f(x)                  d_x = d_y + (the gradient that f passes back from d_y)
    y = activation(x)             d_x = d_y · activation'(x)
    p = softmax(s), z = p @ v     d_v = pᵀ @ d_z, d_p = d_z @ vᵀ, d_s = p · (d_p - Σ p · d_p)
    x = wte[id]                   d_wte[id] = sum of d_x over the tokens with this id

`ctx` is the `gpt2np.model.tape.Tape` that has run the forward pass:

    d: dict[str, Array] = {}
    ctx = Tape(config, [ids], weight_gradients=d)
    logits = gpt2(ctx, w)                      w from gpt2np.model.plain.plain_weights
    gpt2_backward(ctx, w, d_logits)            then d["wte.weight"], …

    ctx.saved(name, i)             the array of a hook point in the forward pass
    ctx.recompute(w)               runs a block again if the forward pass did not keep its arrays
    ctx.gradient(name, d, i)       shows d, the gradient at a hook point, to the caller; returns the
                                   gradient of the array before the caller's hook edited it
    ctx.hook(name, x, i)           x as the caller's hook edited it in the forward pass
    ctx.linear_backward(d, x, w)   d_x; adds d_weight and d_bias to the gradients of the weights
    ctx.unembed_backward, ctx.layer_norm_backward    the same for the other layers
    ctx.attention_backward(f, d_z, w, i)    d_x, where f gives d_q, d_k and d_v of some heads
                                   and queries of one text
    ctx.add_rows(name, rows, d)    adds d (N, C) to rows (N,) of the gradient of an embedding

Shape letters as in `gpt2np.model.gpt2`. All N tokens have logits, so R = N.
"""

from gpt2np.kernels.array import Array, BoolArray
from gpt2np.model.ops import causal_softmax, softmax_backward
from gpt2np.model.plain import PlainLinear
from gpt2np.model.tape import Tape
from gpt2np.model.weights import BlockWeights, ModelWeights


def gpt2_backward(ctx: Tape, w: ModelWeights[PlainLinear], d_logits: Array) -> None:
    """Compute all gradients from the gradient of the logits (N, V)."""
    d_logits = ctx.gradient("logits", d_logits)  # (N, V)
    d = ctx.gradient("ln_f", ctx.unembed_backward(d_logits, ctx.saved("ln_f"), w.lm_head))  # (N, C)
    blocks = list(w.blocks)
    d = ctx.layer_norm_backward(d, ctx.resid_before(len(blocks)), w.ln_f)  # (N, C)
    for block in reversed(blocks):
        d = transformer_block_backward(ctx, block, d)  # (N, C)
    d = ctx.gradient("embed", d)  # (N, C)
    ctx.add_rows("wte.weight", ctx.token_ids, d)
    ctx.add_rows("wpe.weight", ctx.positions, d)


def transformer_block_backward(ctx: Tape, w: BlockWeights[PlainLinear], d: Array) -> Array:
    """Return the gradient of a block's input from the gradient of its output: (N, C) → (N, C)."""
    ctx.recompute(w)
    d = ctx.gradient("resid", d, w.layer)  # (N, C)
    d_normed = mlp_backward(ctx, w, ctx.gradient("mlp.out", d, w.layer))  # (N, C)
    d_normed = ctx.gradient("ln_2", d_normed, w.layer)  # (N, C)
    d = d + ctx.layer_norm_backward(d_normed, ctx.saved("resid_mid", w.layer), w.ln_2)  # (N, C)
    d = ctx.gradient("resid_mid", d, w.layer)  # (N, C)
    d_out = ctx.gradient("attn.out", d, w.layer)  # (N, C)
    d_z = ctx.linear_backward(d_out, ctx.saved("attn.z", w.layer), w.attn_c_proj)  # (N, C)
    d_normed = ctx.gradient("ln_1", attention_backward(ctx, w, d_z), w.layer)  # (N, C)
    return d + ctx.layer_norm_backward(d_normed, ctx.resid_before(w.layer), w.ln_1)  # (N, C)


def attention_backward(ctx: Tape, w: BlockWeights[PlainLinear], d_z: Array) -> Array:
    """Return the gradient of attention's input from the gradient of its heads: (N, C) → (N, C)."""

    def attend_backward(
        q: Array, k: Array, v: Array, d_z: Array, mask: BoolArray
    ) -> tuple[Array, Array, Array]:  # (h, n, D), (h, T, D), (h, T, D)
        d_z = ctx.gradient("attn.z", d_z, w.layer)  # (h, n, D)
        q = q * w.attention_scale  # (h, n, D)
        pattern = causal_softmax(q @ k.swapaxes(1, 2), mask)  # (h, n, T), as in the forward pass
        edited = ctx.hook("attn.pattern", pattern, w.layer)  # (h, n, T)
        d_v = edited.swapaxes(1, 2) @ d_z  # (h, T, D)
        d_pattern = ctx.gradient("attn.pattern", d_z @ v.swapaxes(1, 2), w.layer)  # (h, n, T)
        d_scores = softmax_backward(d_pattern, pattern)  # (h, n, T)
        return d_scores @ k * w.attention_scale, d_scores.swapaxes(1, 2) @ q, d_v

    return ctx.attention_backward(attend_backward, d_z, w.c_attn, w.layer)


def mlp_backward(ctx: Tape, w: BlockWeights[PlainLinear], d: Array) -> Array:
    """Return the gradient of the MLP's input from that of its output: (N, C) → (N, C)."""
    d_act = ctx.linear_backward(d, ctx.saved("mlp.act", w.layer), w.mlp_c_proj)  # (N, F)
    d_act = ctx.gradient("mlp.act", d_act, w.layer)  # (N, F)
    d_pre = ctx.activation_backward(d_act, ctx.saved("mlp.pre", w.layer))  # (N, F)
    d_pre = ctx.gradient("mlp.pre", d_pre, w.layer)  # (N, F)
    return ctx.linear_backward(d_pre, ctx.saved("ln_2", w.layer), w.c_fc)  # (N, C)
