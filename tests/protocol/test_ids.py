from responses_ws.protocol.ids import make_id


def test_an_id_is_its_prefix_and_all_of_its_entropy() -> None:
    assert make_id("resp", bytes(range(24))) == "resp_000102030405060708090a0b0c0d0e0f1011121314151617"
