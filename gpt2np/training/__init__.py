"""Training and fine-tuning of a GPT-2 in NumPy: see `gpt2np train --help`."""
