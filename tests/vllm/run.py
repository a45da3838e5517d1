"""``make vllm``: the adapter against a real vLLM; with ``--record`` its answers become the transcripts.

``VLLM_URL`` names a server that runs already, with the flags of `server.py`, and is used as it is.
"""

import argparse
import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time

import django


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="write tests/data/transcripts/vllm anew")
    parser.add_argument("pytest", nargs="*", help="arguments for pytest")
    arguments = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from . import record, server

    with contextlib.ExitStack() as stack:
        url = os.environ.get("VLLM_URL")
        if url is None:
            print(f"Installing vLLM {server.VERSION} below {server.HOME}, unless it is there", flush=True)
            server.install()
            print("Starting it, with and without --enable-scale-out", flush=True)
            began = time.monotonic()
            url = stack.enter_context(server.VllmServer(_free_port())).url
            bare = stack.enter_context(server.VllmServer(_free_port(), scale_out=False)).url
            print(f"Up after {time.monotonic() - began:.0f} s", flush=True)
            os.environ["VLLM_BARE_URL"] = bare
        if arguments.record:
            asyncio.run(record.record(url))
            if "VLLM_BARE_URL" in os.environ:
                asyncio.run(record.record_without_scale_out(os.environ["VLLM_BARE_URL"]))
        command = [sys.executable, "-m", "pytest", "-m", "vllm", "tests/vllm", *arguments.pytest]
        return subprocess.call(command, env={**os.environ, "VLLM_URL": url})


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


if __name__ == "__main__":
    sys.exit(main())
