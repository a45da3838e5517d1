"""Tables. Foreign keys point one way: billing → usage → responses → accounts."""

from .accounts import AdminKey, ApiKey, Organization, Project
from .background import BackgroundRun
from .budgets import Budget, BudgetAlert
from .control import ControlMessage
from .conversations import Conversation, ConversationItem
from .credits import CreditGrant, GrantUse
from .deliveries import Delivery
from .heartbeats import Heartbeat
from .invoices import Invoice, InvoiceLine, InvoiceSeries
from .latency import LatencyRollup
from .ledger import Account, Journal, Posting, RatedLine
from .prices import Component, Price
from .prompts import PromptTemplate, PromptVersion
from .reconciliations import Reconciliation
from .responses import Chain, IdempotencyKey, ResponseEvents, StoredItem, StoredResponse
from .rollups import EndingRollup, UsageRollup
from .safety import Flag, SafetyRule
from .shares import WebSocketShare
from .usage import Dashboard, Live, Playground, UsageRecord

__all__ = [
    "Account",
    "AdminKey",
    "ApiKey",
    "BackgroundRun",
    "Budget",
    "BudgetAlert",
    "Chain",
    "Component",
    "ControlMessage",
    "Conversation",
    "ConversationItem",
    "CreditGrant",
    "Dashboard",
    "Delivery",
    "EndingRollup",
    "Flag",
    "GrantUse",
    "Heartbeat",
    "IdempotencyKey",
    "Invoice",
    "InvoiceLine",
    "InvoiceSeries",
    "Journal",
    "LatencyRollup",
    "Live",
    "Organization",
    "Playground",
    "Posting",
    "Price",
    "Project",
    "PromptTemplate",
    "PromptVersion",
    "RatedLine",
    "Reconciliation",
    "ResponseEvents",
    "SafetyRule",
    "StoredItem",
    "StoredResponse",
    "UsageRecord",
    "UsageRollup",
    "WebSocketShare",
]
