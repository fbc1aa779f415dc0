"""Constrained generation: texts out of several choices, or texts that match a regular expression.

    syntax        pattern → syntax tree
    characters    sets of characters, and their UTF-8 encodings
    automaton     syntax tree → automaton over bytes, built on demand
    token_mask    automaton and vocabulary → which ids may come next

A token may hold half a character, or end inside of a word. The automaton reads bytes, so exactly
those tokens are allowed that can still lead to a match.

Two libraries for this were tried first. llguidance 1.9 allows only one tokenization where the text
is certain (of "Hello world" only "Hello", not "H" or "He"), and does not report a pattern that
matches nothing. outlines-core 0.2 computes every state in advance, 4 seconds for .{1,100}x.
"""

from gpt2np.constraints.token_mask import Constraint, text_constraint

__all__ = ["Constraint", "text_constraint"]
