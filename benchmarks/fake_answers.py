"""What the fake engine says, in the three forms in which engines are asked: messages, token ids, items.

The text is the same words in all of them, one a token, and the end is one call of the tool on offer. Events are bytes
made once for each number of tokens, so that an answer costs a copy.
"""

import itertools
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

WORDS = (b"the ", b"engine ", b"reads ", b"another ", b"page ", b"of ", b"source ", b"and ", b"thinks ", b"about ")
TOOL = "read_file"
CALL_TOKENS = 12  # what the tool call adds to the usage
ITEM_ID = b"msg_00000000000000000000"
RUN = secrets.token_hex(6).encode()
"""In the ids of this process: a server that keeps items must not meet those of another one again."""

Encode = Callable[[str], list[int]]
Answer = tuple[tuple[bytes, ...], bytes]
"""SSE events of the text, one a token, and those behind it as one."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One call: ``tool`` is the name of the first on offer, empty for none; ``number`` counts the calls."""

    model: bytes
    tokens: int
    tool: bytes
    prompt_tokens: int
    number: int

    @property
    def call_id(self) -> bytes:
        return b"call_fake%08d" % self.number


def words(tokens: int) -> tuple[bytes, ...]:
    return tuple(itertools.islice(itertools.cycle(WORDS), tokens))


def text_of(tokens: int) -> str:
    """The text of an answer of so many tokens: clients compare what they received with it."""
    return b"".join(words(tokens)).decode()


def chat(asked: Asked) -> Answer:
    """``/v1/chat/completions``."""
    head = _chat_head(asked.model)
    events, tokens = [], asked.tokens
    if asked.tool:
        call = b'{"index":0,"id":"%b","type":"function","function":{"name":"%b","arguments":""}}'
        piece = b'{"index":0,"function":{"arguments":"{\\"path\\":\\"%b.py\\"}"}}' % asked.call_id
        for part in (call % (asked.call_id, asked.tool), piece):
            events.append(head + b'[{"index":0,"delta":{"tool_calls":[%b]},"finish_reason":null}]}\n\n' % part)
        tokens += CALL_TOKENS
    reason = b"tool_calls" if asked.tool else b"stop"
    events.append(head + b'[{"index":0,"delta":{},"finish_reason":"%b"}]}\n\n' % reason)
    counts = _counts(asked.prompt_tokens, tokens)
    events.append(head + b'[],"usage":{%b}}\n\n' % counts)
    events.append(b"data: [DONE]\n\n")
    return _chat_text(asked.model, asked.tokens), b"".join(events)


def _chat_head(model: bytes) -> bytes:
    fixed = b'data: {"id":"chatcmpl-fake","object":"chat.completion.chunk","created":1,"model":"%b","choices":'
    return fixed % model


def _counts(prompt_tokens: int, tokens: int) -> bytes:
    fixed = b'"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d,"prompt_tokens_details":{"cached_tokens":0}'
    return fixed % (prompt_tokens, tokens, prompt_tokens + tokens)


@lru_cache(maxsize=64)
def _chat_text(model: bytes, tokens: int) -> tuple[bytes, ...]:
    """The first event brings the role, too."""
    head = _chat_head(model)
    role = head + b'[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}\n\n'
    events = [
        head + b'[{"index":0,"delta":{"content":"%b"},"finish_reason":null}]}\n\n' % word for word in words(tokens)
    ]
    return (role + events[0], *events[1:]) if events else (role,)


class Ids:
    """``/inference/v1/generate`` of vLLM: the same in token ids, and always with a call of `TOOL`.

    ``opening`` comes before the text, ``call`` behind it, with the end of the turn as its last id.
    """

    def __init__(self, encode: Encode, *, opening: str, call: str) -> None:
        self._encode = encode
        self.opening = encode(opening) if opening else []
        self.call = encode(call % json.dumps({"path": "page.py"}))

    @lru_cache(maxsize=64)  # noqa: B019, one or two in a process
    def _text(self, tokens: int) -> tuple[bytes, ...]:
        # A word may be two ids, or two words one.
        first, *others = self._encode(text_of(2 * tokens))[:tokens]
        return (_ids_event([*self.opening, first]), *(_ids_event([one]) for one in others))

    def __call__(self, asked: Asked) -> Answer:
        usage = b'data: {"choices":[],"usage":{%b}}\n\n'
        told = _counts(asked.prompt_tokens, len(self.opening) + asked.tokens + len(self.call))
        *call, end = self.call
        closing = _ids_event(call) + _ids_event([end], b'"stop"') + usage % told + b"data: [DONE]\n\n"
        return self._text(asked.tokens), closing


def hermes(tokenizer: Path) -> Ids:
    """In ids of the tokenizer in a file, as Qwen and its like write: a model with `hermes_renderer`."""
    from responses_ws.rendering.template import TemplateRenderer
    from responses_ws.runtime import renderers

    renderer = renderers.load(hermes_renderer(tokenizer))
    assert isinstance(renderer, TemplateRenderer), "the default class"
    raw = renderer.tokenizer.raw

    def encode(text: str) -> list[int]:
        ids: list[int] = raw.encode(text, add_special_tokens=False).ids
        return ids

    call = f'<tool_call>\n{{"name": "{TOOL}", "arguments": %s}}\n</tool_call><|im_end|>'
    return Ids(encode, opening="", call=call)


def hermes_renderer(tokenizer: Path) -> dict[str, str]:
    return {"TOKENIZER": str(tokenizer), "TEMPLATE": "hermes", "PARSER": "hermes"}


HARMONY_RENDERER = {"CLASS": "responses_ws.runtime.harmony.Harmony"}


