"""Batched generation from a prompt file; an interrupted job can be resumed."""
