"""Limits on files, texts and requests from strangers.

Ordinary use stays far below each limit. The environment variable GPT2NP_ + NAME sets a limit, as in
GPT2NP_MAX_LINE_BYTES=1000000000.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

from gpt2np.errors import InvalidArgumentError, did_you_mean, short_repr

MIB, GIB = 1 << 20, 1 << 30
MIN_CHECKED_EXPANSION = 64 * MIB
"""A compressed file that expands to this size or less may have any ratio."""


def _limit(default: int, effect: str, unit: str = "") -> Any:
    """Declare a limit; by default, its unit is the last word of its name."""
    return field(default=default, metadata={"effect": effect, "unit": unit})


@dataclass(frozen=True)
class Limits:
    """Limits on untrusted input. A field's metadata says what happens beyond the limit."""

    # Parsing JSON can take fifty times the file's size in memory. GPT-2 XL's header has 60,000
    # bytes; the largest common tokenizer_config.json has 1.2 million.
    max_config_bytes: int = _limit(
        2 * MIB, "A larger config, header or chat template is refused before it is read."
    )
    # Several times the largest byte-pair vocabulary in use.
    max_vocabulary_bytes: int = _limit(
        32 * MIB, "A larger vocabulary file or saved conversation is refused before it is read."
    )
    max_template_seconds: int = _limit(
        10, "A chat template that takes longer to compile or to render causes an error."
    )
    max_template_memory_bytes: int = _limit(
        512 * MIB, "A chat template that needs more memory causes an error (Linux only)."
    )
    max_template_characters: int = _limit(
        4 * MIB, "A chat template that renders a longer text causes an error."
    )
    max_cache_bytes: int = _limit(
        GIB,
        "A sequence starts only if no other sequence runs, or if its own KV cache and those of all "
        "running sequences together fit within this limit. A beam search whose KV caches "
        "need more is refused.",
    )
    max_inspected_bytes: int = _limit(
        16 * MIB, "`/api/inspect` refuses to return larger activations."
    )
    # A pass that is kept for its gradients takes half a gigabyte with GPT-2 small.
    max_saliency_tokens: int = _limit(256, "`/api/saliency` refuses a longer text.")
    # Each runs in a pass of its own; beside others, they share a tenth of a second of each step.
    max_steered_sequences: int = _limit(
        8,
        "`gpt2np serve` refuses a request with `interventions` if the request would raise the "
        "number of running sequences with `interventions` above this limit.",
    )
    max_steered_tokens: int = _limit(
        500, "`gpt2np serve` refuses a request with `interventions` that asks for more new tokens."
    )
    # Each edited hook point costs 0.1 ms in each pass.
    max_steered_points: int = _limit(
        300,
        "`gpt2np serve` refuses a request whose `interventions` edit more hook points in total.",
        "hook points",
    )
    max_choices_characters: int = _limit(50_000, "`choices` that are longer in total are refused.")
    max_schema_characters: int = _limit(100_000, "A larger JSON Schema is refused.")
    max_line_bytes: int = _limit(
        64 * MIB, "A longer line of a .jsonl file or prompt file causes an error."
    )
    max_document_bytes: int = _limit(
        GIB, "A longer text from standard input, a file or a corpus causes an error."
    )
    max_compression_ratio: int = _limit(
        200,
        "A .gz, .npz or .parquet file that expands by a larger factor causes an error, unless it "
        "expands to at most 64 MiB.",
        "bytes per byte",
    )
    max_hub_file_bytes: int = _limit(
        256 * MIB, "A larger file on the Hub, other than weights, is not downloaded."
    )
    max_hub_weights_bytes: int = _limit(
        64 * GIB, "A larger file of weights on the Hub is not downloaded."
    )
    # Parsing keeps Python's interpreter lock: 4 MiB take up to 0.1 s.
    max_body_bytes: int = _limit(
        4 * MIB, "A request to `gpt2np serve` with a larger body gets status 413."
    )
    max_list_entries: int = _limit(100_000, "`gpt2np serve` refuses a longer list in a request.")
    max_option_entries: int = _limit(
        1000,
        "`gpt2np serve` refuses longer lists of texts or ids in an option, such as `stop`, "
        "`bad_words` or `logit_bias`.",
    )
    max_option_characters: int = _limit(
        50_000, "`gpt2np serve` refuses an option whose texts are longer in total."
    )
    max_top_logprobs: int = _limit(
        20,
        "`gpt2np serve` refuses to list the log probabilities of more tokens at each position.",
        "tokens",
    )
    max_header_seconds: int = _limit(
        10, "`gpt2np serve` closes a connection if the headers take longer to arrive."
    )
    max_body_seconds: int = _limit(
        60, "A request to `gpt2np serve` gets status 408 if its body takes longer to arrive."
    )
    max_connections: int = _limit(
        2048,
        "For each further connection, `gpt2np serve` closes the oldest connection that has no "
        "request. The limit is lower where the system allows fewer open files.",
    )
    max_response_logprobs: int = _limit(
        2_000_000,
        "`gpt2np serve` refuses a request for more log probabilities in all choices together.",
        "numbers",
    )
    max_explained_piece_characters: int = _limit(
        256, "The page of `explain` omits the merges of a longer piece."
    )


@cache
def limits() -> Limits:
    """Return the limits on untrusted input; environment variables replace the defaults.

    Raises InvalidArgumentError if a variable is not a positive integer, or there is no such limit.
    """
    names = {variable(limit.name): limit.name for limit in fields(Limits)}
    values = {}
    for name, text in os.environ.items():
        if not name.startswith("GPT2NP_MAX_"):
            continue
        if name not in names:
            raise InvalidArgumentError(f"there is no limit {name}{did_you_mean(name, names)}")
        if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text)):
            raise InvalidArgumentError(f"{name} is {short_repr(text)}; expected a positive integer")
        values[names[name]] = int(text)
    return Limits(**values)


def check_expansion(name: object, n_compressed: int, n_expanded: int) -> None:
    """Raise InvalidArgumentError if a compressed file expands to more than the limits allow."""
    if n_expanded > max(limits().max_compression_ratio * n_compressed, MIN_CHECKED_EXPANSION):
        raise InvalidArgumentError(
            f"{name}: {n_compressed:,} compressed bytes expand to {n_expanded:,} or more; "
            f"{how_to_raise('max_compression_ratio')}"
        )


def how_to_raise(name: str) -> str:
    """Return advice for an error message on how to raise a limit."""
    return f"to raise this limit, set {variable(name)}"


def variable(name: str) -> str:
    """Return the environment variable that sets a limit: max_line_bytes → GPT2NP_MAX_LINE_BYTES."""
    return f"GPT2NP_{name.upper()}"
