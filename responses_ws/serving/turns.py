"""One turn, from request to record, whichever door it came through."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager, closing

from responses_ws.connection.state import unheard_steer
from responses_ws.protocol.errors import ApiError, Interrupted
from responses_ws.protocol.steering import Steer
from responses_ws.runtime import live, metrics, tracing
from responses_ws.runtime.drain import running_turn

from .admission import enter
from .context import Asked
from .gathering import open_context
from .mailbox import Mailbox
from .run import Frames, Run
from .sampling import Word
from .watched import Watched


async def run_turn(asked: Asked) -> Frames:
    """Run a turn. Use it in ``aclosing``: leaving early frees the engine and records what was made.

    Yields:
        Encoded server events, in runs that are ready together, from ``response.created`` to the one terminal
        event. Whatever the terminal event promises is durable before it is yielded. A steered response is followed
        by its successor, whole.

    Raises:
        ApiError: before anything was yielded, and only then. A later failure is a ``response.failed``.
    """
    ticket = asked.ticket = asked.ticket or await enter(asked.principal, transport=asked.transport)
    mailbox = asked.mailbox if asked.mailbox is not None else Mailbox[Word]()
    span = asked.span = tracing.turn(asked.request.model, asked.transport, asked.request.client_metadata)
    watched = Watched(asked, mailbox)
    with running_turn(lambda: mailbox.put(Interrupted())), closing(ticket), span, live.shown(watched):
        async with conversation_let_go(asked):
            try:
                with span.child("load context"):
                    context = await open_context(asked)
                ticket.reserve(context.estimated_input_tokens())
                run = watched.run = Run(context, mailbox)
            except ApiError as error:
                asked.evict_parent()
                metrics.refused.add((asked.transport, error.code or error.type))
                raise
            await _reserve(run)
            while True:
                with closing(run):
                    async with aclosing(run.warm_up() if asked.request.is_warmup else run.generate()) as events:
                        async for frames in events:
                            yield frames
                if not run.steers:
                    break
                try:
                    follower = Run(await open_context(run.successor()), mailbox)
                    await _reserve(follower)
                except ApiError as error:
                    yield run.steers.give_back(error)
                    break
                run, asked = follower, follower.asked
                watched.run = run
            unheard = [unheard_steer(word, has_ended=True) for word in mailbox.drain() if isinstance(word, Steer)]
            if unheard:
                yield unheard


async def _reserve(run: Run) -> None:
    """Raises ApiError. The response that it would have continued stays where it is."""
    try:
        await run.reserve()
    except BaseException as exc:
        run.close()
        if isinstance(exc, ApiError):
            metrics.refused.add((run.asked.transport, exc.code or exc.type))
        raise


@asynccontextmanager
async def conversation_let_go(asked: Asked) -> AsyncGenerator[None, None]:
    """Whatever becomes of the turn, its conversation does not stay held."""
    try:
        yield
    finally:
        if asked.hold is not None:
            await asked.hold.release()
