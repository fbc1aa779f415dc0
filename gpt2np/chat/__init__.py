"""Conversations with a model: chat templates, message history and slash commands."""

from gpt2np.chat.session import ChatSession, Conversation, Exchange, read_conversation
from gpt2np.chat.template import ChatTemplate, read_chat_template

__all__ = [
    "ChatSession",
    "ChatTemplate",
    "Conversation",
    "Exchange",
    "read_chat_template",
    "read_conversation",
]
