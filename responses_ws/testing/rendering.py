"""What a renderer promises, as tests to subclass."""

import threading
import unittest
from collections.abc import Sequence
from typing import Any, Self

import msgspec

from responses_ws.connection.log import SharedLog
from responses_ws.rendering.base import Ask, Draft, Path, Renderer
from responses_ws.rendering.chat import ChatPrompt
from responses_ws.rendering.tokens import TokenLog

Message = dict[str, Any]
"""A chat-completions message."""

TOOLS = msgspec.json.encode(
    [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "Weather of a city.",
                "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            },
        }
    ]
)
"""One tool, as `Ask.tools`."""


def called(call_id: str, arguments: str = '{"city": "Oslo"}', name: str = "get_weather") -> Message:
    """A call, for `assistant`."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def assistant(content: str | None, *, calls: Sequence[Message] = (), reasoning: str = "") -> Message:
    message: Message = {"role": "assistant", "content": content}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    return message


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def tool(call_id: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def prompt_of(
    messages: Sequence[Message], *, instructions: str | None = None, tokens: TokenLog | None = None
) -> ChatPrompt:
    """A prompt of these messages, whose beginning ``tokens`` are."""
    encoded = [msgspec.json.encode(message) for message in messages]
    prompt = ChatPrompt(SharedLog(encoded), sum(map(len, encoded)))
    return prompt.with_instructions(instructions).with_tokens(tokens)


class RenderedChain:
    """One chain, rendered turn by turn as a server does it: its messages, and the log of their ids."""

    def __init__(self, renderer: Renderer, *, ask: Ask | None = None, instructions: str | None = None) -> None:
        self.renderer = renderer
        self.ask = ask or Ask()
        self.instructions = instructions
        self.messages: list[Message] = []
        self.log: TokenLog | None = None
        self.paths: list[Path] = []
        """How each prompt was made."""

    def fork(self) -> Self:
        """Another chain with this past."""
        other = type(self)(self.renderer, ask=self.ask, instructions=self.instructions)
        other.messages, other.log, other.paths = list(self.messages), self.log, list(self.paths)
        return other

    def tell(self, *messages: Message) -> TokenLog:
        """The prompt for the next answer, behind these messages."""
        self.messages += messages
        draft = self.draft()
        draft.make()
        self.paths.append(draft.path)
        self.log = draft.log()
        return self.log

    def sample(self, message: Message, ids: Sequence[int]) -> TokenLog:
        """The model has answered with these ids, which ``message`` is read from."""
        assert self.log is not None, "a prompt comes first"
        self.messages.append(message)
        has_reasoning = bool(message.get("reasoning_content"))
        self.log = self.log.extended(ids, "sampled", messages=len(self.messages), has_reasoning=has_reasoning)
        return self.log

    def draft(self) -> Draft:
        """What would be made of the messages now, starting from the log."""
        return self.renderer.draft(self.prompt(self.log), self.ask)

    def whole(self) -> list[int]:
        """All messages rendered at once."""
        draft = self.renderer.draft(self.prompt(None), self.ask)
        draft.make()
        return list(draft.log())

    def prompt(self, tokens: TokenLog | None) -> ChatPrompt:
        return prompt_of(self.messages, instructions=self.instructions, tokens=tokens)


class RendererContract(unittest.TestCase):
    """Subclass it with the model's way of saying things: ids of an answer as its renderer would write them.

    A log that is appended to, or cut back and appended to, is then the same as all messages rendered at once, and never
    cut back further than it has to be.
    """

    __test__ = False
    takes_tools = True
    """The model has tools."""
    reasoning = ""
    """What every answer thinks first, of a model that always does."""

    rewinds = True
    """Where a template changes what is past, it cuts the log back. Without it, all is rendered then."""

    def renderer(self) -> Renderer:
        raise NotImplementedError

    def said(self, message: Message) -> Sequence[int]:
        """The ids with which the model says an assistant message, the one that ends the answer included."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__test__ = True

    def setUp(self) -> None:
        self.tools = TOOLS if self.takes_tools else None

    def chain(self, instructions: str | None = "Be brief.") -> RenderedChain:
        return RenderedChain(self.renderer(), ask=Ask(tools=self.tools), instructions=instructions)

    def answer(self, chain: RenderedChain, content: str | None, *, calls: Sequence[Message] = (), cut: int = 0) -> None:
        """The model answers; ``cut``: it is stopped so many ids before its end."""
        message = assistant(content, calls=calls, reasoning=self.reasoning)
        ids = self.said(message)
        chain.sample(message, ids[: len(ids) - cut])

    def test_a_conversation_turn_by_turn_is_the_conversation_at_once(self) -> None:
        chain = self.chain()
        for number in range(5):
            self.tell_and_compare(chain, user(f"Question {number}?"))
            self.answer(chain, f"Answer {number}.")

        self.tell_and_compare(chain, user("And the last one?"))

    def test_a_loop_of_calls_is_only_appended_to(self) -> None:
        if not self.takes_tools:
            self.skipTest("it has no tools")
        chain = self.chain()
        chain.tell(user("How is the weather?"))
        for number in range(5):
            self.answer(chain, None, calls=[called(f"call_{number}")])
            self.tell_and_compare(chain, tool(f"call_{number}", f"Rain, {number} degrees"))
        self.answer(chain, "It rains.")

        self.tell_and_compare(chain, user("And tomorrow?"))

        assert "full" not in chain.paths[1:-1]

    def test_an_answer_that_was_stopped_is_ended(self) -> None:
        chain = self.chain()
        chain.tell(user("Tell me a story."))
        self.answer(chain, "Once upon a time", cut=1)

        self.tell_and_compare(chain, user("Stop, another one."))

    def test_an_answer_that_never_came_leaves_nothing(self) -> None:
        chain = self.chain()
        chain.tell(user("Tell me a story."))

        self.tell_and_compare(chain, user("Are you there?"))

    def test_an_answer_that_is_not_kept_as_it_was_said_is_rendered(self) -> None:
        chain = self.chain()
        log = chain.tell(user("Tell me a story."))
        chain.log = log.until(len(log.spans) - 1)

        self.tell_and_compare(chain, assistant("Once upon a time."), user("Go on."))

    def test_forks_share_their_past_and_nothing_else(self) -> None:
        chain = self.chain()
        chain.tell(user("Tell me a story."))
        self.answer(chain, "Once upon a time.")
        past = list(chain.log or ())
        forks = [chain.fork() for _ in range(3)]

        for number, fork in enumerate(forks):
            self.tell_and_compare(fork, user(f"Go on, {number} times."))
            self.answer(fork, f"I went on, {number} times.")

        assert list(chain.log or ()) == past
        self.tell_and_compare(chain, user("And now?"))
        for fork in forks:
            self.tell_and_compare(fork, user("The end?"))

    def test_other_tools_or_instructions_are_rendered_from_zero(self) -> None:
        chain = self.chain()
        chain.tell(user("Tell me a story."))
        self.answer(chain, "Once upon a time.")
        chain.instructions = "Be long."

        self.tell_and_compare(chain, user("Go on."))

        assert chain.paths[-1] == "full"

    def test_a_draft_may_be_made_in_another_thread(self) -> None:
        chain = self.chain()
        chain.messages.append(user("Tell me a story. " * 2000))
        draft = chain.draft()
        thread = threading.Thread(target=draft.make)

        thread.start()
        thread.join()

        assert list(draft.log()) == chain.whole()

    def tell_and_compare(self, chain: RenderedChain, *messages: Message) -> None:
        """The next prompt is all of the conversation, and the log was not cut back further than it had to be."""
        before = chain.log
        chain.messages += messages
        whole = chain.whole()
        draft = chain.draft()
        draft.make()
        chain.paths.append(draft.path)
        chain.log = draft.log()

        assert list(chain.log) == whole
        kept = draft.kept_tokens
        ends = [span.end for span in before.spans if span.kind != "opening"] if before is not None else []
        could_be_kept = max((end for end in ends if list(before or ())[:end] == whole[:end]), default=0)
        assert kept >= could_be_kept or (draft.path == "full" and not self.rewinds), (
            f"{kept} ids are kept where {could_be_kept} could have been"
        )
        if draft.path == "append" and before is not None:
            assert kept == max(ends)
