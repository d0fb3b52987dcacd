from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from valkey.crc import key_slot

from seedbed.plans.redis.routes import SLOTS, Ketama, Redirect, SlotMap, redirect_of, slot_of

SERVERS = [("10.0.1.1", 11211), ("10.0.1.2", 11211), ("10.0.1.3", 11211), ("10.0.1.4", 11211)]


@given(st.text(alphabet="abc{}\x00é:0", max_size=20))
def test_slots_are_those_of_the_servers(key: str) -> None:
    """A key has the slot that a well-kept client computes, with braces and without."""
    assert slot_of(key) == key_slot(key.encode())


def test_slots_of_the_specification() -> None:
    """The examples of the cluster specification."""
    assert slot_of("123456789") == 0x31C3
    assert slot_of("{user1000}.following") == slot_of("{user1000}.followers")
    assert slot_of("foo{}{bar}") == key_slot(b"foo{}{bar}")


@given(st.lists(st.sampled_from(SERVERS), min_size=1, unique=True), st.text(max_size=30))
def test_a_key_moves_only_to_a_server_that_is_added(servers: list[tuple[str, int]], key: str) -> None:
    """A server that joins takes keys over; none moves between the others, and the order of the list does not matter."""
    joined = ("10.0.2.1", 6379)
    before, after = Ketama(servers).server_of(key), Ketama([joined, *reversed(servers)]).server_of(key)
    assert after in (before, joined)


def test_keys_are_spread_over_all_shards() -> None:
    """Each of four shards gets between an eighth and a half of the keys."""
    ring = Ketama(SERVERS)
    counts = dict.fromkeys(SERVERS, 0)
    for number in range(4_000):
        counts[ring.server_of(f"user:{number}")] += 1
    assert all(500 < count < 2_000 for count in counts.values())


def test_shards_hash_the_whole_key() -> None:
    """Braces have no meaning for shards."""
    ring = Ketama(SERVERS)
    assert len({ring.server_of(f"{{user}}:{number}") for number in range(100)}) == 4


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("MOVED 3999 127.0.0.1:6381", Redirect(slot=3999, address=("127.0.0.1", 6381), is_final=True)),
        ("ASK 0 ::1:6381", Redirect(slot=0, address=("::1", 6381), is_final=False)),
        ("MOVED 16383 :6381", Redirect(slot=16383, address=("asked", 6381), is_final=True)),
        ("MOVED 16384 h:1", None),
        ("MOVED 1 h:0", None),
        ("MOVED x h:1", None),
        ("MOVED 1", None),
        ("WRONGTYPE a b", None),
    ],
)
def test_redirections_are_read(text: str, found: Redirect | None) -> None:
    """A redirection names a slot and an address; what is none is left alone."""
    assert redirect_of(text, ("asked", 1)) == found


def test_a_reply_that_is_no_map_of_slots_changes_nothing() -> None:
    """A map is taken over as a whole or not at all."""
    slots = SlotMap()
    assert slots.replace([[0, 99, ["a", 1, "id"]], [100, SLOTS - 1, ["", 2, "id"], ["replica", 3]]], ("asked", 9))
    assert slots.nodes == [("a", 1), ("asked", 2)]
    for reply in (
        [],
        "x",
        None,
        [[0, SLOTS, ["a", 1]]],
        [[5, 4, ["a", 1]]],
        [[0, 1, ["a", "b"]]],
        [[0, 1]],
        [[[], 1, ["a", 1]]],
    ):
        assert not slots.replace(reply, ("asked", 9)), reply
        assert slots.nodes == [("a", 1), ("asked", 2)]
    slots.move(100, ("new", 7))
    assert (slots.owner(99), slots.owner(100)) == (("a", 1), ("new", 7))


def test_any_bytes_have_a_shard() -> None:
    """Every point of the ring belongs to a server, the last ones to the first."""
    ring, rng = Ketama(SERVERS[:1]), random.Random(1)
    assert {ring.server_of(str(rng.random())) for _ in range(200)} == {SERVERS[0]}
