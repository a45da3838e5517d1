"""What a frame costs at least in Python: picows sends delta events as a template makes them, and does nothing else.

A client's message is two numbers: so many frames are the answer, and so many of them are made in one step of the event
loop, which writes them together. The port goes to standard output.
"""

import asyncio
from json.encoder import encode_basestring

from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

ITEM_ID = "msg_0123456789abcdef0123456789abcdef"
LAST = b'{"type":"response.completed"}'


class Floor(WSListener):
    """One socket."""

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.TEXT:
            number, each = map(int, frame.get_payload_as_bytes().split())
            # Kept, or it might be collected while it runs.
            self.answering = asyncio.get_running_loop().create_task(answer(transport, number, each))


async def answer(transport: WSTransport, number: int, each: int) -> None:
    """So many delta events, ``each`` of them in one step of the event loop."""
    for at in range(number):
        text = (
            f'{{"type":"response.output_text.delta","sequence_number":{at},"item_id":"{ITEM_ID}",'
            f'"output_index":0,"content_index":0,"delta":{encode_basestring("another ")},"logprobs":[]}}'
        )
        transport.send(WSMsgType.TEXT, text.encode())
        if at % each == each - 1:
            await asyncio.sleep(0)
    transport.send(WSMsgType.TEXT, LAST)


async def serve() -> None:
    def listener(_request: WSUpgradeRequest) -> Floor:
        return Floor()

    server = await ws_create_server(listener, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    try:
        from uvloop import run
    except ImportError:
        from asyncio import run
    try:
        run(serve())
    except KeyboardInterrupt:
        pass
