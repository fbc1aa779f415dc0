"""Training of a GPT-2 with PyTorch and `transformers`: see `gpt2np train --help`.

options   hyperparameters
trainer   model, optimizers and training steps; the only module that imports PyTorch
"""
