"""Perplexity, LAMBADA, WikiText, multiple choice: numbers by definitions that have a name.

perplexity   of texts, as in Hugging Face's guide "Perplexity of fixed-length models"
lambada      the last word: lm-evaluation-harness's lambada_openai, and the GPT-2 paper's
wikitext     lm-evaluation-harness's wikitext: per word and byte of the original
choices      lm-evaluation-harness's acc and acc_norm
requests     what lm-evaluation-harness asks a model for, which the others use
harness      a gpt2np model for lm-evaluation-harness itself, which must be installed

Each of the first four is a function of a `LanguageModel` and texts, and has a dataclass for its
result; `gpt2np.generation.scoring` computes the log probabilities.
"""
