"""Texts that tests make up."""


def any_characters(rng, length: int) -> str:
    """A text of about `length` characters over all of Unicode, also of what is no character."""
    codes = (rng.randrange(0x110000) for _ in range(length))
    return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)
