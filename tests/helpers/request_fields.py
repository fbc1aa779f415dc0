"""Fields of `/v1/completions`, and the options of `LanguageModel.generate` that they mean."""

from typing import Any

_BOOLEAN = {"type": "boolean"}
_NAMED = {"name": "x", "schema": _BOOLEAN}

FIELDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        (options, options)
        for options in (
            {"temperature": 0.0},
            {"temperature": 0.3, "top_p": 0.9},
            {"temperature": 0.7, "top_k": 5},
            {"frequency_penalty": 1.5, "presence_penalty": -1.0},
            {"min_p": 0.1, "repetition_penalty": 1.2},
            {"stop": "a"},
            {"stop": ["a", " th", "🦊"]},
            {"stop_token_ids": [13, 262]},
            {"bad_words": ["the", "king"]},
        )
    ),
    ({"max_tokens": 5}, {"max_new_tokens": 5}),
    ({"top_k": -1, "top_p": 0.5, "user": "me"}, {"top_p": 0.5}),
    ({"stop": [" the", "."] + [f"stop{i}" for i in range(20)]}, {"stop": [" the", "."]}),
    ({"logit_bias": {"262": -5, "13": 3}}, {"logit_bias": {262: -5.0, 13: 3.0}}),
    ({"ignore_eos": True, "min_tokens": 8}, {"ignore_eos": True, "min_new_tokens": 8}),
    ({"n": 3}, {"num_return_sequences": 3}),
    ({"structured_outputs": {"regex": r"( \w+){3}"}}, {"regex": r"( \w+){3}"}),
    ({"structured_outputs": {"choice": [" old", " new"]}}, {"choices": [" old", " new"]}),
    (
        {"stop": ["e"], "structured_outputs": {"choice": [" old", " new"]}},
        {"stop": ["e"], "choices": [" old", " new"]},
    ),
    ({"structured_outputs": {"json": _BOOLEAN}}, {"json_schema": _BOOLEAN}),
    ({"structured_outputs": {"json": '{"type": "null"}'}}, {"json_schema": {"type": "null"}}),
    ({"response_format": {"type": "json_object"}}, {"json_schema": {"type": "object"}}),
    (
        {"response_format": {"type": "json_schema", "json_schema": _NAMED}},
        {"json_schema": _BOOLEAN},
    ),
]
