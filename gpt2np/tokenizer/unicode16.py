"""Classes of characters by Unicode 16, for any version of the package `regex`.

Each version of `regex` follows the latest Unicode, but tiktoken 0.14 and tokenizers 0.23 follow
Unicode 16. Token ids must not depend on versions. So characters that Unicode 17 and 18 assigned
count as unassigned.
"""

import re
from functools import cache

_NEWER_THAN_UNICODE_16 = (
    "\u0558\u058b-\u058c\u05c8-\u05c9\u088f\u0b53-\u0b54\u0c5c\u0cdc\u1acf-\u1af0\u208f"
    "\u209d-\u209f\u20c1-\u20c4\u2b96\u2e60-\u2e63\ua7ce-\ua7cf\ua7d2\ua7d4\ua7dd\ua7e2\ua7f1"
    "\uab6c-\uab6d\ufbc3-\ufbd2\ufd90-\ufd91\ufdc8-\ufdce\U000107bb-\U000107bf"
    "\U00010940-\U00010959\U00010ec5-\U00010ec7\U00010ec9-\U00010eee\U00010ef0-\U00010efb"
    "\U00011b0a\U00011b60-\U00011b67\U00011db0-\U00011ddb\U00011de0-\U00011de9"
    "\U00011df0-\U00011df1\U0001246f\U00012475-\U0001247f\U00012550-\U00012686"
    "\U00016ea0-\U00016eb8\U00016ebb-\U00016ed3\U00016ff2-\U00016ff6\U000187f8-\U000187ff"
    "\U00018cd6-\U00018cda\U00018d09-\U00018d20\U00018d80-\U00018df2\U00018e00-\U00019191"
    "\U000191a0-\U000191d2\U0001b123-\U0001b128\U0001b168\U0001ccfa-\U0001ccfc"
    "\U0001ceba-\U0001ced0\U0001ced2-\U0001ced4\U0001cedd-\U0001cefd\U0001d127-\U0001d128"
    "\U0001d1eb-\U0001d1ff\U0001d250-\U0001d281\U0001d6a6\U0001db00-\U0001db1c"
    "\U0001df1f-\U0001df24\U0001df2b-\U0001df81\U0001df90-\U0001df96\U0001dfcd-\U0001dfff"
    "\U0001e6c0-\U0001e6de\U0001e6e0-\U0001e6f5\U0001e6fe-\U0001e6ff\U0001f1ae"
    "\U0001f6d8-\U0001f6d9\U0001f777-\U0001f77a\U0001f7da-\U0001f7db\U0001f7f1-\U0001f7ff"
    "\U0001f8d0-\U0001f8d8\U0001fa54-\U0001fa57\U0001fa8a-\U0001fa8e\U0001fac8"
    "\U0001facc-\U0001facd\U0001fadd\U0001faea-\U0001faeb\U0001faef\U0001faf9-\U0001fafa"
    "\U0001fbfa\U0002b73a-\U0002b73f\U0002b81e\U0002cea2-\U0002cead\U000323b0-\U00033479"
    "\U0003d000-\U0003fc3f"
)
_FIRST_ASTRAL = "\U000107bb"
_UNASSIGNED = "\U00050000"


def mask_newer_characters(text: str) -> str:
    """Replace characters newer than Unicode 16 by an unassigned one; the length stays."""
    if text.isascii():
        return text
    may_be_newer, is_newer = _newer_patterns()
    found = may_be_newer.search(text) and is_newer.search(text)
    return is_newer.sub(_UNASSIGNED, text) if found else text


def is_word_character(character: str) -> bool:
    r"""Tell whether `\w` matches: a letter, mark, digit, connector or joiner of Unicode 16."""
    import regex

    return bool(regex.match(r"\w", mask_newer_characters(character)))


@cache
def _newer_patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a fast pattern that also matches older characters, and the exact pattern."""
    basic = _NEWER_THAN_UNICODE_16.partition(_FIRST_ASTRAL)[0]
    astral = "\U00010000-\U0010ffff"
    return re.compile(f"[{basic}{astral}]"), re.compile(f"[{_NEWER_THAN_UNICODE_16}]")