def harmony() -> Ids:
    """In ids of o200k, as gpt-oss writes: a model with `HARMONY_RENDERER`."""
    from responses_ws.runtime.harmony import encoding_of, packaged_vocabulary

    encoding = encoding_of(packaged_vocabulary().read_bytes())

    def encode(text: str) -> list[int]:
        return encoding.encode(text, allowed_special="all")

    recipient = f"<|start|>assistant<|channel|>commentary to=functions.{TOOL} <|constrain|>json<|message|>"
    return Ids(encode, opening="<|channel|>commentary<|message|>", call=f"<|end|>{recipient}%s<|call|>")


def _ids_event(ids: list[int], reason: bytes = b"null") -> bytes:
    said = ",".join(map(str, ids)).encode()
    return b'data: {"choices":[{"index":0,"token_ids":[%b],"finish_reason":%b}]}\n\n' % (said, reason)


def responses(asked: Asked) -> Answer:
    """``/v1/responses``, for servers that ask their engine in the words of their clients."""
    item_id = b"msg_%b%08d" % (RUN, asked.number)
    first = b"".join(_opening(asked, item_id))
    events = tuple(event.replace(ITEM_ID, item_id) for event in _items_text(asked.tokens))
    return (first + (events[0] if events else b""), *events[1:]), b"".join(_closing(asked, item_id))


@lru_cache(maxsize=64)
def _items_text(tokens: int) -> tuple[bytes, ...]:
    fixed = b'"item_id":"%b","output_index":0,"content_index":0,"delta":"%b","logprobs":[]'
    numbered = enumerate(words(tokens), start=4)
    return tuple(_event(b"response.output_text.delta", at, fixed % (ITEM_ID, word)) for at, word in numbered)


def _event(kind: bytes, number: int, rest: bytes) -> bytes:
    return b'event: %b\ndata: {"type":"%b","sequence_number":%d,%b}\n\n' % (kind, kind, number, rest)


def _response(asked: Asked, status: bytes, output: bytes, usage: bytes) -> bytes:
    fixed = (
        b'"response":{"id":"resp_%b%08d","object":"response","created_at":1,"status":"%b","model":"%b","output":[%b],'
        b'"usage":%b,"error":null,"incomplete_details":null,"instructions":null,"metadata":{},"parallel_tool_calls":true,'
        b'"temperature":1.0,"tool_choice":"auto","tools":[],"top_p":1.0,"previous_response_id":null,"store":false,'
        b'"text":{"format":{"type":"text"}},"truncation":"disabled","background":false,"max_output_tokens":null,'
        b'"reasoning":{"effort":null,"summary":null},"service_tier":"auto","user":null}'
    )
    return fixed % (RUN, asked.number, status, asked.model, output, usage)


def _message(item_id: bytes, status: bytes, content: bytes) -> bytes:
    return b'{"id":"%b","type":"message","role":"assistant","status":"%b","content":[%b]}' % (item_id, status, content)


def _part(text: bytes) -> bytes:
    return b'{"type":"output_text","text":"%b","annotations":[],"logprobs":[]}' % text


def _opening(asked: Asked, item_id: bytes) -> list[bytes]:
    begun = _response(asked, b"in_progress", b"", b"null")
    place = b'"item_id":"%b","output_index":0,"content_index":0,"part":%b' % (item_id, _part(b""))
    return [
        _event(b"response.created", 0, begun),
        _event(b"response.in_progress", 1, begun),
        _event(b"response.output_item.added", 2, b'"output_index":0,"item":' + _message(item_id, b"in_progress", b"")),
        _event(b"response.content_part.added", 3, place),
    ]


def _closing(asked: Asked, item_id: bytes) -> list[bytes]:
    text, number = text_of(asked.tokens).encode(), itertools.count(4 + asked.tokens)
    at = b'"item_id":"%b","output_index":0,"content_index":0,' % item_id
    message = _message(item_id, b"completed", _part(text))
    output, tokens = [message], asked.tokens
    events = [
        _event(b"response.output_text.done", next(number), at + b'"text":"%b","logprobs":[]' % text),
        _event(b"response.content_part.done", next(number), at + b'"part":' + _part(text)),
        _event(b"response.output_item.done", next(number), b'"output_index":0,"item":' + message),
    ]
    if asked.tool:
        call_id, function_id = asked.call_id, b"fc_%b%08d" % (RUN, asked.number)
        arguments = b'{\\"path\\":\\"%b.py\\"}' % call_id
        fixed = b'{"id":"%b","type":"function_call","call_id":"%b","name":"%b","arguments":"%b","status":"%b"}'
        begun = fixed % (function_id, call_id, asked.tool, b"", b"in_progress")
        call = fixed % (function_id, call_id, asked.tool, arguments, b"completed")
        at = b'"item_id":"%b","output_index":1,' % function_id
        events += [
            _event(b"response.output_item.added", next(number), b'"output_index":1,"item":' + begun),
            _event(b"response.function_call_arguments.delta", next(number), at + b'"delta":"%b"' % arguments),
            _event(b"response.function_call_arguments.done", next(number), at + b'"arguments":"%b"' % arguments),
            _event(b"response.output_item.done", next(number), b'"output_index":1,"item":' + call),
        ]
        output.append(call)
        tokens += CALL_TOKENS
    usage = b'{"input_tokens":%d,"output_tokens":%d,"total_tokens":%d,' % (
        asked.prompt_tokens,
        tokens,
        asked.prompt_tokens + tokens,
    )
    usage += b'"input_tokens_details":{"cached_tokens":0},"output_tokens_details":{"reasoning_tokens":0}}'
    done = _response(asked, b"completed", b",".join(output), usage)
    return [*events, _event(b"response.completed", next(number), done)]
