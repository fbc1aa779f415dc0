"""The byte alphabet: each of the 256 bytes as one printable character.

GPT-2's vocabulary files are text, so they can't hold raw bytes. OpenAI's encoder
(`bytes_to_unicode` in gpt-2/src/encoder.py) gives every byte a visible stand-in: the bytes that are
printable in Latin-1 stand for themselves, the other 68 take the characters from U+0100 on, in
order. So a space is "Ġ" and a newline "Ċ".
"""

_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

CHARACTER_OF_BYTE: dict[int, str] = {byte: chr(byte) for byte in _PRINTABLE} | {
    byte: chr(0x100 + n) for n, byte in enumerate(_OTHERS)
}
BYTE_OF_CHARACTER: dict[str, int] = {char: byte for byte, char in CHARACTER_OF_BYTE.items()}

_OUTSIDE = "\uffff"  # no Latin-1 character, so that encoding what is outside the alphabet fails
_TO_LATIN_1: dict[int, int | str] = dict.fromkeys(range(256), _OUTSIDE) | {
    ord(char): byte for char, byte in BYTE_OF_CHARACTER.items()
}


def to_characters(data: bytes) -> str:
    """The stand-in characters of `data`: b" hi" → "Ġhi"."""
    return data.decode("latin-1").translate(CHARACTER_OF_BYTE)


def to_bytes(characters: str) -> bytes:
    """The bytes that `characters` stand for: "Ġhi" → b" hi".

    Raises UnicodeEncodeError for a character that is not in the alphabet.
    """
    return characters.translate(_TO_LATIN_1).encode("latin-1")
