"""The end of a prompt as the end of a text: `boundary="text"`.

A prompt that ends in a space or within a word ends where the model's tokens would go on: after
"Once upon a time", the model expects " there", not " " and "there". With `boundary="text"`, the
model continues the text instead of its tokens (Hayase et al. 2025, arXiv 2506.14123):

    P(continuation | text) = Σ P(cover) P(continuation | cover) / Σ P(cover),

summed over the canonical covers of the text; see `gpt2np.tokenizer.covers`. P(cover) is the product
of the model's probabilities of the tokens. One cover is drawn. If the cover's last token ends after
the end of the text, this token becomes the first new token. The tokens before this token replace
the prompt's tokens. The decode loop selects all further tokens as usual.

The tokens that all covers begin with, the root, are computed once, as a shared prefix. The other
tokens of the covers form a small tree. Its first path is computed in one pass with the end of the
root; there is rarely a second path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from gpt2np.errors import ContextLengthError, InvalidArgumentError
from gpt2np.generation.logits_processors import compute_logits
from gpt2np.generation.options import GenerationOptions
from gpt2np.generation.sampling import log_softmax, next_id, text_logprobs
from gpt2np.generation.scoring import TextScore
from gpt2np.kernels.array import Array, common_length
from gpt2np.model import GPT2, KVCache
from gpt2np.tokenizer import Tokenizer
from gpt2np.tokenizer.covers import Branch

_DRAW = 1  # follows the seed: the cover has a random number of its own, not the first token's

Path = tuple[int, ...]
Tree = dict[Path, Array]  # ids → logits (V,) of the next token
Process = Callable[[Path, Array], Array]  # ids, logits (V,) → logits (V,)


class Covers(NamedTuple):
    """The covers of a text, and the tokens that all of them begin with.

    Attributes:
        root: the ids that all covers begin with; at least one.
        branches: the covers; `Branch.ids` begin with `root`.
    """

    root: Path
    branches: Sequence[Branch]

    def within(self, n_positions: int, cut: int = 0) -> Covers:
        """Return the covers that fit a context, without their first `cut` ids."""
        branches = [branch._replace(ids=branch.ids[cut:]) for branch in self.branches]
        fitting = [branch for branch in branches if len(branch.ids) < n_positions]
        return Covers(self.root[cut:], fitting)

    def tree(self, model: GPT2, cache: KVCache) -> Tree:
        """Compute the logits (V,) after each beginning of a cover, from the root on.

        A cover that ends with the text is included where that needs no further pass. `cache` must
        hold the keys and values of the first ids of the root, but not of all its ids. Afterwards,
        `cache` holds the keys and values of the last key of the tree.

        Raises:
            CheckpointError: the logits are infinite or NaN.
        """
        whole_of = {branch.ids: branch.whole for branch in self.branches if branch.whole >= 0}
        paths = sorted(branch.ids for branch in self.branches)
        leaves = [a for a, b in zip(paths, [*paths[1:], ()], strict=True) if b[: len(a)] != a]
        tree: Tree = {}
        before = self.root[: cache.length]
        for leaf in leaves:
            leaf = (*leaf, whole_of[leaf]) if leaf in whole_of else leaf
            start = common_length(before, leaf)
            cache.truncate(start)
            first = max(start, len(self.root) - 1)
            indices = range(first - start, len(leaf) - start)
            logits = compute_logits(model, [leaf[start:]], [cache], indices)
            beginnings = [leaf[:stop] for stop in range(first + 1, len(leaf) + 1)]
            tree |= zip(beginnings, logits, strict=True)
            before = leaf
        return tree

    def path_logprob(self, tree: Tree, path: Path) -> float:
        """Return the log probability of the ids of `path` after the root."""
        steps = range(len(self.root), len(path))
        return sum(float(log_softmax(tree[path[:n]])[path[n]]) for n in steps)

    def logprob(self, model: GPT2, cache: KVCache) -> float:
        """Return the log probability of all covers after the root; `cache` as in `tree`."""
        tree = self.tree(model, cache)
        logprobs = np.concatenate(
            [
                self.path_logprob(tree, branch.ids) + log_softmax(tree[branch.ids])[branch.last]
                for branch in self.branches
            ]
        )
        return float(np.logaddexp.reduce(logprobs))

    def draw(self, tree: Tree, options: GenerationOptions, process: Process) -> tuple[Branch, int]:
        """Draw a cover: a branch, and the id of the last token.

        Temperature and filters apply to the probabilities of the covers. `process` applies
        penalties, bans and logits processors to the logits of new tokens, not of the prompt's. The
        cover has a random number of its own, which follows from the seed.
        """
        logprobs = [self._processed(tree, branch, process) for branch in self.branches]
        index = next_id(np.concatenate(logprobs), options, partial(_number, options.seed))
        for branch in self.branches:
            if index < len(branch.last):
                break
            index -= len(branch.last)
        return branch, int(branch.last[index])

    def _processed(self, tree: Tree, branch: Branch, process: Process) -> Array:
        """Return the log probability of each cover of a branch after `process`, (n,)."""
        logits = tree[branch.ids]
        logprobs = log_softmax(process(branch.ids, logits))[branch.last]
        is_whole = branch.last == branch.whole
        logprobs[is_whole] = log_softmax(logits)[branch.last[is_whole]]
        return logprobs + self.path_logprob(tree, branch.ids)


def _number(seed: int | None) -> float:
    return float(np.random.default_rng([seed or 0, _DRAW]).random())


def find_covers(
    tokenizer: Tokenizer, ids: Sequence[int], n_kept: int, bos_token_id: int | None
) -> Covers | None:
    """Return the covers of the text of a prompt; None if no token of the prompt may change.

    The text begins after the prompt's first `n_kept` ids, and after the last id that no text has,
    such as a special token's. If nothing precedes the text and its first token may change, the text
    follows `bos_token_id`.

    Raises:
        InvalidArgumentError: the tokenizer changes texts, or `bos_token_id` is needed, but None.
    """
    added = {token.id for token in tokenizer.vocabulary.added_tokens}
    plain = tokenizer.vocabulary.token_bytes.keys() - added
    n_kept = max([n_kept, *(i for i, token_id in enumerate(ids, 1) if token_id not in plain)])
    if n_kept == len(ids):
        return None
    before = tuple(ids[:n_kept])
    branches = tokenizer.find_covers(tokenizer.decode_bytes(ids[n_kept:]))
    if not before and not _root(branches):
        if bos_token_id is None:
            raise InvalidArgumentError(
                "{boundary} {boundary.value} needs an end-of-text token before a prompt as short "
                "as this one, but the model has none; omit it, or give a longer prompt",
                boundary="text",
            )
        before = (bos_token_id,)
    branches = [branch._replace(ids=before + branch.ids) for branch in branches]
    return Covers(_root(branches), branches)


def _root(branches: Sequence[Branch]) -> Path:
    """Return the ids with which all branches begin."""
    paths = [branch.ids for branch in branches]
    first, last = min(paths), max(paths)  # in lexicographic order, all others are between
    return first[: common_length(first, last)]


def score_text(
    model: GPT2, tokenizer: Tokenizer, bos_token_id: int, given: str, text: str
) -> TextScore:
    """Compute the log probability of `text` after `given`, wherever their tokens end.

    The scores are those of the tokens of both texts together that end within `text`. They sum to
    log P(given + text) - log P(given), where P sums over the covers of a text after `bos_token_id`.
    So the first score is divided by P(given), and the last one includes the text's other covers.

    Raises:
        ContextLengthError: the texts are longer than the context.
        InvalidArgumentError: the tokenizer changes texts before it encodes them.
    """
    given_ids, ids = (
        [bos_token_id, *tokenizer.encode(t, disallowed_special=())] for t in (given, given + text)
    )
    if len(ids) > model.config.n_positions:
        raise ContextLengthError(
            f"the texts have {len(ids)} tokens, more than the model's context of "
            f"{model.config.n_positions}; {{boundary}} {{boundary.value}} needs shorter texts",
            boundary="text",
        )
    cache = model.new_cache()
    scores = text_logprobs(model, ids, 1, cache)  # of ids[1:]
    cumulative = np.cumsum([0.0, *(score.logprob for score in scores)])
    start, end = (
        _covered_logprob(model, tokenizer, known, cumulative, cache) for known in (given_ids, ids)
    )
    table = tokenizer.vocabulary.token_bytes
    stops = np.cumsum([0, *(len(table[token_id]) for token_id in ids[1:])])
    n_given = len(tokenizer.decode_bytes(given_ids[1:]))
    first = int(np.searchsorted(stops, n_given, "right"))  # the first token that ends in `text`
    token_bytes = [table[token_id] for token_id in ids[first:]]
    token_bytes[:1] = [token[-int(stops[first] - n_given) :] for token in token_bytes[:1]]
    return TextScore(
        np.array(ids[first:], np.int64),
        np.diff([start, *cumulative[first:-1], end] if token_bytes else [start]),
        np.array([score.top[0][0] for score in scores[first - 1 :]], np.int64),
        tuple(token_bytes),
    )


def _covered_logprob(
    model: GPT2, tokenizer: Tokenizer, ids: Sequence[int], cumulative: Array, cache: KVCache
) -> float:
    """Return the log probability of a text with all its covers; `ids` begin with another id.

    `cumulative` and `cache` are those of ids that begin with the covers' root.
    """
    covers = find_covers(tokenizer, ids, 1, None)
    if covers is None:
        return 0.0
    n_root = len(covers.root)
    known = cache.copy()
    known.truncate(n_root - 1)
    rest = covers.within(model.config.n_positions).logprob(model, known)
    return float(cumulative[n_root - 1]) + rest
