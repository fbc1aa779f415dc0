"""Perplexity, LAMBADA, WikiText, multiple choice: numbers by definitions that have a name.

perplexity   of texts, as in Hugging Face's guide "Perplexity of fixed-length models"
lambada      the last word: lm-evaluation-harness's lambada_openai, and the GPT-2 paper's
wikitext     lm-evaluation-harness's wikitext: per word and byte of the original
choices      lm-evaluation-harness's acc and acc_norm
requests     lm-evaluation-harness's three kinds of question to a model, which the others use
harness      a gpt2np model for lm-evaluation-harness itself, which must be installed
"""
