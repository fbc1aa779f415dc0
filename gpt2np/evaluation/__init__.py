"""Perplexity of texts, and scores of each document of a corpus.

LAMBADA, WikiText and multiple-choice questions are run by lm-evaluation-harness through
`gpt2np serve`; see the guide's page on scoring.
"""
