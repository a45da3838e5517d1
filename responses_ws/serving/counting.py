"""How many tokens a request's input would have. Nothing is called, recorded or stored."""

import msgspec

from responses_ws.engines.base import EngineError

from .context import Asked, Context
from .gathering import gather


async def count_input(asked: Asked) -> int:
    """Tokens of the whole context: the engine's own count where it can give one, our estimate where not.

    Raises:
        ApiError: as a turn with this request would.
    """
    gathered = await gather(asked, is_counted=True)
    counted = None
    if gathered.route is not None:
        context = Context(**msgspec.structs.asdict(gathered))
        request = context.chat_request("count", context.offer(), max_output_tokens=None)
        step = context.token_step(request)
        try:
            if step is not None:
                return len((await step.render(gathered.route)).prompt)
            counted = await gathered.route.engine.count(request)
        except EngineError:
            # Whoever asks for a number gets one, while the engine is down too.
            pass
    return gathered.estimated_input_tokens() if counted is None else counted
