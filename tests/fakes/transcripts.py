"""What model servers have answered, one exchange a file: recorded from a real one, or written from its documentation.

A file ``NAME.http`` has a line with its origin after ``#``, a line with method and path, one with the request's JSON
body, an empty one, one with status and content type; the rest is the answer's body, byte for byte.
"""

from pathlib import Path
from typing import Any

import msgspec

FOLDER = Path(__file__).resolve().parent.parent / "data" / "transcripts"


class Transcript(msgspec.Struct, kw_only=True):
    """One exchange."""

    origin: str
    """Which server, and when; begins with ``recorded`` or ``written``."""
    path: str
    request: dict[str, Any]
    status: int
    content_type: str
    body: bytes

    def save(self, server: str, name: str) -> Path:
        head = f"# {self.origin}\nPOST {self.path}\n{msgspec.json.encode(self.request).decode()}\n\n"
        file = FOLDER / server / f"{name}.http"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(f"{head}{self.status} {self.content_type}\n".encode() + self.body)
        return file

    @property
    def prompt(self) -> list[int]:
        """The token ids that were asked with."""
        return next(self.request[key] for key in ("token_ids", "input_ids", "prompt") if key in self.request)


def load(server: str, name: str) -> Transcript:
    head, _, rest = (FOLDER / server / f"{name}.http").read_bytes().partition(b"\n\n")
    origin, method_and_path, request = head.decode().split("\n")
    answered, _, body = rest.partition(b"\n")
    status, _, content_type = answered.decode().partition(" ")
    return Transcript(
        origin=origin.removeprefix("# "),
        path=method_and_path.removeprefix("POST "),
        request=msgspec.json.decode(request),
        status=int(status),
        content_type=content_type,
        body=body,
    )


def names(server: str) -> list[str]:
    return sorted(file.stem for file in (FOLDER / server).glob("*.http"))
