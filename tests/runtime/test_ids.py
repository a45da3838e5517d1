"""Ids: nobody is given one twice, whoever asks."""

import os
import threading

from responses_ws.protocol.ids import is_well_formed
from responses_ws.runtime.ids import new_id


def test_threads_that_ask_at_once_are_given_ids_of_their_own() -> None:
    made: list[list[str]] = [[] for _ in range(8)]
    threads = [threading.Thread(target=lambda ids=ids: ids.extend(new_id("resp") for _ in range(2000))) for ids in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    ids = [one for some in made for one in some]
    assert len(set(ids)) == 16_000
    assert all(map(is_well_formed, ids))


def test_a_child_process_makes_others_than_its_parent() -> None:
    new_id("resp")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, new_id("resp").encode())
        os._exit(0)
    os.waitpid(child, 0)

    assert os.read(reading, 100).decode() not in {new_id("resp") for _ in range(100)}
    os.close(reading)
    os.close(writing)
