"""Messages between our own processes: same bits, no leftovers, room for the largest."""

import multiprocessing
import os

import pytest
import torch

from polyfed.engine.local.channel import TOLD, channels
from polyfed.message import Message

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def ends():
    mine, theirs = channels(FORK)
    yield mine, theirs
    mine.close()
    theirs.pipe.close()


def same(one: Message, other: Message) -> None:
    assert one.encode() == other.encode()


def test_value_message_and_memory_arrive_bit_for_bit(ends):
    mine, theirs = ends
    odd = torch.randn(3, 5)[:, ::2]  # not contiguous
    message = Message(w=torch.randn(7), empty=torch.empty(0, 2), odd=odd, ids=torch.tensor([3, 1]), lam=0.5, k=2)
    mine.send({"a": 1}, message, b"memory")
    value, found, blob = theirs.receive()
    assert (value, blob) == ({"a": 1}, b"memory")
    same(found, message)
    theirs.send("done")
    value, found, blob = mine.receive()
    assert (value, len(found), blob) == ("done", 0, None)


def test_an_empty_memory_is_not_no_memory(ends):
    mine, theirs = ends
    mine.send(None, None, b"")
    assert theirs.receive()[2] == b""


def test_a_larger_message_makes_room_and_what_was_kept_stays(ends):
    mine, theirs = ends
    kept = []
    for size in (10, 100_000, 5):
        theirs.send(size, Message(w=torch.full((size,), float(size))))
        kept.append(mine.receive()[1])
    assert [float(m.w.mean()) for m in kept] == [10.0, 100_000.0, 5.0], "nothing is written where somebody reads"


def test_several_messages_may_be_under_way(ends):
    mine, theirs = ends
    for k in range(3):
        mine.send(k, Message(w=torch.full((4,), float(k))), bytes([k]))
    found = [theirs.receive() for _ in range(3)]
    assert [(value, message.w.tolist(), blob) for value, message, blob in found] == [
        (k, [float(k)] * 4, bytes([k])) for k in range(3)
    ]


def test_memory_is_used_again_once_nobody_reads_it(ends):
    mine, theirs = ends

    def exchange(kept: list[Message], count: int) -> int:
        for k in range(count):
            theirs.send(None, Message(w=torch.full((1000,), float(k)), ids=torch.tensor([k])), b"memory")
            kept.append(mine.receive()[1])
            mine.send(None)  # carries what is done with
            theirs.receive()
        return theirs.out.end

    held: list[Message] = []
    once = exchange(held, 20)
    assert [int(m.ids) for m in held] == [int(m.w[0]) for m in held] == list(range(20))
    part = held.pop().w[3:5]  # a view of one tensor keeps the region
    held.clear()
    mine.send(None)
    theirs.receive()
    assert exchange([], 19) == once, "what was given back is written again"
    assert part.tolist() == [19.0, 19.0]


def test_more_is_given_back_than_one_message_tells(ends):
    mine, theirs = ends
    for k in range(TOLD + 10):
        theirs.send(k, Message(w=torch.ones(3)))
    held = [mine.receive() for _ in range(TOLD + 10)]
    held.clear()
    for free in (TOLD, TOLD + 10):
        mine.send(None)
        theirs.receive()
        assert len(theirs.out.free) == free


def test_a_smaller_message_takes_the_smallest_region_that_holds_it(ends):
    _, theirs = ends
    big, small = (theirs.out.write({"w": torch.zeros(n)}, b"") for n in (1000, 10))
    for written in (big, small):
        theirs.out.given_back(written.start)
    assert theirs.out.write({"w": torch.zeros(5)}, b"").start == small.start
    assert theirs.out.write({"w": torch.zeros(5)}, b"").start == big.start


def test_a_region_that_is_too_small_is_left_alone(ends):
    _, theirs = ends
    big, small = (theirs.out.write({"w": torch.zeros(n)}, b"") for n in (1000, 10))
    for written in (big, small):
        theirs.out.given_back(written.start)
    assert theirs.out.write({"w": torch.zeros(500)}, b"").start == big.start
    assert theirs.out.write({"w": torch.zeros(500)}, b"").start not in (big.start, small.start)
    assert theirs.out.free == [(64, small.start)], "10 floats in 64 bytes"


def test_a_region_with_two_readers_is_free_when_both_have_done(ends):
    mine, _ = ends
    model = torch.ones(4)
    first, again = (mine.out.write({"w": model}, b"") for _ in range(2))
    assert first == again
    mine.out.write({"w": torch.zeros(4)}, b"")  # the model of the next round
    mine.out.given_back(first.start)
    assert mine.out.free == []
    mine.out.given_back(first.start)
    assert mine.out.free == [(64, first.start)]


def test_every_tensor_starts_at_a_multiple_of_64_bytes(ends):
    mine, _ = ends
    written = mine.out.write({"a": torch.ones(3), "b": torch.ones(17), "c": torch.ones(1)}, b"a blob")
    assert [start for *_, start in written.places] == [64, 128, 256]


def test_the_same_message_is_written_once_and_a_workers_writes_stay_its_own(ends):
    mine, theirs = ends
    model = torch.ones(4)

    def sent() -> torch.Tensor:
        mine.send(None, Message(w=model))
        read = theirs.receive()[1].w
        theirs.send(None)
        mine.receive()
        return read

    ahead = sent()
    ahead.data.fill_(5)  # behind torch's back: shows that the next message lies in the same place
    assert sent().tolist() == [5.0] * 4
    mine.send(None, Message(w=model))  # is under way while the worker makes what it has its own
    sent_before = theirs.receive()[1].w
    mine.send(None, Message(w=model))
    sent_before.mul_(2)
    assert theirs.receive()[1].w.tolist() == [1.0] * 4
    model += 1
    assert sent().tolist() == [2.0] * 4
    mine.send(None, Message(w=torch.zeros(4)))
    assert theirs.receive()[1].w.tolist() == [0.0] * 4
    assert sent().tolist() == [2.0] * 4


def test_a_message_that_repeats_takes_one_region_and_leaves_it_to_the_next(ends):
    mine, theirs = ends
    for value in range(4):  # rounds
        model = torch.full((1000,), float(value))
        for _ in range(3):
            mine.send(None, Message(w=model))
            assert theirs.receive()[1].w[0] == value
            theirs.send(None)
            mine.receive()
    assert mine.out.end <= 3 * 4096, "a round's model, the one before it, and one that is still being read"


def test_what_is_no_number_is_refused_before_anything_is_sent(ends):
    mine, theirs = ends
    with pytest.raises(TypeError, match="neither a tensor nor a number"):
        mine.send(None, Message(w="text"))
    assert not theirs.pipe.poll()


def test_a_forked_process_answers_over_it(ends):
    mine, theirs = ends

    def double():
        value, message, blob = theirs.receive()
        theirs.send(value, Message(w=message.w * 2), blob)

    process = FORK.Process(target=double)
    process.start()
    mine.send("x", Message(w=torch.arange(3.0)), b"m")
    value, message, blob = mine.receive()
    process.join(20)
    assert (value, message.w.tolist(), blob) == ("x", [0.0, 2.0, 4.0], b"m")


def test_without_memfd_it_is_a_file_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, theirs = channels(FORK)
    mine.send(None, Message(w=torch.arange(5.0)), b"b")
    _, message, blob = theirs.receive()
    assert (message.w.tolist(), blob) == ([0.0, 1.0, 2.0, 3.0, 4.0], b"b")
    assert list(tmp_path.iterdir()) == []
    mine.close()
    theirs.pipe.close()
