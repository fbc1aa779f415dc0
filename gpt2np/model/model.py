"""GPT-2's forward pass (Radford et al. 2019, section 2.3): ids → logits.

Shape letters: S sequences, N packed tokens in this step, n tokens of one sequence among them, T
tokens seen by that sequence, C channels, H heads, D head size, F MLP width, V vocabulary, R rows
that logits are asked for.

A hook is called at these points, in this order:

    embed                                             (N, C)
    blocks.i.ln_1                                     (N, C)
    blocks.i.attn.q, .k, .v                           (H, n, D)    for each sequence in turn
    blocks.i.attn.pattern                             (H, n, T)    again for each sequence in turn
    blocks.i.attn.z                                   (H, n, D)    the values, mixed by the pattern
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

Continue ids greedily with a cache, so that each step computes one token:

    cache = model.new_cache()
    logits = model.forward([ids], [cache])
    for _ in range(20):
        ids.append(int(logits[-1].argmax()))
        logits = model.forward([ids[-1:]], [cache])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gpt2np.checkpoint.config import GPT2Config
from gpt2np.checkpoint.load import load_weights, read_checkpoint
from gpt2np.errors import InvalidArgumentError
from gpt2np.kernels.blas import one_thread_each, python_threads
from gpt2np.kernels.linear import added_up, by_rows, input_groups
from gpt2np.kernels.malloc import keep_freed_memory
from gpt2np.kernels.matmul import FEW_ROWS, product
from gpt2np.kernels.threads import in_parallel
from gpt2np.model.activations import ACTIVATIONS
from gpt2np.model.ops import layer_norm
from gpt2np.runtime.batch import (
    MOST_TOKENS,
    Hook,
    Step,
    checked_caches,
    checked_hook,
    checked_logits_indices,
    checked_sequences,
    steps,
    undone_on_failure,
)
from gpt2np.runtime.kv_cache import KVCache, make_room, own_memory
from gpt2np.runtime.packed_weights import Block, Weights
from gpt2np.runtime.query_blocks import Group, attention_pattern, mixed_values
from gpt2np.runtime.ranks import ALONE, Alone, most_processes

if TYPE_CHECKING:
    from gpt2np.runtime.process_group import Team

Array = NDArray[Any]


class GPT2:
    """GPT-2's weights and the function from ids to logits.

    Attributes:
        config: the architecture.
        weights: name → array, see `gpt2np.runtime.packed_weights`.
    """

    def __init__(self, config: GPT2Config, weights: Mapping[str, Array]) -> None:
        keep_freed_memory()
        self.config = config
        self.weights = Weights(config, weights)
        self._activation = ACTIVATIONS[config.activation_function]
        self._team: Team | None = None

    @classmethod
    def from_folder(cls, folder: str | Path, dtype: DTypeLike = np.float32) -> GPT2:
        """Load `config.json` and the weights beside it, to compute in float32 or float64.

        For a model that is named, not by its folder, there is `gpt2np.load(name).model`.

        Raises:
            CheckpointError: the files are missing, damaged, or don't fit each other.
            InvalidArgumentError: another dtype.
        """
        if dtype not in (np.float32, np.float64, "float32", "float64"):
            raise InvalidArgumentError(f"dtype is {dtype!r}; it must be float32 or float64")
        checkpoint = read_checkpoint(Path(folder))
        return cls(checkpoint.config, load_weights(checkpoint, dtype))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the weights and of all that is computed with them."""
        return self.weights.dtype

    def new_cache(self) -> KVCache:
        """An empty cache for one sequence."""
        team = self._team
        return KVCache(self.config, self.dtype, team.memory if team else own_memory)

    @property
    def processes(self) -> int:
        """How many processes compute a pass together; not one with a hook or for over 64 rows.

        At first 1. If it is set to more, others are forked when they are needed first. They share
        this one's memory, see the caches that `new_cache` makes from then on, and end with the
        model, at the latest with this process. It stays 1 outside of Linux on x86, and is at most
        the number of threads in use. Results are the same to the bit where `forward` says so.

        What has this price: all wait for the slowest, so where other programs need the processors
        one process can be faster. BLAS has one thread for all of this process's NumPy, as long as
        there are others. What is let go of after the fork stays in their memory; of that of large
        caches, as much as half of the weights is kept for others. A fork of the program's own has
        one process again, and can't use the caches. NumPy's warnings of overflow and the like tell
        only of this process's part.
        """
        team = self._team
        return team.size if team else 1

    @processes.setter
    def processes(self, count: int) -> None:
        if count < 1:
            raise InvalidArgumentError(f"processes is {count}; it must be at least 1")
        if count == self.processes:
            return
        if self._team:
            self._team.close()
            self._team = None
        if (count := min(count, most_processes())) > 1:
            from gpt2np.runtime.process_group import Team  # not for everybody to wait for

            with suppress(OSError):  # the system refuses
                self._team = Team(self, count)

    @property
    def process_ids(self) -> list[int]:
        """Those of the other processes; none before the first pass that they are needed for."""
        team = self._team
        return team.pids if team else []

    def _is_for_all(self, sequences: Sequence[NDArray[np.int64]], rows: NDArray[np.int64]) -> bool:
        """Whether a pass is one for several processes: not the first, if it is short."""
        return len(rows) <= FEW_ROWS and (
            self.weights.was_used or sum(map(len, sequences)) > FEW_ROWS
        )

    def forward(
        self,
        sequences: Sequence[ArrayLike],
        caches: Sequence[KVCache] | None = None,
        *,
        logits_indices: ArrayLike | None = None,
        hook: Hook | None = None,
    ) -> Array:
        """Logits (R, V) for what follows each of the chosen R of N tokens.

        A token's logits are the same to the bit in a prompt, alone after a cache, as one of several
        drafts, and in any batch, where `gpt2np.kernels.blas.small_kernels()`; elsewhere to rounding.
        The module's docstring, `help(gpt2np.model.gpt2)`, has the hook's points and examples.

        Args:
            sequences: the new ids of each of S sequences, as in [[5, 6, 7], [8]], together N.
            caches: what each sequence has seen before, one KVCache each; they grow by the new
                tokens. Without them every sequence starts here.
            logits_indices: which of the N packed tokens, counted over all sequences, to give logits for; all
                by default. `last_token_indices(sequences)` are those that generation needs.
            hook: called as hook(name, array) with every inner array; what it returns, the array
                or another of its shape, takes the array's place.

        Raises:
            ContextLengthError: a sequence would have more than n_positions tokens.
            InvalidArgumentError: an impossible id, row, sequence, cache, or result of the hook.
        """
        new = checked_sequences(sequences, self.config.vocab_size)
        caches = [self.new_cache() for _ in new] if caches is None else caches
        caches = checked_caches(caches, new, self.config, self.dtype)
        chosen = checked_logits_indices(logits_indices, sum(map(len, new)))  # (R,)
        hook = checked_hook(hook, self.config.n_layer) if hook else None
        if (team := self._team) and not hook and self._is_for_all(new, chosen):
            make_room(caches, list(map(len, new)), team.memory)
            logits = team.forward(self, new, caches, chosen)
            if logits is not None:
                return logits
        with undone_on_failure(caches):
            return self.compute(new, caches, chosen, hook)

    def compute(
        self,
        sequences: Sequence[NDArray[np.int64]],
        caches: Sequence[KVCache],
        rows: NDArray[np.int64],
        hook: Hook | None = None,
        member: Alone = ALONE,
    ) -> Array:
        """`forward` of what it has checked; for it and the other processes."""
        passes = steps(sequences, caches, rows, hook, member)
        with one_thread_each():
            if member.has_all_tokens and (hook or sum(map(len, sequences)) <= MOST_TOKENS):
                return self._pass(next(passes))
            logits = member.logits(len(rows), self.config.vocab_size, self.dtype)
            for step in passes:
                logits[step.asked] = self._pass(step)
                member.meet()
            return logits

    def _pass(self, step: Step) -> Array:
        """From bottom to top: N ids → logits (R, V)."""
        w = self.weights.for_pass(short=len(step.ids) <= FEW_ROWS)
        x = w.embedded(step.ids) + w.positions[step.positions]
        x = step.at("embed", x)  # (N, C)
        for layer, block in enumerate(w.blocks):
            x = self._block(layer, block, x, step)  # (N, C), at last (R, C)
        for cache, tokens in zip(step.caches, step.all_tokens, strict=True):
            cache.advance(tokens.stop - tokens.start)
        x = step.at("ln_f", self._layer_norm(x, w.ln_f))  # (R, C)
        logits = self._unembedded(x, w.unembedding, step.member)
        return step.at("logits", logits[: np.count_nonzero(step.asked)])  # (R, V)

    def unembed(self, x: Array) -> Array:
        """What comes out of ln_f, (n, C), through the unembedding → logits (n, V)."""
        with one_thread_each():
            return self._unembedded(x, self.weights.for_pass(short=False).unembedding)

    def _unembedded(self, x: Array, unembedding: Iterable[Array], member: Alone = ALONE) -> Array:
        parts = [
            by_rows(partial(member.linear, "logits", panels=some), some.shape[1] * some.shape[3], x)
            for some in unembedding
        ]
        logits = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return logits[:, : self.config.vocab_size]

    def _block(self, layer: int, w: Block, x: Array, step: Step) -> Array:
        """One transformer block, pre-LN: the residual stream x (N, C) → itself, in the last (R, C).

        What the last block would make of the rows that nobody asks for is left out.
        """
        at, name = step.at, f"blocks.{layer}"
        rows = step.rows if layer == self.config.n_layer - 1 else slice(None)
        h = at(f"{name}.ln_1", self._layer_norm(x, w.ln_1))
        z = self._attention(layer, w, h, step)

        def rest(x: Array, z: Array) -> Array:  # no row of it depends on another
            h = step.member.linear("attn.out", z, w.attn_c_proj, w.attn_c_proj_bias)
            x = at(f"{name}.resid_mid", x + at(f"{name}.attn.out", h[:, : self.config.n_embd]))
            h = at(f"{name}.ln_2", self._layer_norm(x, w.ln_2))
            h = at(f"{name}.mlp.out", self._mlp(layer, w, h, step))
            return at(f"{name}.resid", x + h)

        x, z = x[rows], z[rows]
        return rest(x, z) if step.hook else by_rows(rest, x.shape[1], x, z)

    def _attention(self, layer: int, w: Block, x: Array, step: Step) -> Array:
        """The values of all heads, mixed by attention, x (N, C) → (N, C)."""
        groups, _, _, k, size = w.c_attn.shape
        inputs = input_groups(x, groups, k)[:, None, None]  # (I, 1, 1, N, k)

        def some(heads: slice) -> Array:
            qkv = added_up(product(inputs, w.c_attn[:, :, heads]))  # (3, h, N, D)
            qkv += w.c_attn_bias[:, heads]
            z = np.empty((len(x), qkv.shape[1], size), x.dtype)
            self._mix_values(layer, heads, qkv, step, z.swapaxes(0, 1))
            return z.reshape(len(x), qkv.shape[1] * size)

        n_head = self.config.n_head
        shares = 1 if step.hook or len(x) <= FEW_ROWS else 2 * python_threads()
        z = step.member.columns("z", x, (n_head, size), some, shares)
        z = z.reshape(len(x), n_head, size)[..., : self._head_size]
        return z.reshape(len(x), self.config.n_embd)

    def _mix_values(self, layer: int, heads: slice, qkv: Array, step: Step, z: Array) -> None:
        """Some heads of all sequences: qkv (3, h, N, D) → the mixed values, put in z (h, N, D)."""
        q, k, v = qkv
        for some in step.all_tokens if step.hook else ():
            for letter, array in zip("qkv", qkv, strict=True):
                step.show(f"blocks.{layer}.attn.{letter}", array[:, some, : self._head_size])
        for new in step.new:
            new.put(layer, heads, k, v)
        step.member.meet()

        def mix(group: Group) -> None:
            query = q[:, group.tokens] * self.attention_scale(layer)
            if group.times > 1:
                query = np.repeat(query, group.times, axis=1)
            held = [
                step.caches[block.sequence].held(layer, heads, block.seen, block.count)
                for block in group.blocks
            ]
            pattern = attention_pattern(query, held, group)
            step.show(f"blocks.{layer}.attn.pattern", pattern[:, :: group.times, : group.seen])
            z[:, group.tokens] = mixed_values(pattern, held, group)
            step.show(f"blocks.{layer}.attn.z", z[:, group.tokens, : self._head_size])

        # A hook is called in the order of the sequences.
        in_parallel(mix, step.groups, 1 if step.hook else python_threads())

    @property
    def _head_size(self) -> int:
        return self.config.n_embd // self.config.n_head

    def attention_scale(self, layer: int) -> float:
        """What scores are multiplied by: 1 / √D, and 1 / (layer + 1) where the config asks."""
        scale = 1.0
        if self.config.scale_attn_weights:
            scale /= math.sqrt(self._head_size)
        if self.config.scale_attn_by_inverse_layer_idx:
            scale /= layer + 1
        return scale

    def _mlp(self, layer: int, w: Block, x: Array, step: Step) -> Array:
        """The MLP, x (N, C) → (N, C)."""
        name, f = f"blocks.{layer}.mlp", self.config.n_inner

        def activated(h: Array) -> Array:
            step.show(f"{name}.pre", h[:, :f])
            h = self._activation(h)
            step.show(f"{name}.act", h[:, :f])
            return h

        h = step.member.linear("mlp.act", x, w.c_fc, w.c_fc_bias, activated)  # (n, F and 0s)
        out = step.member.linear("mlp.out", h, w.mlp_c_proj, w.mlp_c_proj_bias)
        return out[:, : self.config.n_embd]

    def _layer_norm(self, x: Array, weights: tuple[Array, Array]) -> Array:
        epsilon = self.config.layer_norm_epsilon
        return by_rows(lambda rows: layer_norm(rows, *weights, epsilon), x.shape[1], x)
