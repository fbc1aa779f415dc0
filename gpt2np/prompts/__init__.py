"""Batched generation from a file of prompts, which can resume after an interruption."""
