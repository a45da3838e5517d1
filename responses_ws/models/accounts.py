"""Who may ask: organisations, projects, API keys."""

import hmac
import secrets
import zlib
from datetime import datetime
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils import timezone

from responses_ws.connection.rates import Rates

from .control import ControlMessage


class Organization(models.Model):
    """Who pays."""

    name = models.CharField(max_length=200, unique=True)
    currency = models.CharField(
        max_length=3, default="USD", help_text="Of its prices and bills. Fixed once it was billed."
    )
    is_prepaid = models.BooleanField(
        "prepaid", default=False, help_text="Turns that its credit does not cover are refused."
    )
    billed_to = models.TextField(blank=True, help_text="Name, address and tax number, as they are printed on invoices.")
    stripe_customer = models.CharField(
        "Stripe customer", max_length=100, blank=True, help_text="cus_…: whom Stripe's meters count its usage for."
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    class Meta:
        ordering = ("name",)

    def __str__(self) -> str:
        return self.name

    def save(self, **options: Any) -> None:
        """Price books know its currency, if it is a rare one."""
        is_new = self._state.adding
        super().save(**options)
        if not is_new or self.currency != self._meta.get_field("currency").default:
            ControlMessage.objects.tell("prices_changed")

    def clean(self) -> None:
        billed = Organization.objects.filter(pk=self.pk, accounts__isnull=False)
        if self.pk and billed.exclude(currency=self.currency).exists():
            raise ValidationError({"currency": "What was billed is in another currency; this one stays."})


def _rate(what: str) -> Any:
    return models.PositiveIntegerField(null=True, blank=True, validators=[MinValueValidator(1)], help_text=what)


class Rated(models.Model):
    """What has rates of its own. Empty: the default's."""

    requests_per_minute = _rate("Responses begun in a minute.")
    tokens_per_minute = _rate("Input and output together.")
    concurrent_turns = _rate("Responses that run at once.")
    open_sockets = _rate("WebSockets open at once.")

    class Meta:
        abstract = True

    @property
    def rates(self) -> Rates:
        """As far as they are said here."""
        return Rates(**{name: getattr(self, name) for name in Rates.__struct_fields__})


def _rates_are_positive(name: str) -> models.CheckConstraint:
    # What is null is neither true nor false, which is no offence.
    at_least_one = {f"{rate}__gte": 1 for rate in Rates.__struct_fields__}
    return models.CheckConstraint(condition=Q(**at_least_one), name=name)


def _zero_retention(what: str) -> Any:
    return models.BooleanField("zero data retention", default=False, help_text=what)


class ProjectQuerySet(models.QuerySet["Project"]):
    def keeps_excerpts(self, project_id: int) -> bool:
        """Whether flags may hold the words that they are about."""
        return self.filter(pk=project_id, keeps_excerpts=True).exists()


class Project(Rated):
    """Who owns responses: every look-up of a response names its project."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="projects")
    name = models.CharField(max_length=200)
    keeps_excerpts = models.BooleanField(
        "keeps excerpts", default=False, help_text="Flags on stored responses hold the words that they are about."
    )
    zero_retention = _zero_retention("Nothing that is said in this project is kept, whatever its requests say.")
    sealed_fallback = models.BooleanField(
        "sealed fallback",
        default=False,
        help_text="Unstored chains outlive their socket by ten minutes: in Redis, sealed with a key of the client's.",
    )
    created_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = ProjectQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "name")
        constraints = [
            models.UniqueConstraint(fields=("organization", "name"), name="responses_ws_project_name"),
            _rates_are_positive("responses_ws_project_rates"),
        ]

    def __str__(self) -> str:
        return f"{self.organization} / {self.name}"

    def save(self, **options: Any) -> None:
        """Its rates are its keys' where these say nothing."""
        is_new = self._state.adding
        super().save(**options)
        if not is_new:
            for api_key_id in self.api_keys.usable().values_list("pk", flat=True):
                ControlMessage.objects.tell("key_changed", api_key_id=api_key_id)


def digest_of(key: str) -> bytes:
    """What is stored of a key: HMAC-SHA-256 under Django's SECRET_KEY, 32 bytes.

    The key is 256 random bits, so a slow hash would add nothing but a lever for overload.
    """
    return hmac.digest(settings.SECRET_KEY.encode(), key.encode(), "sha256")


def generate_key(kind: str = "proj") -> str:
    """``sk-proj-``, 256 random bits, and a checksum that lets a typo be told from a revoked key."""
    secret = secrets.token_urlsafe(32)
    return f"sk-{kind}-{secret}{zlib.crc32(secret.encode()) & 0xFFFFFF:06x}"


class SecretQuerySet(models.QuerySet[Any]):
    def usable(self, now: datetime | None = None) -> Any:
        """Keys that are neither revoked nor expired."""
        return self.filter(revoked_at=None).filter(Q(expires_at=None) | Q(expires_at__gt=now or timezone.now()))

    def unusable(self, now: datetime | None = None) -> Any:
        """Keys that are revoked or expired."""
        return self.exclude(pk__in=self.model.objects.usable(now))


class Secret(models.Model):
    """A secret of which only the digest is kept; it is shown once."""

    name = models.CharField(max_length=200)
    digest = models.BinaryField(max_length=32, unique=True, editable=False)
    prefix = models.CharField(max_length=16, editable=False)
    last4 = models.CharField(max_length=4, editable=False)
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    secret: str | None = None
    """Set on a freshly created instance only."""

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return f"{self.name} ({self.redacted})"

    def take_secret(self, key: str) -> None:
        """Keep the digest of ``key`` and enough to recognise it. The key itself stays on this instance only."""
        # A short key of someone's own choice is never half given away: at most a quarter at either end.
        shown = len(key) // 4
        self.digest = digest_of(key)
        self.prefix = key[: min(12, shown)]
        self.last4 = key[len(key) - min(4, shown) :]
        self.secret = key

    @property
    def redacted(self) -> str:
        """Enough to recognise a key, not to use it."""
        return f"{self.prefix}…{self.last4}"

    @property
    def is_usable(self) -> bool:
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > timezone.now())


