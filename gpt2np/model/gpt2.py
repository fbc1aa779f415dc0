"""GPT-2's forward pass: token ids → logits (Vaswani et al. 2017; Radford et al. 2019, section 2.3).

    x = wte[id] + wpe[position]                                      embedding
    x = x + c_proj(attention(ln_1(x))), then x = x + mlp(ln_2(x))    each block
    attention = softmax(mask(q·kᵀ / √D))·v                           each head
    logits = ln_f(x)·wteᵀ                                            unembedding

This file is that mathematics. `ctx` decides where the work runs and in which pieces; only a hook
changes a result. For one text without a cache, n = N = T and every `ctx.by_…` is a single call.

    ctx.linear(x, w, then=f)    f(x @ w.weight + w.bias)
    ctx.unembed(x, w)           x @ w.weight
    ctx.qkv(x, w, heads)        queries, keys and values of some heads: a linear layer
    ctx.by_rows(f, x, …)        f(x, …), on all rows or chunk by chunk
    ctx.by_heads(f, x)          calls f(heads, z) to fill z for some heads; returns the heads joined
    ctx.append_kv(heads, k, v)  adds to the KV cache
    ctx.read_kv(heads, block)   the cached keys and values of the texts that a query block is from
    ctx.rows                    all rows; in the last block the R rows whose logits are requested
    ctx.hook(name, x)           x, or what the caller's hook returns in its place

Shape letters: N new tokens of all texts, one text after another; n tokens of one query block; T
tokens of its text so far, cached ones included; R tokens whose logits are requested; r rows of one
chunk, at most N; C = n_embd; H = n_head heads of D = C / H channels, h of them; F = n_inner;
V = vocab_size.

A hook sees whole arrays (h = H, r = N, one query block per text), at these points:

    embed                                             (N, C)
    blocks.i.ln_1                                     (N, C)
    blocks.i.attn.q, .k, .v                           (H, n, D)    for each text in turn
    blocks.i.attn.pattern, then blocks.i.attn.z       (H, n, T), (H, n, D)    for each text in turn
    blocks.i.attn.out, blocks.i.resid_mid             (N, C)
    blocks.i.ln_2                                     (N, C)
    blocks.i.mlp.pre, blocks.i.mlp.act                (N, F)
    blocks.i.mlp.out, blocks.i.resid                  (N, C)
    ln_f                                              (R, C)
    logits                                            (R, V)

In the last block, the arrays from attn.out on have R rows instead of N. Silence head 2 of block 3
(both count from 0):

    def ablate(name, array):
        if name == "blocks.3.attn.z":
            array[2] = 0
        return array

    logits = model.forward([ids], hook=ablate)
"""

from gpt2np.kernels.array import Array
from gpt2np.model.ops import causal_softmax
from gpt2np.model.weights import BlockWeights, ModelWeights
from gpt2np.runtime.context import Context, QueryBlock


def gpt2(ctx: Context, w: ModelWeights) -> Array:
    """Return the logits (R, V)."""
    x = ctx.hook("embed", w.wte(ctx.token_ids) + w.wpe[ctx.positions])  # (N, C)
    for i, block in enumerate(w.blocks):
        ctx.layer = i  # for the KV cache, the names of hook points, and ctx.rows
        x = transformer_block(ctx, block, x)  # (N, C), after the last block (R, C)
    x = ctx.hook("ln_f", ctx.by_rows(w.ln_f, x))  # (R, C)
    return ctx.hook("logits", ctx.unembed(x, w.lm_head))  # (R, V)


def transformer_block(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Add attention, then the MLP, to the residual stream: (N, C) → (N, C), at last (R, C)."""
    normed = ctx.hook("ln_1", ctx.by_rows(w.ln_1, x))  # (N, C)
    z = attention(ctx, w, normed)  # (N, C)

    def project_and_mlp(x: Array, z: Array) -> Array:
        attn_out = ctx.hook("attn.out", ctx.linear(z, w.attn_c_proj))  # (r, C)
        x = ctx.hook("resid_mid", x + attn_out)  # (r, C)
        normed = ctx.hook("ln_2", w.ln_2(x))  # (r, C)
        mlp_out = ctx.hook("mlp.out", mlp(ctx, w, normed))  # (r, C)
        return ctx.hook("resid", x + mlp_out)  # (r, C)

    rows = ctx.rows  # attention needs the keys and values of all rows, the rest does not
    return ctx.by_rows(project_and_mlp, x[rows], z[rows])


def attention(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return the joined heads of causal self-attention: (N, C) → (N, C)."""

    def compute_heads(heads: slice, z: Array) -> None:  # fills z (h, N, D)
        q, k, v = ctx.hook_qkv(*ctx.qkv(x, w.c_attn, heads))  # (h, N, D) each
        ctx.append_kv(heads, k, v)

        def attend(block: QueryBlock) -> None:
            kv = ctx.read_kv(heads, block)
            scores = kv.scores(q[:, block.tokens] * w.attention_scale)  # q @ keysᵀ, (h, n, T)
            pattern = ctx.hook("attn.pattern", causal_softmax(scores, block.mask))  # (h, n, T)
            z[:, block.tokens] = ctx.hook("attn.z", kv.weighted_values(pattern))  # (h, n, D)

        ctx.for_each(attend, ctx.query_blocks)

    return ctx.by_heads(compute_heads, x)


def mlp(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return c_proj(activation(c_fc(x))): (r, C) → (r, F) → (r, C)."""

    def activate(pre: Array) -> Array:
        return ctx.hook("mlp.act", w.activation(ctx.hook("mlp.pre", pre)))  # (r, F)

    hidden = ctx.linear(x, w.c_fc, then=activate)  # (r, F)
    return ctx.linear(hidden, w.mlp_c_proj)  # (r, C)
