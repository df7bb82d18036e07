"""Chat: conversations in, answers with reasoning and tool calls out. ``deepseek-recipe`` renders and parses.

``pip install 'deepinfer-core[chat]'`` brings that library; it is imported when the first conversation is rendered.
"""

from __future__ import annotations

from deepinfer_core.chat.answer import AnswerDelta, AnswerParser, ToolCallDelta
from deepinfer_core.chat.conversation import Conversation
from deepinfer_core.chat.options import ChatOptions
from deepinfer_core.chat.outputs import ChatChoice, ChatChunk, ChatOutput, ChatUsage
from deepinfer_core.chat.prompt import ChatEncoder, ChatPrompt
from deepinfer_core.chat.tool_calls import ToolCall

__all__ = [
    "AnswerDelta",
    "AnswerParser",
    "ChatChoice",
    "ChatChunk",
    "ChatEncoder",
    "ChatOptions",
    "ChatOutput",
    "ChatPrompt",
    "ChatUsage",
    "Conversation",
    "ToolCall",
    "ToolCallDelta",
]
