"""Corpora in, datasets of token ids out: safe files, locks, resumable output, worker processes."""

END_OF_TEXT = "<|endoftext|>"
"""Separator between the documents of GPT-2's corpora, and the text of its special token."""
