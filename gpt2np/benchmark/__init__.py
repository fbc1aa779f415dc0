"""Benchmarks of a model, compared with the limits of the machine."""
