"""Evaluate a model on perplexity, LAMBADA, WikiText and multiple choice, by published definitions.

perplexity       texts, as in Hugging Face's guide "Perplexity of fixed-length models"
lambada          the last word: lm-evaluation-harness's lambada_openai, and the GPT-2 paper's
wikitext         lm-evaluation-harness's wikitext: perplexity per word and byte of the original
multiple_choice  lm-evaluation-harness's acc and acc_norm
loglikelihood    the requests that lm-evaluation-harness sends to a model
documents        the files that evaluations read
result           base class of the results: JSON and tables
harness          a gpt2np model for lm-evaluation-harness itself (a separate installation)

Each of the first four is a function of a `LanguageModel` and texts, and returns a dataclass.
`gpt2np.generation.scoring` computes the log probabilities.
"""
