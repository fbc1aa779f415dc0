"""A model folder ↔ config and arrays: safetensors, tensor names, config.json, conversion."""
