"""Tables. Foreign keys point one way: billing → usage → responses → accounts."""

from .accounts import ApiKey, Organization, Project
from .background import BackgroundRun
from .billing import Account, Component, Journal, Posting, Price, RatedLine
from .control import ControlMessage
from .conversations import Conversation, ConversationItem
from .prompts import PromptTemplate, PromptVersion
from .responses import Chain, IdempotencyKey, ResponseEvents, StoredItem, StoredResponse
from .safety import Flag, SafetyRule
from .shares import WebSocketShare
from .usage import Dashboard, UsageRecord

__all__ = [
    "Account",
    "ApiKey",
    "BackgroundRun",
    "Chain",
    "Component",
    "ControlMessage",
    "Conversation",
    "ConversationItem",
    "Dashboard",
    "Flag",
    "IdempotencyKey",
    "Journal",
    "Organization",
    "Posting",
    "Price",
    "Project",
    "PromptTemplate",
    "PromptVersion",
    "RatedLine",
    "ResponseEvents",
    "SafetyRule",
    "StoredItem",
    "StoredResponse",
    "UsageRecord",
    "WebSocketShare",
]
