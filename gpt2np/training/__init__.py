"""Training and fine-tuning of a GPT-2 in NumPy: see `gpt2np train --help`.

options   hyperparameters
adamw     the optimizer, and the schedule of the learning rate
trainer   training steps, evaluation, saved states
curve     the loss curve, as SVG
teach     fine-tuning on one page of text, in a process of its own
"""
