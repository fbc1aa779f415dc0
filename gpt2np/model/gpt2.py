"""GPT-2's forward pass: token ids → logits (Vaswani et al. 2017; Radford et al. 2019, section 2.3).

    x = wte[id] + wpe[position]                                      embedding
    x = x + c_proj(attention(ln_1(x))), then x = x + mlp(ln_2(x))    each block
    attention = softmax(mask(q·kᵀ / √D))·v                           each head
    mlp(x) = c_proj(activation(c_fc(x)))                             activation: tanh form of GELU
    logits = ln_f(x)·wteᵀ                                            unembedding

`ctx` runs these steps on one thread or several, with or without a KV cache. However `ctx` splits
the work, only rounding differs; a hook alone changes the result. The simplest `ctx` is
`gpt2np.model.plain.PlainContext`.

    ctx.token_ids, ctx.positions  (N,) each; positions count from the start of each text
    ctx.linear(x, w, then=f)      f(x @ w.weight + w.bias); f is elementwise but for its hooks
    ctx.unembed(x, w)             x @ w.weight
    ctx.qkv(x, w, heads)          queries, keys and values of some heads, by one linear layer
    ctx.by_rows(f, x, …)          f(x, …), on all rows or some at a time
    ctx.by_heads(f, x)            splits the heads into slices, calls f(heads, z) on each to fill z
                                  (h, N, D), with x's N and dtype; returns all heads joined
    ctx.append_kv(heads, k, v)    keeps k and v for `read_kv` in this pass, and in later passes if
                                  there is a KV cache
    ctx.query_blocks              consecutive query blocks that cover the N tokens; each has tokens
                                  of one text, or all new tokens of several texts (a few each)
    queries.tokens                the slice of the N tokens that are in a query block
    queries.mask                  (n, m) for the last m of T keys: True hides a key that follows the
                                  query or pads a shorter text. The first T - m are visible.
    ctx.read_kv(heads, queries)   kv, with the keys and values of the query block's texts:
                                  kv.scores(q) is q·kᵀ, kv.weighted_values(p) is p·v, where each
                                  query meets the keys and values of its own text
    ctx.for_each(f, items)        calls f(item) for each item, in any order or in parallel
    ctx.layer                     the block's index, for `rows`, `hook` and the KV cache
    ctx.rows                      the rows of x that the block returns, as a slice or indices: all
                                  N, in the last block only the R rows whose logits are requested
    ctx.hook(name, x)             x, or the array that the caller's hook returns in its place; the
                                  hook gets blocks.i.name, or embed, ln_f or logits
    ctx.hook_qkv(q, k, v)         hook on each text's q, k and v in turn: attn.q, attn.k, attn.v

Shape letters: N new tokens of all texts, one text after the other; n of them in one query block; T
keys: the tokens of a text (of several, the longest) up to the query block's end; R tokens whose
logits are requested; r rows, N or fewer; C = n_embd; H = n_head heads, h of them in a slice; D =
C / H channels of a head; F = n_inner; V = vocab_size.

A hook sees whole arrays (h = H; r = N or R; one query block for each text), at these points:

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

    logits = model.forward([ids], hook=ablate)  # model: gpt2np.model.GPT2
"""

from gpt2np.kernels.array import Array
from gpt2np.model.ops import causal_softmax
from gpt2np.model.weights import BlockWeights, ModelWeights
from gpt2np.runtime.context import Context, QueryBlock


def gpt2(ctx: Context, w: ModelWeights) -> Array:
    """Return the logits (R, V)."""
    x = ctx.hook("embed", w.wte[ctx.token_ids] + w.wpe[ctx.positions])  # (N, C)
    for i, block in enumerate(w.blocks):
        ctx.layer = i
        x = transformer_block(ctx, block, x)  # (N, C), after the last block (R, C)
    x = ctx.hook("ln_f", ctx.by_rows(w.ln_f, x))  # (R, C)
    return ctx.hook("logits", ctx.unembed(x, w.lm_head))  # (R, V); lm_head is wteᵀ


def transformer_block(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Add attention and the MLP to the residual stream: (N, C) → (N, C), or (R, C) at the end."""
    normed = ctx.hook("ln_1", ctx.by_rows(w.ln_1, x))  # (N, C)
    z_joined = attention(ctx, w, normed)  # (N, C)

    def project_and_mlp(resid: Array, z_joined: Array) -> Array:
        attn_out = ctx.hook("attn.out", ctx.linear(z_joined, w.attn_c_proj))  # (r, C)
        resid_mid = ctx.hook("resid_mid", resid + attn_out)  # (r, C)
        normed = ctx.hook("ln_2", w.ln_2(resid_mid))  # (r, C)
        mlp_out = ctx.hook("mlp.out", mlp(ctx, w, normed))  # (r, C)
        return ctx.hook("resid", resid_mid + mlp_out)  # (r, C)

    rows = ctx.rows  # the last block needed k and v of all rows, and goes on with R rows
    return ctx.by_rows(project_and_mlp, x[rows], z_joined[rows])


def attention(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return the joined heads of causal self-attention: (N, C) → (N, C)."""

    def compute_heads(heads: slice, z: Array) -> None:  # fills z (h, N, D)
        q, k, v = ctx.hook_qkv(*ctx.qkv(x, w.c_attn, heads))  # (h, N, D) each
        ctx.append_kv(heads, k, v)

        def attend(queries: QueryBlock) -> None:
            kv = ctx.read_kv(heads, queries)
            scores = kv.scores(q[:, queries.tokens] * w.attention_scale)  # q·kᵀ / √D, (h, n, T)
            pattern = ctx.hook("attn.pattern", causal_softmax(scores, queries.mask))  # (h, n, T)
            z[:, queries.tokens] = ctx.hook("attn.z", kv.weighted_values(pattern))  # (h, n, D)

        ctx.for_each(attend, ctx.query_blocks)

    return ctx.by_heads(compute_heads, x)


def mlp(ctx: Context, w: BlockWeights, x: Array) -> Array:
    """Return c_proj(activation(c_fc(x))): (r, C) → (r, F) → (r, C)."""

    def activate(pre: Array) -> Array:
        return ctx.hook("mlp.act", w.activation(ctx.hook("mlp.pre", pre)))  # (r, F)

    hidden = ctx.linear(x, w.c_fc, then=activate)  # (r, F)
    return ctx.linear(hidden, w.mlp_c_proj)  # (r, C)
