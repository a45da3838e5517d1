"""The limits of the protocol and ours, as values. Every wait and every size has one."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one connection and of one turn. All are settings: ``RESPONSES_WS["LIMITS"]``."""

    connection_seconds: float = 3600.0
    """Age at which a socket takes no new turns. OpenAI closes at 60 minutes."""
    connection_grace_seconds: float = 600.0
    """How long running turns may go on after that."""
    open_sockets: int = 10_000
    """Sockets in one process; more are refused with 503. `responses_ws_serve` takes fewer where the process may not
    open so many files."""
    handshakes_per_second: float = 20.0
    """Handshakes from one public address, in the long run and in each process; more are refused with 429. Private
    addresses are not counted: behind those stands a proxy, with everybody."""
    handshakes_at_once: int = 200
    """How many may come at once, as from an office whose sockets all come back."""
    restart_seconds: float = 1.5
    """Time within which the idle sockets of a process that is about to end are closed, each at a moment of its own:
    their clients do not come back all at once."""
    active_turns: int = 16
    """Responses running at once on one socket; more wait. Source: OpenAI's WebSocket guide."""
    lane_names: int = 32
    """Distinct ``stream_id`` values in a socket's life; the default lane is not counted. Source: the same guide."""
    queued_turns: int = 32
    """Turns waiting on one lane; more are refused with 429."""
    queued_bytes: int = 32 * 1024 * 1024
    """Frames of all turns that wait on one socket; more are refused with 429. Twice the largest frame."""
    told_bytes: int = 64 * 1024 * 1024
    """Steers and appended outputs that one response takes while it runs, at least 1 KiB each."""
    max_frame_bytes: int = 16 * 1024 * 1024
    """One WebSocket message or HTTP body. OpenAI's limit is 16 MiB."""
    message_fragments: int = 1024
    """Frames that one message may come in."""
    message_seconds: float = 30.0
    """How long a message in several frames may take."""
    frames_per_second: float = 500.0
    """Messages of one socket, in the long run. Whoever sends more is told so, and closed with 1008."""
    frames_at_once: int = 1000
    """How many may come at once."""
    faults_per_minute: float = 50.0
    """Frames of one socket that are no valid events. Whoever sends more is closed with 1008."""
    held_bytes: int = 256 * 1024 * 1024
    """Of bodies and unfinished messages in one process. More are refused: 503, and 1013."""
    head_seconds: float = 30.0
    """How long the head of an HTTP request may take, at `responses_ws_serve`."""
    body_seconds: float = 30.0
    """How long a body may say nothing."""
    unread_seconds: float = 30.0
    """How long a client may leave unread what is sent to it. Its connection is cut then, and its turns end."""
    max_items: int = 2000
    """Items in one request's input."""
    max_tools: int = 128
    """Tools in one request, those inside namespaces included."""
    max_sealed_bytes: int = 8 * 1024 * 1024
    """One ``encrypted_content``. It has to fit into a request together with others."""
    max_image_bytes: int = 10 * 1024 * 1024
    """One image, decoded. It has to fit into a message with what base64 adds."""
    max_file_bytes: int = 10 * 1024 * 1024
    """One file, decoded."""
    max_schema_bytes: int = 128 * 1024
    """The JSON schema of ``text.format``. OpenAI allows about 120,000 characters of names and values in one."""
    summary_tokens: int = 4096
    """What a model may write, its reasoning included, when a context is compacted."""
    created_seconds: float = 0.05
    """``response.created`` goes out after this, even if the engine has not accepted the call yet."""
    keep_alive_seconds: float = 25.0
    """Silence after which ``response.in_progress`` is repeated. Codex gives up after 300 s without an event, other
    clients and proxies sooner; pings do not count."""
    ping_seconds: float = 20.0
    """Between two WebSocket pings of `responses_ws_serve`. Below the minute after which proxies and routers forget a
    silent connection."""
    pong_seconds: float = 120.0
    """How long a client may take to answer one. An agent that is busy with a tool may not read for a while."""
    http_keep_alive_seconds: float = 120.0
    """How long `responses_ws_serve` keeps an idle HTTP connection: a tool call between two turns takes time."""
    hosted_calls: int = 64
    """Calls of hosted tools in one response, where ``max_tool_calls`` does not say less."""
    append_seconds: float = 900.0
    """How long a response of the one-long-response mode waits for the outputs it asked for."""
    background_turns: int = 256
    """Background responses that one process runs at once; more are refused with 503."""
    background_waiting: int = 1000
    """Background responses that wait for `responses_ws_background`, where web workers leave them all to it; more are
    refused with 503."""
    background_poll_seconds: float = 0.3
    """How often a process looks into the database for what others say: events of a response that runs elsewhere,
    cancellations of its own background responses, and runs that wait for a process."""
    background_lease_seconds: float = 15.0
    """How long the process of a background response may not be heard of before another one takes over. It is heard of
    four times as often."""
    background_deaths: int = 3
    """Processes that may die of a background response before it fails."""
    background_log_seconds: float = 0.1
    """Between two writes of a background stream's events, which are told when they are written. The first one does not
    wait."""
    control_poll_seconds: float = 0.5
    """How often a process looks for what others have to tell all: revoked keys, deleted responses. A channel layer
    makes it faster."""
    cancel_seconds: float = 10.0
    """How long ``POST /v1/responses/{id}/cancel`` waits for the response to end."""
    event_log_bytes: int = 64 * 1024 * 1024
    """Events of running background responses that a process keeps in memory; beyond, they are read from the
    database."""
    engine_first_delta_seconds: float = 600.0
    """From the call to the engine's first delta."""
    engine_next_delta_seconds: float = 60.0
    """Between two deltas."""
    redis_seconds: float = 0.25
    """One Redis call on a turn's path; later is a miss."""
    redis_connections: int = 32
    """Connections to Redis per process; who finds none free waits no longer than for an answer."""
    redis_chain_seconds: float = 86_400.0
    """How long a stored chain stays in Redis after its last turn. It is put back when it is read from the database."""
    redis_sealed_seconds: float = 600.0
    """How long an unstored chain can be found again by a client that has lost its socket, where its project wants that.
    No longer than what is being written when a server goes is worth."""
    redis_chain_bytes: int = 8 * 1024 * 1024
    """A longer chain is not kept in Redis. All of it has to come within ``redis_seconds``."""
    redis_ids_from: int = 1000
    """Tokens from which on those of a rendered prompt are kept with its chain, four bytes each; 0: never."""
    redis_value_bytes: int = 2 * 1024 * 1024
    """Nor is one from an item on that is longer than this."""
    database_seconds: float = 10.0
    """One database call on a turn's path."""
    record_seconds: float = 21_600.0
    """Age at which the usage record of a running response is closed as abandoned, whoever still works on it."""
    arrival_seconds: float = 5.0
    """With ``DURABILITY = "journal"``: how long a response is waited for that its client may have been told of, and
    another process has not written yet; then 503."""
    hot_responses: int = 10_000
    """Stored responses that a process keeps in memory for HTTP continuations."""
    hot_bytes: int = 256 * 1024 * 1024
    """Their size in memory, roughly."""
