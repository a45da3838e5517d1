"""What a client has said into a running response, until it is part of the next one."""

import msgspec

from responses_ws.conf import app_settings
from responses_ws.connection.chain import Link
from responses_ws.connection.turn import Turn
from responses_ws.protocol.errors import ApiError
from responses_ws.protocol.items import Item, check_media_sizes
from responses_ws.protocol.steering import MAX_PENDING, Steer, steer_error
from responses_ws.runtime.ids import new_id

from .context import Asked


class Steers:
    """The accepted steers of one response, in order."""

    def __init__(self, asked: Asked, turn: Turn) -> None:
        self._asked = asked
        self._turn = turn
        self._pending: list[Steer] = []

    def __len__(self) -> int:
        return len(self._pending)

    def take(self, steer: Steer) -> list[str]:
        """Accept a steer, or say why not."""
        refusal = self._refusal_of(steer)
        if refusal is not None:
            return [self._turn.refuse_steer(steer, steer_error(*refusal))]
        steer = msgspec.structs.replace(steer, id=new_id("steer"))
        self._pending.append(steer)
        return [self._turn.accept_steer(steer)]

    def items(self) -> list[Item]:
        """All of them as input."""
        return [item for steer in self._pending for item in _items_of(steer)]

    def keep(self, link: Link, calls: list[Item]) -> list[str]:
        """The response has ended in ``calls``, whose outputs come first: the next create brings the steers, too."""
        frames = [self._turn.keep_steer(steer, calls) for steer in self._pending]
        link.kept_input += self.items()
        self._pending = []
        return frames

    def give_back(self, error: ApiError) -> list[str]:
        """There will be no successor for them."""
        failed = steer_error("successor_creation_failed", error.message)
        steers, self._pending = self._pending, []
        return [self._turn.refuse_steer(steer, failed) for steer in steers]

    def _refusal_of(self, steer: Steer) -> tuple[str, str] | None:
        """(code, message)."""
        if self._asked.hold is not None:
            return "steering_not_supported", "A response on a conversation cannot be steered."
        if self._asked.request.is_warmup:
            return "steering_not_supported", "A warm-up says nothing that could be steered."
        if len(self._pending) >= MAX_PENDING:
            return "too_many_pending_steers", f"At most {MAX_PENDING} steers may wait."
        limits = app_settings.limits
        try:
            # Before it stops anything: its successor would be refused for the same.
            check_media_sizes(
                _items_of(steer), max_image_bytes=limits.max_image_bytes, max_file_bytes=limits.max_file_bytes
            )
        except ApiError as invalid:
            # The error object has no place for it, and this no code of its own.
            return "invalid_input", f"{invalid.message} ({invalid.param})" if invalid.param else invalid.message
        return None


def _items_of(steer: Steer) -> list[Item]:
    return steer.items(new_id, max_items=app_settings.limits.max_items)
