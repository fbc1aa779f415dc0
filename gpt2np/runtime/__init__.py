"""Execution of a forward pass: batches, KV caches, threads and processes."""