class ApiKeyQuerySet(SecretQuerySet):
    def find(self, key: str, now: datetime | None = None) -> "ApiKey | None":
        """The usable key whose secret this is. The digest is the look-up: the same work for every unknown key."""
        return self.usable(now).select_related("project").filter(digest=digest_of(key)).first()

    def create_with_secret(self, *, project: Project, name: str, key: str | None = None, **fields: Any) -> "ApiKey":
        """A new key. Its secret is on the returned instance as ``secret`` and nowhere else, ever again."""
        instance = self.model(project=project, name=name, **fields)
        instance.take_secret(key or generate_key())
        instance.save(force_insert=True)
        return instance

    def revoke(self, now: datetime | None = None) -> int:
        """Revoke those that are not yet. Returns how many; who was revoked before keeps its moment."""
        revoked = list(self.filter(revoked_at=None).values_list("pk", flat=True))
        count = self.model.objects.filter(pk__in=revoked, revoked_at=None).update(revoked_at=now or timezone.now())
        for api_key_id in revoked:
            ControlMessage.objects.tell("key_changed", api_key_id=api_key_id)
        return count


class ApiKey(Secret, Rated):
    """A secret that speaks for a project."""

    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="api_keys")
    allowed_models = models.JSONField(default=list, blank=True, help_text="Model names; empty means all.")
    zero_retention = _zero_retention("Nothing that is said with this key is kept, whatever its requests say.")

    objects = ApiKeyQuerySet.as_manager()

    class Meta:
        ordering = ("project", "name")
        verbose_name = "API key"
        permissions = [("revoke_apikey", "Can revoke API keys")]
        constraints = [_rates_are_positive("responses_ws_api_key_rates")]

    def save(self, **options: Any) -> None:
        """Whoever remembers its rights is told that they may have changed."""
        is_new = self._state.adding
        super().save(**options)
        if not is_new:
            ControlMessage.objects.tell("key_changed", api_key_id=self.pk)


class AdminKeyQuerySet(SecretQuerySet):
    def find(self, key: str) -> "AdminKey | None":
        """The usable key whose secret this is."""
        return self.usable().filter(digest=digest_of(key)).first()

    def create_with_secret(self, *, organization: Organization, name: str, key: str | None = None) -> "AdminKey":
        """A new key. Its secret is on the returned instance as ``secret`` and nowhere else, ever again."""
        instance = self.model(organization=organization, name=name)
        instance.take_secret(key or generate_key("admin"))
        instance.save(force_insert=True)
        return instance

    def revoke(self) -> int:
        """Revoke those that are not yet. Returns how many; who was revoked before keeps its moment."""
        return self.filter(revoked_at=None).update(revoked_at=timezone.now())


class AdminKey(Secret):
    """A secret that may read what an organisation uses and pays, and ask for nothing else."""

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="admin_keys")

    objects = AdminKeyQuerySet.as_manager()

    class Meta:
        ordering = ("organization", "name")
