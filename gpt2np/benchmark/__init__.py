"""Measurements of a model's speed and memory, compared with the limits of the machine."""
