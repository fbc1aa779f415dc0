"""GPT-2's forward pass: token ids → logits (Vaswani et al. 2017; Radford et al. 2019, section 2.3).

    x = wte[id] + wpe[position]                                      embedding
    x = x + c_proj(attention(ln_1(x))), then x = x + mlp(ln_2(x))    each block
    attention = softmax(mask(q·kᵀ / √D))·v, where q, k, v = c_attn   each head
    mlp(x) = c_proj(activation(c_fc(x)))                             activation: tanh form of GELU
    logits = ln_f(x)·wteᵀ                                            unembedding

`ctx` runs these steps on one thread or several, with or without a KV cache. However `ctx` splits
the work, only rounding differs; a hook alone changes the result. Its type is
`gpt2np.model.context.ModelContext`; the simplest `ctx` is `gpt2np.model.plain.PlainContext`.

    ctx.token_ids, ctx.positions   (N,) each; positions count from the start of each text
    ctx.linear(x, w, then=f)       f(x @ w.weight + w.bias); f is elementwise except for its hooks
    ctx.unembed(x, w)              x @ w.weight
    ctx.by_rows(f, x, …)           f(x, …), on all rows at once or on chunks of rows
    ctx.attention(attend, x, w, i) z with its heads joined, where q, k, v = x @ w.weight + w.bias,
                                   and z = attend(q, kv, mask), for all heads and queries at once
                                   or for parts of them
    kv.scores(q)                   q·kᵀ, with the keys of each query's own text; with a KV cache,
                                   also with the keys of earlier passes
    kv.weighted_values(p)          p·v, with the values of the same tokens
    mask                           (n, m) for the last m of T keys: True hides a key that follows
                                   the query or pads a shorter text; the first T - m are visible
    ctx.requested(x, z, i)         x and z; in the last block, only the R rows of x and z whose
                                   logits are requested
    ctx.hook(name, x, i)           x, or the array that the caller's hook returns in its place; the
                                   hook receives the name blocks.i.name, or just name without i

Shape letters: N new tokens of all texts, one text after the other; n queries of one text, or of
several (a few each); T keys: the tokens of a text (of several, the longest) up to the last query; R
tokens whose logits are requested; r rows, N or fewer; C = n_embd; H = n_head heads, h of them at a
time; D = C / H channels of a head; F = n_inner; V = vocab_size. A hook sees whole arrays:

    embed                                             (N, C)
    blocks.i.ln_1                                     (N, C)
    blocks.i.attn.q, .k, .v                           (H, n, D)    for each text in turn
    blocks.i.attn.pattern, then blocks.i.attn.z       (H, n, T), (H, n, D)    for each text in turn
    blocks.i.attn.out, blocks.i.resid_mid             (N, C)       in the last block: (R, C)
    blocks.i.ln_2                                     (N, C)       in the last block: (R, C)
    blocks.i.mlp.pre, blocks.i.mlp.act                (N, F)       in the last block: (R, F)
    blocks.i.mlp.out, blocks.i.resid                  (N, C)       in the last block: (R, C)
    ln_f, then logits                                 (R, C), (R, V)
"""

from typing import TypeVar

from gpt2np.kernels.array import Array, BoolArray
from gpt2np.model.context import KV, ModelContext
from gpt2np.model.ops import causal_softmax
from gpt2np.model.weights import BlockWeights, ModelWeights

L = TypeVar("L")  # a linear layer's weights, as the context multiplies by them


def gpt2(ctx: ModelContext[L], w: ModelWeights[L]) -> Array:
    """Return the logits (R, V)."""
    x = ctx.hook("embed", w.wte[ctx.token_ids] + w.wpe[ctx.positions])  # (N, C)
    for block in w.blocks:
        x = transformer_block(ctx, block, x)  # (N, C), after the last block (R, C)
    x = ctx.hook("ln_f", ctx.by_rows(w.ln_f, x))  # (R, C)
    return ctx.hook("logits", ctx.unembed(x, w.lm_head))  # (R, V); lm_head is wteᵀ


def transformer_block(ctx: ModelContext[L], w: BlockWeights[L], x: Array) -> Array:
    """Add attention and the MLP to the residual stream: (N, C) → (N, C), or (R, C) at the end."""

    def project_and_mlp(resid: Array, z: Array) -> Array:
        attn_out = ctx.hook("attn.out", ctx.linear(z, w.attn_c_proj), w.layer)  # (r, C)
        resid_mid = ctx.hook("resid_mid", resid + attn_out, w.layer)  # (r, C)
        normed = ctx.hook("ln_2", w.ln_2(resid_mid), w.layer)  # (r, C)
        mlp_out = ctx.hook("mlp.out", mlp(ctx, w, normed), w.layer)  # (r, C)
        return ctx.hook("resid", resid_mid + mlp_out, w.layer)  # (r, C)

    z = attention(ctx, w, ctx.hook("ln_1", ctx.by_rows(w.ln_1, x), w.layer))  # (N, C)
    x, z = ctx.requested(x, z, w.layer)  # the last block needed k and v of all rows
    return ctx.by_rows(project_and_mlp, x, z)


def attention(ctx: ModelContext[L], w: BlockWeights[L], x: Array) -> Array:
    """Return the joined heads of causal self-attention: (N, C) → (N, C)."""

    def attend(q: Array, kv: KV, mask: BoolArray) -> Array:  # (h, n, D) → (h, n, D)
        scores = kv.scores(q * w.attention_scale)  # q·kᵀ / √D, (h, n, T)
        pattern = ctx.hook("attn.pattern", causal_softmax(scores, mask), w.layer)  # (h, n, T)
        return ctx.hook("attn.z", kv.weighted_values(pattern), w.layer)  # (h, n, D)

    return ctx.attention(attend, x, w.c_attn, w.layer)


def mlp(ctx: ModelContext[L], w: BlockWeights[L], x: Array) -> Array:
    """Return c_proj(activation(c_fc(x))): (r, C) → (r, F) → (r, C)."""

    def activate(pre: Array) -> Array:
        return ctx.hook("mlp.act", w.activation(ctx.hook("mlp.pre", pre, w.layer)), w.layer)

    hidden = ctx.linear(x, w.c_fc, then=activate)  # (r, F)
    return ctx.linear(hidden, w.mlp_c_proj)  # (r, C)
