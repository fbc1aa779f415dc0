"""Generation from a file of prompts, in batches, with resumption after an interruption."""
