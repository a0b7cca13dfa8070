"""Messages between our own processes: same bits, no leftovers, room for the largest."""

import multiprocessing
import os

import pytest
import torch

from polyfed.engine.channel import Slate, channels
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
    assert [float(m.w.mean()) for m in kept] == [10.0, 100_000.0, 5.0], "the parent owns what it received"


def test_a_worker_reads_where_the_message_lies(ends):
    mine, theirs = ends
    mine.send(None, Message(w=torch.ones(4)))
    read = theirs.receive()[1].w
    mine.send(None, Message(w=torch.zeros(4)))
    theirs.receive()
    assert read.tolist() == [0.0] * 4


def test_the_same_message_is_not_written_again_unless_it_or_what_was_read_has_changed(ends):
    mine, theirs = ends
    model = torch.ones(4)

    def sent() -> torch.Tensor:
        mine.send(None, Message(w=model))
        return theirs.receive()[1].w

    sent().data.fill_(5)  # behind torch's back: shows whether the next message is written
    theirs.send(None)
    mine.receive()
    assert sent().tolist() == [5.0] * 4
    sent().mul_(2)  # the worker makes it its own
    theirs.send(None)
    mine.receive()
    assert sent().tolist() == [1.0] * 4
    model += 1
    assert sent().tolist() == [2.0] * 4
    mine.send(None, Message(w=torch.zeros(4)))
    assert theirs.receive()[1].w.tolist() == [0.0] * 4
    assert sent().tolist() == [2.0] * 4


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


def test_a_slate_without_memfd_is_a_file_without_a_name(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    slate = Slate()
    places = slate.write({"w": torch.arange(5.0)}, b"b")
    tensors, blob = slate.read(places, 1)
    assert (tensors["w"].tolist(), blob) == ([0.0, 1.0, 2.0, 3.0, 4.0], b"b")
    assert list(tmp_path.iterdir()) == []
    slate.close()
