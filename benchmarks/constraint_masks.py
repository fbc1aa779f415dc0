"""Measure how long the token masks of regular expressions and JSON Schemas take, in milliseconds.

    pip install llguidance                       # compared, if it is installed
    python benchmarks/constraint_masks.py [MODEL]

The first mask includes the automaton; the trie of the vocabulary is built before. The next masks
follow the tokens of a text. Times are those of the processor, so other programs disturb them less.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from gpt2np import Tokenizer
from gpt2np.constraints import text_constraint
from gpt2np.hub import find_vocabulary

try:
    import llguidance
    import llguidance.numpy as llguidance_masks
except ImportError:
    llguidance = None

WORDS = "The quick brown fox jumps over the lazy dog. "
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 10}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
NAMES = [f"property_{i}" for i in range(40)]
MANY = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in NAMES},
    "required": NAMES,
    "additionalProperties": False,
}
CASES: dict[str, tuple[str | dict[str, Any], str]] = {  # pattern or schema, and a text
    r"\d+(?:\.\d\d)?": (r"\d+(?:\.\d\d)?", "1234.56"),
    r"(?:\w+ ){5,100}end": (r"(?:\w+ ){5,100}end", WORDS.replace(".", "") * 3 + "end"),
    ".{1,500}": (".{1,500}", WORDS * 10),
    "three properties": (PERSON, '{"name":"A fox","age":12,"tags":["red","quick"]}'),
    "40 properties": (MANY, json.dumps(dict.fromkeys(NAMES, "text"), separators=(",", ":"))),
    "any object": ({"type": "object"}, '{"a":[1,2.5,{"b":null}],"words":"The quick brown fox"}'),
    "string, maxLength 1000": ({"type": "string", "maxLength": 1000}, f'"{WORDS * 10}"'),
    "enum of 500": ({"enum": [f"value {i}" for i in range(500)]}, '"value 321"'),
}


def milliseconds(function: Callable[[], Any]) -> tuple[Any, float]:
    """Return a function's result and its processor time."""
    began = time.process_time()
    result = function()
    return result, 1e3 * (time.process_time() - began)


def ours(tokenizer: Tokenizer, constraint: Any, ids: list[int]) -> Iterator[float]:
    """Yield the time of each mask."""
    special_ids = frozenset(tokenizer.special_tokens.values())
    tokens = tokenizer.vocabulary.token_bytes
    given: dict[str, Any] = (
        {"regex": constraint}
        if isinstance(constraint, str)
        else {"json_schema": json.dumps(constraint)}
    )
    vocab_size = max(tokens) + 1
    state, spent = milliseconds(
        partial(text_constraint, tokens, vocab_size, special_ids, special_ids, **given)
    )
    yield spent + milliseconds(state.allowed)[1]
    for token_id in ids[:-1]:
        state = state.advance(token_id)
        yield milliseconds(state.allowed)[1]


def theirs(tokenizer: Tokenizer, constraint: Any, ids: list[int]) -> Iterator[float]:
    """Yield the time of each mask of llguidance."""
    table = tokenizer.vocabulary.token_bytes

    class Vocabulary:
        eos_token_id = next(iter(tokenizer.special_tokens.values()))
        bos_token_id = None
        tokens = [table.get(i, b"") for i in range(max(table) + 1)]  # noqa: RUF012
        special_token_ids = [*tokenizer.special_tokens.values()]  # noqa: RUF012

        def __call__(self, text: str | bytes) -> list[int]:
            return tokenizer.encode(text if isinstance(text, str) else text.decode())

    wrapper = llguidance.TokenizerWrapper(Vocabulary())
    vocabulary = llguidance.LLTokenizer(wrapper, n_vocab=len(Vocabulary.tokens))
    if isinstance(constraint, str):
        grammar = llguidance.LLMatcher.grammar_from_regex(constraint)
    else:
        compact = constraint | {"x-guidance": {"whitespace_flexible": False}}
        grammar = llguidance.LLMatcher.grammar_from_json_schema(compact)
    bits = llguidance_masks.allocate_token_bitmask(1, len(Vocabulary.tokens))
    matcher, spent = milliseconds(lambda: llguidance.LLMatcher(vocabulary, grammar))
    fill = partial(llguidance_masks.fill_next_token_bitmask, matcher, bits, 0)
    yield spent + milliseconds(fill)[1]
    for token_id in ids[:-1]:
        assert matcher.consume_token(token_id), matcher.get_error()
        yield milliseconds(fill)[1]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("model", nargs="?", default="gpt2", help="name, folder or vocabulary (default: gpt2)")
    tokenizer = Tokenizer.load(find_vocabulary(parser.parse_args().model).path)
    engines = [("gpt2np", ours)] + [("llguidance", theirs)] * bool(llguidance)
    columns = "".join(f" | {name}: first | next, median | next, 99 %" for name, _ in engines)
    print(f"| constraint | tokens{columns} |\n|---|---:{'|---:' * 3 * len(engines)}|")
    for _ in ours(tokenizer, "a", [0]):
        pass  # builds the trie
    for name, (constraint, text) in CASES.items():
        ids = tokenizer.encode(text)
        cells = [name.replace("|", "\\|"), f"{len(ids)}"]
        for _, masks in engines:
            first, *more = masks(tokenizer, constraint, ids)
            cells += [f"{first:.1f}", f"{median(more):.3f}", f"{np.quantile(more, 0.99):.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
