"""One forward pass on this machine."""
