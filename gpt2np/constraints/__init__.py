"""Constrained generation: limit the text to choices, a regular expression or a JSON Schema.

    syntax        parses a pattern to a syntax tree; limits the size of a pattern
    json_schema   compiles a JSON Schema to a syntax tree
    json_text     syntax trees of strings, numbers, arrays and objects
    characters    sets of characters and their UTF-8 encodings
    automaton     reads a syntax tree byte by byte; counts the tokens to a match
    trie          holds the prefix tree of the vocabulary
    token_mask    Constraint; computes which token ids may come next

A token may end inside a character or a word, so the automaton reads bytes. A token is allowed if
and only if the text with the token can still become a match.
"""

# Why not a library? llguidance 1.9 allows only one tokenization where the text is forced: at the
# start of "Hello world" it allows "Hello", but not "H" or "He". It also accepts patterns that match
# nothing. outlines-core 0.2 computes every state in advance, which takes 4 s for .{1,100}x.

from gpt2np.constraints.token_mask import Constraint, text_constraint

__all__ = ["Constraint", "text_constraint"]
