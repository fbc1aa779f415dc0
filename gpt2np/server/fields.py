"""Fields of OpenAI's, vLLM's and other servers' requests that `protocol.py` does not declare.

docs/guide/server.md tells which fields the server takes.
"""

from __future__ import annotations

from typing import Any

_STRUCTURED = "use structured_outputs.regex, .choice or .json"
REFUSED = {
    "guided_regex": "use structured_outputs.regex",
    "guided_choice": "use structured_outputs.choice",
    "guided_json": "use structured_outputs.json",
    "guided_grammar": _STRUCTURED,
    "guided_whitespace_pattern": "use structured_outputs.regex, and write the white "
    "space into the pattern",
    "regex": "use structured_outputs.regex",
    "grammar": _STRUCTURED,
    "ebnf": _STRUCTURED,
    "json_schema": "use response_format or structured_outputs.json",
    "structural_tag": _STRUCTURED,
    "truncation_side": "truncate_prompt_tokens always drops the first tokens",
    "echo": "only completions echo a prompt",
    "continue_final_message": "use /v1/completions",
    "chat_template": "the model's own template is used",
    "chat_template_kwargs": "the model's own template is used",
    "documents": "put documents in a message",
    "functions": "",
    "function_call": "",
    "audio": "",
    "modalities": "the models accept and return only text",
    "web_search_options": "",
    "prompt_embeds": "send text or token ids",
    "return_prompt_text": "use return_token_ids and /detokenize",
    "logprob_token_ids": "use logprobs",
    "logits_processors": "",
    "repetition_detection": "use stop or repetition_penalty",
    "thinking_token_budget": "",
    "watermarking": "",
    "n_predict": "use max_tokens",
    "max_new_tokens": "use max_tokens",
    "max_length": "use max_tokens",
    "early_stopping": "",
    "max_time": "the server limits the time of a request",
    "min_new_tokens": "use min_tokens",
    "num_return_sequences": "use n",
    "bad_words_ids": "use bad_words",
    "choices": "use structured_outputs.choice",
    "stop_regex": "use stop",
    "stop_sequences": "use stop",
    "stop_strings": "use stop",
    "window": "use truncate_prompt_tokens",
    "num_beams": "set use_beam_search to true, and n or best_of to the number of beams",
    "do_sample": "for greedy decoding, set temperature to 0",
    "repeat_penalty": "use repetition_penalty",
    "typical": "use typical_p",
    "mirostat": "",
    "dry_multiplier": "use no_repeat_ngram_size",
    "xtc_probability": "",
    "dynatemp_range": "",
}
"""Fields that would change the result: a request with such a field is an error. With advice."""

_NOTHING: list[Any] = [None, False, 0, "", [], {}]
NEUTRAL: dict[str, list[Any]] = {
    "truncation_side": [None, "left"],
    "modalities": [None, ["text"]],
    "function_call": [None, "none"],
    "do_sample": [None, True],
    "num_beams": [None, 1],
    "num_return_sequences": [None, 1],
    "repeat_penalty": [None, 1],
    "typical": [None, 1],
    "thinking_token_budget": [None, -1],
}
"""Values of refused fields that change nothing, where they are not those of `_NOTHING`."""

_NOT_TEXT = "the models accept only text"
_NO_REASONING = "the models have no reasoning channel"
_ELSEWHERE = "only for OpenAI's hosted service"
_CLUSTER = "only for vLLM clusters"
IGNORED = {
    "user": "the server does not use this field",
    "metadata": "the server does not use this field",
    "request_id": "the server sets the response's X-Request-Id",
    "session_id": "the server does not use this field",
    "safety_identifier": _ELSEWHERE,
    "prompt_cache_key": _ELSEWHERE,
    "prompt_cache_options": _ELSEWHERE,
    "prompt_cache_retention": _ELSEWHERE,
    "moderation": _ELSEWHERE,
    "service_tier": _ELSEWHERE,
    "store": _ELSEWHERE,
    "prediction": "a prediction affects only speed",
    "verbosity": "the models have no such setting",
    "reasoning_effort": _NO_REASONING,
    "include_reasoning": _NO_REASONING,
    "parallel_tool_calls": "the server supports no tools",
    "media_io_kwargs": _NOT_TEXT,
    "mm_processor_kwargs": _NOT_TEXT,
    "return_mm_kwargs": _NOT_TEXT,
    "add_special_tokens": "GPT-2's tokenizer adds none",
    "spaces_between_special_tokens": "special tokens are not part of the text",
    "draft": "the server chooses the draft tokens; the text is the same",
    "priority": "requests run in order of arrival",
    "stream_interval": "the server sends an event after each forward pass",
    "return_token_offsets": "only for vLLM's render endpoint",
    "routed_experts_prompt_start": "the models have no experts",
    "cache_salt": "requests share no cached prefixes",
    "kv_transfer_params": _CLUSTER,
    "ec_transfer_params": _CLUSTER,
    "vllm_xargs": "only for vLLM extensions",
    "guided_decoding_backend": "gpt2np has only one backend",
}
"""Fields that change nothing, with the reason."""


def is_meant(name: str, value: Any) -> bool:
    """Return whether a refused field's value would change the result."""
    return value not in NEUTRAL.get(name, _NOTHING)
