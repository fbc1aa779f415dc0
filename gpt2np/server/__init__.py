"""An HTTP server with OpenAI's protocol (extra `server`); `gpt2np serve` runs it."""
