"""Sealed blobs: what a client carries for us, and can neither read nor change nor lend to anybody."""

import binascii
import functools
import hashlib
import secrets
import struct
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from django.conf import settings

from responses_ws.conf import app_settings
from responses_ws.protocol.errors import InvalidEncryptedContent, InvalidRequest

_VERSION = 1
_HEAD = struct.Struct(">B4sQ")
"""Version, key id, and the second since the epoch after which nobody opens it. Authenticated, not encrypted."""
_NONCE_BYTES = 12  # what GCM is made for; random, so one key is good for 2^32 blobs
_LABEL = b"responses_ws sealing 1"


class _Key:
    """One entry of the key ring. ``id`` says nothing about the key."""

    __slots__ = ("id", "cipher")

    def __init__(self, secret: str) -> None:
        key = HKDF(algorithm=SHA256(), length=32, salt=None, info=_LABEL).derive(secret.encode())
        self.id = hashlib.sha256(_LABEL + key).digest()[:4]
        self.cipher = AESGCM(key)


_key = functools.lru_cache(maxsize=32)(_Key)


def _ring() -> list[_Key]:
    """The keys in use: the first seals, all open."""
    given = app_settings.SEALING_KEYS or [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [_key(secret) for secret in given]


def seal(content: bytes, *, purpose: str, project_id: int, is_carried: bool = True, now: float | None = None) -> str:
    """``content`` as text that only this project can bring back, and only for this purpose.

    Args:
        is_carried: by a client; otherwise it is kept here, however large it is.

    Raises:
        InvalidRequest: it is larger than a client could send back.
    """
    key = _ring()[0]
    expires = int(time.time() if now is None else now) + app_settings.SEALED_DAYS * 86_400
    head = _HEAD.pack(_VERSION, key.id, expires)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    encrypted = key.cipher.encrypt(nonce, content, _bound_to(head, purpose, project_id))
    sealed = urlsafe_b64encode(head + nonce + encrypted).decode()
    if is_carried and len(sealed) > app_settings.limits.max_sealed_bytes:
        raise InvalidRequest(
            f"The content to be sealed is too large: {len(sealed)} bytes, at most "
            f"{app_settings.limits.max_sealed_bytes} are allowed.",
            code="context_length_exceeded",
            param="input",
        )
    return sealed


def unseal(
    sealed: str, *, purpose: str, project_id: int, param: str, may_be_old: bool = False, now: float | None = None
) -> bytes:
    """The content again.

    Args:
        may_be_old: open what has expired or is very large, too: it was kept here, not carried around.

    Raises:
        InvalidEncryptedContent: changed, expired, of another project or purpose, or of a key that is gone. All look
            the same.
    """
    broken = InvalidEncryptedContent(param)
    if not may_be_old and len(sealed) > app_settings.limits.max_sealed_bytes:
        raise broken
    try:
        raw = urlsafe_b64decode(sealed)
        version, key_id, expires = _HEAD.unpack_from(raw)
    except (ValueError, binascii.Error, struct.error) as exc:
        raise broken from exc
    # The last character has bits to spare, and the decoder skips what is not of its alphabet: one spelling only.
    if urlsafe_b64encode(raw).decode() != sealed or version != _VERSION:
        raise broken
    head, nonce, encrypted = raw[: _HEAD.size], raw[_HEAD.size :][:_NONCE_BYTES], raw[_HEAD.size + _NONCE_BYTES :]
    content = None
    for key in _ring():
        if key.id == key_id:
            try:
                content = key.cipher.decrypt(nonce, encrypted, _bound_to(head, purpose, project_id))
            except (InvalidTag, ValueError):
                continue
    if content is None or (not may_be_old and expires < (time.time() if now is None else now)):
        raise broken
    return content


def _bound_to(head: bytes, purpose: str, project_id: int) -> bytes:
    """The associated data: with any other, the content does not open."""
    return head + msgspec.json.encode([purpose, project_id])
