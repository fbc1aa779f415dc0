"""Perplexity of texts, and scores of each document of a corpus."""
