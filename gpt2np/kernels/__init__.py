"""Matrix products that are fast in NumPy: arrays in, arrays out."""
