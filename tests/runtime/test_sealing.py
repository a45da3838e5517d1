from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any

import pytest

from responses_ws.protocol.errors import InvalidEncryptedContent, InvalidRequest
from responses_ws.runtime.sealing import seal, unseal

OLD, NEW = "an old secret of 32 characters .", "a new secret of 32 characters .."
NOW = 1_800_000_000.0
DAY = 86_400
FOR_ME = {"purpose": "reasoning", "project_id": 7}


@pytest.fixture
def ring(settings: Any) -> Any:
    """Set the key ring, newest first."""

    def use(*keys: str, **others: Any) -> None:
        settings.RESPONSES_WS = {**settings.RESPONSES_WS, "SEALING_KEYS": list(keys), **others}

    return use


def opened(sealed: str, **others: Any) -> bytes:
    return unseal(sealed, **{**FOR_ME, "param": "input[0]", "now": NOW, **others})


def sealed_now(content: bytes = b"Hm") -> str:
    return seal(content, **FOR_ME, now=NOW)


@pytest.mark.parametrize("content", [b"", b"Hm", b"\0" * 100_000], ids=["empty", "short", "long"])
def test_what_was_sealed_can_be_opened_by_its_owner(content: bytes) -> None:
    assert opened(sealed_now(content)) == content


def test_a_blob_tells_nothing_and_never_looks_the_same() -> None:
    first, second = sealed_now(), sealed_now()

    assert first != second
    assert b"Hm" not in urlsafe_b64decode(first)


def test_a_blob_with_any_byte_flipped_does_not_open() -> None:
    raw = urlsafe_b64decode(sealed_now())

    for position in range(len(raw)):
        flipped = raw[:position] + bytes([raw[position] ^ 1]) + raw[position + 1 :]
        with pytest.raises(InvalidEncryptedContent):
            opened(urlsafe_b64encode(flipped).decode())


def test_a_blob_with_any_character_changed_does_not_open() -> None:
    """The last character has spare bits, and decoders skip what they do not know: one spelling opens."""
    sealed = sealed_now()

    for position in range(len(sealed)):
        for other in ("A", "B", "\n", "é"):
            changed = sealed[:position] + other + sealed[position + 1 :]
            if changed != sealed:
                with pytest.raises(InvalidEncryptedContent):
                    opened(changed)


@pytest.mark.parametrize(
    "sealed",
    ["", "A", "gAAAAAB", "=" * 40, "\ud800", "A" * 9_000_000],
    ids=["empty", "a letter", "of somebody else", "padding", "a surrogate", "too large"],
)
def test_what_was_never_sealed_does_not_open(sealed: str) -> None:
    with pytest.raises(InvalidEncryptedContent):
        opened(sealed)


@pytest.mark.parametrize(
    "others",
    [{"project_id": 8}, {"purpose": "compaction"}, {"now": NOW + 30 * DAY + 1}],
    ids=["other project", "other purpose", "expired"],
)
def test_a_blob_opens_for_nothing_else(others: dict[str, Any]) -> None:
    sealed = sealed_now()

    with pytest.raises(InvalidEncryptedContent):
        opened(sealed, **others)


def test_every_failure_looks_the_same(ring: Any) -> None:
    sealed = sealed_now()
    ring(OLD)
    said = set()

    for attempt in (
        lambda: opened(sealed),
        lambda: opened("nonsense"),
        lambda: opened(sealed_now(), project_id=8),
        lambda: opened(sealed_now(), now=NOW + 31 * DAY),
    ):
        with pytest.raises(InvalidEncryptedContent) as caught:
            attempt()
        said.add((caught.value.status, str(caught.value.body())))

    assert len(said) == 1
    assert caught.value.body() == {
        "message": "The encrypted content could not be verified, or has expired.",
        "type": "invalid_request_error",
        "param": "input[0]",
        "code": "invalid_encrypted_content",
    }


def test_the_last_second_counts_and_days_are_a_setting(ring: Any) -> None:
    ring(OLD, SEALED_DAYS=2)
    sealed = sealed_now()

    assert opened(sealed, now=NOW + 2 * DAY) == b"Hm"
    with pytest.raises(InvalidEncryptedContent):
        opened(sealed, now=NOW + 2 * DAY + 1)


def test_what_was_kept_here_opens_however_old() -> None:
    assert opened(sealed_now(), now=NOW + 99 * DAY, may_be_old=True) == b"Hm"


def test_a_retired_key_still_opens_and_a_removed_one_does_not(ring: Any) -> None:
    ring(OLD)
    sealed = sealed_now()

    ring(NEW, OLD)
    newly = sealed_now()
    assert opened(sealed) == b"Hm"
    ring(NEW)
    assert opened(newly) == b"Hm"
    with pytest.raises(InvalidEncryptedContent):
        opened(sealed)


def test_without_keys_of_its_own_it_lives_on_django_s_secrets(settings: Any) -> None:
    sealed = sealed_now()

    settings.SECRET_KEY_FALLBACKS, settings.SECRET_KEY = [settings.SECRET_KEY], "another"
    assert opened(sealed) == b"Hm"
    settings.SECRET_KEY_FALLBACKS = []
    with pytest.raises(InvalidEncryptedContent):
        opened(sealed)


def test_what_could_never_come_back_is_not_sealed(settings: Any) -> None:
    settings.RESPONSES_WS = {**settings.RESPONSES_WS, "LIMITS": {"max_sealed_bytes": 100}}

    with pytest.raises(InvalidRequest) as caught:
        sealed_now(b"x" * 100)

    assert caught.value.code == "context_length_exceeded"
