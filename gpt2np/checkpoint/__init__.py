"""Reading, checking and writing model folders: config.json, safetensors, tensor names."""
