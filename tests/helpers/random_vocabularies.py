"""Vocabularies with random merges, and their canonical covers found by trying everything."""

from itertools import product

from gpt2np import Tokenizer
from gpt2np.tokenizer.vocabulary import AddedToken, Vocabulary, bytes_to_chars


def random_tokenizer(rng, alphabet, n_merges, patterns):
    """Make a tokenizer of random merges, whose ranks may be in any order, and an end of text."""
    tokens = sorted({bytes_to_chars(bytes([byte])) for byte in alphabet.encode()})
    merges = []
    while len(merges) < n_merges:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if len(left + right) <= 5 and left + right not in tokens:
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    ranks = list(range(n_merges))
    if rng.random() < 0.5:
        rng.shuffle(ranks)
    ids = {token: i for i, token in enumerate(tokens)}
    end = AddedToken("<|endoftext|>", len(ids))
    return Tokenizer(Vocabulary(ids, dict(zip(merges, ranks, strict=True)), (end,), patterns))


def all_covers(tokenizer, text):
    """Yield (ids, bytes) of all token sequences that cover `text`, canonical or not."""
    special = {*tokenizer.special_tokens.values()}
    table = [(i, t) for i, t in tokenizer.vocabulary.token_bytes.items() if i not in special]
    unfinished = [((), b"")]
    while unfinished:
        ids, data = unfinished.pop()
        if len(data) >= len(text):
            yield ids, data
            continue
        unfinished += [
            ((*ids, i), data + token)
            for i, token in table
            if (data + token)[: len(text)] == text[: len(data + token)]
        ]


def canonical_covers(tokenizer, text, alphabet, n_following=2):
    """Return the covers with which the encoding of a text begins that `alphabet` can write."""
    following = ["".join(f) for n in range(n_following + 1) for f in product(alphabet, repeat=n)]
    return {
        ids
        for ids, data in all_covers(tokenizer, text)
        if any(
            tuple(tokenizer.encode(beginning + rest)[: len(ids)]) == ids
            for beginning in completions(data, alphabet)
            for rest in following
        )
    }


def completions(data, alphabet):
    """Return the texts that begin with `data`, with at most one character of `alphabet` more."""
    texts = []
    for rest in {b"", *(c.encode()[n:] for c in alphabet for n in range(1, len(c.encode())))}:
        try:
            texts.append((data + rest).decode())
        except UnicodeDecodeError:
            continue
    return texts
