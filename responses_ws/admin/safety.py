"""Rules for what may pass, and the queue of what was found."""

import logging
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.views.decorators.http import require_POST

from responses_ws.models import Flag, SafetyRule, StoredResponse
from responses_ws.safety.ruleset import Rule, Ruleset

from .base import OFFICE_CSS, ModelAdmin, ProjectFilter, ReadOnlyAdmin, Textarea, link_to
from .formats import shortened

logger = logging.getLogger(__name__)


class SafetyRuleForm(forms.ModelForm):
    class Meta:
        model = SafetyRule
        fields = ("name", "kind", "pattern", "action", "scope", "project", "is_enabled")
        widgets = {"pattern": Textarea(attrs={"rows": 6, "cols": 80, "spellcheck": "false"})}

    def clean(self) -> dict[str, Any]:
        given = super().clean() or {}
        try:
            Ruleset([Rule("", given.get("kind", ""), given.get("pattern", ""), "flag", "both", None)])
        except ValueError as exc:
            self.add_error("pattern", str(exc))
        return given


@admin.register(SafetyRule)
class SafetyRuleAdmin(ModelAdmin):
    """Processes hold the rules in memory and see a change within seconds."""

    form = SafetyRuleForm
    list_display = ("name", "kind", "action", "scope", "for_project", "is_enabled")
    list_filter = ("is_enabled", "kind", "action", "scope", ("project", ProjectFilter))
    list_select_related = ("project__organization",)
    search_fields = ("name",)
    autocomplete_fields = ("project",)
    readonly_fields = ("created_at",)
    actions = ("enable", "disable")

    class Media:
        css = OFFICE_CSS

    @admin.display(description="project", ordering="project")
    def for_project(self, rule: SafetyRule) -> str:
        return "all" if rule.project is None else str(rule.project)

    @admin.action(description="Switch on selected rules", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[SafetyRule]) -> None:
        self._switch(request, queryset, is_enabled=True)

    @admin.action(description="Switch off selected rules", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[SafetyRule]) -> None:
        self._switch(request, queryset, is_enabled=False)

    def _switch(self, request: HttpRequest, queryset: QuerySet[SafetyRule], *, is_enabled: bool) -> None:
        said = "on" if is_enabled else "off"
        for rule in queryset.exclude(is_enabled=is_enabled):
            rule.is_enabled = is_enabled
            # One by one: this process then knows at once.
            rule.save(update_fields=["is_enabled"])
            self.log_change(request, rule, f"Switched {said}.")
        messages.success(request, f"Switched {said}.")


@admin.register(Flag)
class FlagAdmin(ReadOnlyAdmin):
    """What classifiers have found: confirmed or dismissed by who may, once; changed by nobody."""

    list_display = (
        *("category", "state", "side", "action", "classifier"),
        *("shown_score", "project", "created_at", "short_id"),
    )
    list_filter = (
        "state",
        "action",
        "side",
        "classifier",
        "created_at",
        "project__organization",
        ("project", ProjectFilter),
    )
    list_select_related = ("project__organization",)
    search_fields = ("response_id__startswith", "category")
    search_help_text = "A response id, or its beginning; or a part of a category."
    readonly_fields = (
        *("category", "classifier", "side", "action", "shown_score", "response", "project", "api_key", "model"),
        *("created_at", "state", "reviewed_by", "reviewed_at", "quoted"),
    )
    actions = ("confirm", "dismiss")

    def get_urls(self) -> list[Any]:
        review = self.admin_site.admin_view(require_POST(self.review_view))
        return [path("<int:flag_id>/review/", review, name="responses_ws_flag_review"), *super().get_urls()]

    def get_fields(self, request: HttpRequest, obj: Flag | None = None) -> tuple[Any, ...]:
        return (
            ("category", "classifier"),
            ("side", "action", "shown_score"),
            *(("quoted",) if self._may_quote(request) else ()),
            "response",
            ("project", "api_key", "model"),
            "created_at",
            ("state", "reviewed_by", "reviewed_at"),
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Flag]:
        return super().get_queryset(request).defer("excerpt")

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Flag | None:
        flag = super().get_object(request, object_id, from_field)
        if flag is not None and flag.excerpt and self._may_quote(request):
            logger.info("user %s looks at the content of flag %s", request.user.pk, flag.pk)
        return flag

    def has_review_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.review_flag")

    @staticmethod
    def _may_quote(request: HttpRequest) -> bool:
        return request.user.has_perm("responses_ws.view_content")

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        is_open = Flag.objects.open().filter(pk=object_id).exists() if object_id.isdigit() else False
        context = {**(extra_context or {}), "may_review": is_open and self.has_review_permission(request)}
        return super().change_view(request, object_id, form_url, context)

    def review_view(self, request: HttpRequest, flag_id: int) -> HttpResponse:
        """``POST``: the buttons of a flag's own page."""
        state = request.POST.get("state", "")
        if not (self.has_view_permission(request) and self.has_review_permission(request)):
            raise PermissionDenied
        if state in (Flag.State.CONFIRMED, Flag.State.DISMISSED):
            self._review(request, Flag.objects.filter(pk=flag_id), state)
        return HttpResponseRedirect(f"{reverse('admin:responses_ws_flag_changelist')}?state__exact=open")

    @admin.action(description="Confirm selected flags", permissions=["review"])
    def confirm(self, request: HttpRequest, queryset: Any) -> None:
        self._review(request, queryset, Flag.State.CONFIRMED)

    @admin.action(description="Dismiss selected flags", permissions=["review"])
    def dismiss(self, request: HttpRequest, queryset: Any) -> None:
        self._review(request, queryset, Flag.State.DISMISSED)

    def _review(self, request: HttpRequest, queryset: Any, state: Flag.State | str) -> None:
        for flag in queryset.open():
            self.log_change(request, flag, f"{Flag.State(state).label}.")
        messages.success(request, f"{queryset.review(state, request.user)} {Flag.State(state).label.lower()}.")

    @admin.display(description="score", ordering="score")
    def shown_score(self, flag: Flag) -> str:
        return "–" if flag.score is None else f"{flag.score:.2f}"

    @admin.display(description="response", ordering="response_id")
    def short_id(self, flag: Flag) -> str:
        return shortened(flag.response_id)

    @admin.display(description="response")
    def response(self, flag: Flag) -> SafeString | str:
        stored = StoredResponse.objects.filter(pk=flag.response_id).only("id").first()
        return flag.response_id if stored is None else link_to(stored)

    @admin.display(description="excerpt")
    def quoted(self, flag: Flag) -> SafeString | str:
        if not flag.excerpt:
            return "Not kept."
        return format_html('<pre class="responses-ws-content">{}</pre>', flag.excerpt)
