"""Ports for servers that are told theirs before they start."""

import secrets
import socket

# Below those that Linux gives to outgoing connections: of one from there another test may have made use since.
_FIRST, _BEYOND = 20_000, 32_000


def free_port() -> int:
    """A port that was free a moment ago, and that nobody is given who asks for any."""
    while True:
        port = _FIRST + secrets.randbelow(_BEYOND - _FIRST)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue
