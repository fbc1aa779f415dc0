"""GPT-2's forward pass (Radford et al. 2019, section 2.3): token ids → logits.

This file is the mathematics. `ctx` decides where each piece runs and never changes the result:

    ctx.linear(x, w, then=f)   f(x @ w.weight + w.bias)
    ctx.qkv(x, w, heads)       the same for some heads: queries, keys and values
    ctx.by_rows(f, x, …)       f(x, …), where no row of the result depends on another row
    ctx.by_heads(f, x)         f(heads, z) fills z for some heads; returns all heads joined
    ctx.append_kv, read_kv     the keys and values of all tokens so far
    ctx.hook(name, x)          x, after the caller's hook has seen and edited it, if there is one

Shape letters: N new tokens of all sequences, packed one after another; n consecutive ones of them;
T keys that a query can see; R tokens whose logits are requested; C n_embd; H heads of D channels,
h of them; F n_inner; V vocab_size.

A hook is called at these points, in this order:

    embed                                             (N, C)
    blocks.i.ln_1                                     (N, C)
    blocks.i.attn.q, .k, .v                           (H, n, D)    for each sequence in turn
    blocks.i.attn.pattern                             (H, n, T)    again for each sequence in turn
    blocks.i.attn.z                                   (H, n, D)    pattern @ values
    blocks.i.attn.out, blocks.i.resid_mid             (N, C)
    blocks.i.ln_2                                     (N, C)
    blocks.i.mlp.pre, blocks.i.mlp.act                (N, F)
    blocks.i.mlp.out, blocks.i.resid                  (N, C)
                                (in the last block, from attn.out on, R rows instead of N)
    ln_f                                              (R, C)
    logits                                            (R, V)

Print the shape of every attention pattern, then silence head 2 of block 3:

    def look(name, array):
        if name.endswith("attn.pattern"):
            print(name, array.shape)
        return array

    def ablate(name, array):
        if name == "blocks.3.attn.z":
            array[2] = 0
        return array

    model.forward([ids], hook=look)
    model.forward([ids], hook=ablate)
"""

from gpt2np.kernels.array import Array
from gpt2np.model.ops import causal_softmax
from gpt2np.model.weights import BlockWeights, ModelWeights
from gpt2np.runtime.context import Context, QueryBlock


def gpt2(ctx: Context, w: ModelWeights) -> Array:
    """Return the logits (R, V)."""
    x = ctx.hook("embed", w.wte(ctx.token_ids) + w.wpe[ctx.positions])  # (N, C)
    for i, block in enumerate(w.blocks):
        ctx.layer = i
        x = transformer_block(ctx, block, x)  # (N, C), after the last block (R, C)
    x = ctx.hook("ln_f", ctx.by_rows(w.ln_f, x))  # (R, C)
    return ctx.hook("logits", ctx.unembed(x, w.lm_head))  # (R, V)


def transformer_block(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return x + attention(ln_1(x)), and to that add mlp(ln_2(…)): (N, C) → (N, C)."""
    h = ctx.hook("ln_1", ctx.by_rows(w.ln_1, x))  # (N, C)
    z = attention(ctx, w, h)  # (N, C)

    def rest(x: Array, z: Array) -> Array:
        x = ctx.hook("resid_mid", x + ctx.hook("attn.out", ctx.linear(z, w.attn_c_proj)))
        h = ctx.hook("ln_2", w.ln_2(x))  # (N, C)
        return ctx.hook("resid", x + ctx.hook("mlp.out", mlp(ctx, w, h)))  # (N, C)

    # No later block reads the rows that nobody asks for, so the last block leaves them out.
    rows = ctx.rows
    return ctx.by_rows(rest, x[rows], z[rows])  # (N, C), in the last block (R, C)


def attention(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return causal self-attention, before the output projection: (N, C) → (N, C)."""

    def compute_heads(heads: slice, z: Array) -> None:  # z (h, N, D)
        q, k, v = ctx.qkv(x, w.c_attn, heads)  # (h, N, D) each
        ctx.hook_qkv(q, k, v)
        ctx.append_kv(heads, k, v)

        def attend(block: QueryBlock) -> None:
            kv = ctx.read_kv(heads, block)
            scores = kv.scores(q[:, block.tokens] * w.attention_scale)  # (h, n, T)
            pattern = ctx.hook("attn.pattern", causal_softmax(scores, block.hidden))  # (h, n, T)
            z[:, block.tokens] = kv.mix(pattern)  # pattern @ values, (h, n, D)
            ctx.hook("attn.z", z[:, block.tokens])

        ctx.for_each(attend, ctx.query_blocks)

    return ctx.by_heads(compute_heads, x)


def mlp(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return the two-layer perceptron of each row: (N, C) → (N, F) → (N, C)."""

    def activate(h: Array) -> Array:
        return ctx.hook("mlp.act", w.activation(ctx.hook("mlp.pre", h)))  # (N, F)

    return ctx.linear(ctx.linear(x, w.c_fc, then=activate), w.mlp_c_proj)
