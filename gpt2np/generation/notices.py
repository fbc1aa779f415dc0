"""Notices about the space between a prompt and the text that follows.

In GPT-2's vocabulary, a word begins with its space.
"""

from collections.abc import Sequence
from string import ascii_letters, digits

from gpt2np.generation.options import GenerationOptions

# Only Latin letters: other scripts may have no spaces between words.
_WORD_CHARACTERS = frozenset(ascii_letters + digits)
_BEFORE_A_SPACE = _WORD_CHARACTERS.union(".,:;!?")


def prompt_notice(prompt: str, options: GenerationOptions) -> str | None:
    """Return advice on a prompt that ends in a space, or on a choice that lacks its space."""
    if not prompt.endswith(" ") or options.token_healing:
        return missing_space(prompt, options.choices, "the prompt")
    advice = "the prompt ends in a space; GPT-2's words begin with their space, so leave it out"
    if options.choices or options.regex:
        return f"{advice} of the prompt, and begin the constraint with it"
    return advice if options.json_schema else f"{advice}, or set `token_healing`"


def missing_space(before: str, texts: Sequence[str], name: str) -> str | None:
    """Return advice if no space separates `before`, called `name`, from a word that follows."""
    if before[-1:] not in _BEFORE_A_SPACE:
        return None
    first = next((text for text in texts if text[:1] in _WORD_CHARACTERS), None)
    return first and f"no space separates {name} from {first!r}; give {' ' + first!r}"


def given_notice(given: str, texts: Sequence[str]) -> str | None:
    """Return advice if `given` ends in a space, or a text to score lacks its space."""
    if given.strip() and given.endswith(" ") and texts:
        return "`given` ends in a space; move the space to `text`: GPT-2's words begin with theirs"
    return missing_space(given, texts, "`given`")
