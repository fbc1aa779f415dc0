"""Texts of a given form: one of several choices, or what matches a regular expression.

    syntax, characters    pattern → tree of sets of characters
    utf8, automaton       tree → automaton over bytes, built as far as it is used
    vocabulary_trie       automaton and vocabulary → which ids may come next
    text                  the state of a text, as the decode loop uses it

A token may hold half a character, or end in the middle of a word: as bytes are what is followed,
every token that can still lead to a match is allowed, and no other.

Two libraries that do this were tried first. llguidance 1.9 lets only one way of cutting a text into
tokens through where the text is certain (of "Hello world" only "Hello", not "H" or "He"), and
doesn't say when nothing matches; outlines-core 0.2 looks at every state beforehand, which takes 4
seconds for .{1,100}x.
"""

from gpt2np.constraints.protocol import Constraint
from gpt2np.constraints.text import text_constraint

__all__ = ["Constraint", "text_constraint"]
