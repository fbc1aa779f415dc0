"""Solutions of the exercises in 1_text_to_ids.ipynb."""

from gpt2np import Tokenizer


def characters_per_token(tokenizer: Tokenizer, text: str) -> float:
    return len(text) / tokenizer.count(text)


def first_merge(tokenizer: Tokenizer, piece: str) -> tuple[str, str] | None:
    step = tokenizer.trace_merges(piece)[0].steps[0]
    if step.chosen is None:
        return None
    return step.tokens[step.chosen], step.tokens[step.chosen + 1]


def is_concatenation(tokenizer: Tokenizer, left: str, right: str) -> bool:
    return tokenizer.encode(left + right) == tokenizer.encode(left) + tokenizer.encode(
        right
    )


def safe_prompt(tokenizer: Tokenizer, text: str) -> list[int]:
    assert tokenizer.eos_token_id is not None
    return [tokenizer.eos_token_id, *tokenizer.encode(text, disallowed_special=())]
