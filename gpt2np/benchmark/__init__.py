"""Benchmarks of a model on this machine, compared with the machine's own limits."""
