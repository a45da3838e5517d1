"""What the pages of keys have in common, and the page of admin keys."""

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.http import HttpRequest
from django.utils.html import format_html

from responses_ws.models import AdminKey
from responses_ws.models.accounts import Secret, generate_key
from responses_ws.runtime.bus import nudge

from .base import OFFICE_CSS, ModelAdmin


class UsableFilter(admin.SimpleListFilter):
    title = "state"
    parameter_name = "usable"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "usable"), ("no", "revoked or expired")]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        if self.value() == "yes":
            return queryset.usable()
        return queryset.unusable() if self.value() == "no" else queryset


class SecretAdmin(ModelAdmin):
    """Keys are made and revoked here. What is stored of a secret cannot be turned back into it."""

    kind: str
    """The word in the key itself."""
    owner: str
    """The field that says whose it is: fixed once it was made."""
    own_fields: tuple[str, ...]
    readonly_fields = ("redacted", "state", "created_at", "last_used_at", "revoked_at")
    actions = ("revoke",)

    class Media:
        css = OFFICE_CSS

    def get_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.own_fields if obj is None else (*self.own_fields, *self.readonly_fields)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        return self.readonly_fields if obj is None else (self.owner, *self.readonly_fields)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Keys are revoked, not deleted: what was done with them refers to them."""
        return False

    def save_model(self, request: HttpRequest, obj: Any, form: forms.ModelForm, change: bool) -> None:
        if change:
            super().save_model(request, obj, form, change)
            transaction.on_commit(nudge)
            return
        obj.take_secret(generate_key(self.kind))
        super().save_model(request, obj, form, change)
        text = "The key is <code>{}</code>. Copy it now: it is not stored and cannot be shown again."
        messages.warning(request, format_html(text, obj.secret))

    @admin.display(description="key", ordering="prefix")
    def redacted(self, key: Secret) -> str:
        return key.redacted

    @admin.display(description="state")
    def state(self, key: Secret) -> str:
        if key.revoked_at is not None:
            return "revoked"
        return "usable" if key.is_usable else "expired"

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.revoke_apikey")

    @admin.action(description="Revoke selected keys", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: Any) -> None:
        for key in queryset:
            self.log_change(request, key, "Revoked.")
        messages.success(request, f"{queryset.revoke()} revoked.")
        transaction.on_commit(nudge)


@admin.register(AdminKey)
class AdminKeyAdmin(SecretAdmin):
    """Read what an organisation uses and pays, and open nothing else."""

    kind = "admin"
    owner = "organization"
    own_fields = ("organization", "name", "expires_at")
    list_display = ("name", "organization", "redacted", "state", "expires_at", "last_used_at", "created_at")
    list_filter = (UsableFilter, "organization")
    list_select_related = ("organization",)
    search_fields = ("name", "last4", "organization__name")
    autocomplete_fields = ("organization",)
