"""Ids to text, one id at a time."""

import codecs
from collections.abc import Mapping


class StreamingDecoder:
    """Turns a stream of ids into a stream of text that never holds half a character.

    A token may end in the middle of a UTF-8 character; its last bytes are then kept back until the
    tokens that complete them arrive. The pieces joined, with `finish()`, equal `Tokenizer.decode`
    of all ids: what is no valid UTF-8 becomes U+FFFD, exactly as there.
    """

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        self._tokens = tokens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        """The text that `token_id` completes, perhaps none.

        An id without a token has no text: some models have more rows than their vocabulary, and may
        generate one of them.
        """
        return self._decoder.decode(self._tokens.get(token_id, b""))

    def finish(self) -> str:
        """The end of the text: U+FFFD if the stream stopped within a character, else nothing."""
        return self._decoder.decode(b"", final=True)
