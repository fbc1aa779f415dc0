"""Corpora in, datasets of token ids out: files, locks, resumable output, worker processes."""
