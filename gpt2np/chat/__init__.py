"""Conversations with a model: chat templates, message history and slash commands."""

from gpt2np.chat.session import ChatSession
from gpt2np.chat.template import ChatTemplate, read_chat_template

__all__ = ["ChatSession", "ChatTemplate", "read_chat_template"]
