"""Many prompts out of a file, and their continuations into another."""
