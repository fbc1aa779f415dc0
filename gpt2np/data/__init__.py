"""Reading of corpora, safe files, resumable output, worker processes."""

END_OF_TEXT = "<|endoftext|>"
"""Text of GPT-2's special token, which separates the documents of a corpus."""
