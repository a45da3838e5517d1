"""The HTTP endpoints, to be included under ``v1/`` or whatever prefix the host project likes."""

from django.urls import re_path

from responses_ws.transports import conversations, usage_api, views
from responses_ws.transports.schema import views as schema

app_name = "responses_ws"

urlpatterns = [
    # Some clients put `codex/` between their base URL and the path.
    re_path(r"^(?:codex/)?responses/?$", views.ResponsesView.as_view(), name="responses"),
    re_path(r"^(?:codex/)?responses/compact/?$", views.CompactView.as_view(), name="compact"),
    re_path(r"^responses/input_tokens/?$", views.InputTokensView.as_view(), name="input_tokens"),
    re_path(r"^responses/(?P<response_id>[^/]+)/?$", views.ResponseView.as_view(), name="response"),
    re_path(r"^responses/(?P<response_id>[^/]+)/input_items/?$", views.InputItemsView.as_view(), name="input_items"),
    re_path(r"^responses/(?P<response_id>[^/]+)/cancel/?$", views.CancelView.as_view(), name="cancel"),
    re_path(r"^conversations/?$", conversations.ConversationsView.as_view(), name="conversations"),
    re_path(
        r"^conversations/(?P<conversation_id>[^/]+)/?$", conversations.ConversationView.as_view(), name="conversation"
    ),
    re_path(
        r"^conversations/(?P<conversation_id>[^/]+)/items/?$",
        conversations.ConversationItemsView.as_view(),
        name="conversation_items",
    ),
    re_path(
        r"^conversations/(?P<conversation_id>[^/]+)/items/(?P<item_id>[^/]+)/?$",
        conversations.ConversationItemView.as_view(),
        name="conversation_item",
    ),
    re_path(r"^models/?$", views.ModelsView.as_view(), name="models"),
    re_path(r"^models/(?P<model>(?s:.+?))/?$", views.ModelView.as_view(), name="model"),
    re_path(r"^organization/usage/completions/?$", usage_api.UsageView.as_view(), name="usage"),
    re_path(r"^organization/usage/records\.csv$", usage_api.RecordsView.as_view(), name="usage_records"),
    re_path(r"^organization/costs/?$", usage_api.CostsView.as_view(), name="costs"),
    re_path(r"^openapi\.json$", schema.OpenApiView.as_view(), name="openapi"),
    re_path(r"^asyncapi\.json$", schema.AsyncApiView.as_view(), name="asyncapi"),
    re_path(r"^docs/?$", schema.DocsView.as_view(), name="docs"),
]
