"""A folder of files ↔ config and arrays."""
