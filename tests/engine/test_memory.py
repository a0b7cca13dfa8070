"""Versioned client memory: what is put does not count until it is committed, and nothing that counts is lost."""

import os

import pytest

from polyfed.engine.memory import MemoryStore
from polyfed.errors import DataError
from polyfed.files import write_file
from polyfed.message import digest_of


@pytest.fixture
def store(tmp_path):
    return MemoryStore(tmp_path / "memory")


def keep(store, client, version, blob):
    store.put(client, version, blob)
    store.commit(client, version, digest_of(blob))


def files(store):
    return store.folder.names()


def test_no_memory_is_none(store):
    assert store.get(3, None) is None
    assert store.table == {}


def test_what_is_put_is_there_but_counts_only_when_committed(store):
    keep(store, 1, 1, b"one")
    store.put(1, 2, b"two")
    assert store.table == {1: 1}
    assert (store.get(1, 1), store.get(1, 2)) == (b"one", b"two")
    store.commit(1, 2, digest_of(b"two"))
    assert store.table == {1: 2}
    assert store.digests == {1: digest_of(b"two")}
    with pytest.raises(DataError, match="client 1, version 1, is missing"):
        store.get(1, 1)


def test_what_is_dropped_is_gone_and_the_old_one_still_counts(store):
    keep(store, 1, 1, b"one")
    store.put(1, 2, b"two")
    store.drop(1, 2)
    assert (store.table, store.get(1, 1)) == ({1: 1}, b"one")
    with pytest.raises(DataError):
        store.get(1, 2)


@pytest.mark.parametrize("limit", [0, 5])
def test_beyond_a_limit_the_oldest_go_to_disk(tmp_path, limit):
    store = MemoryStore(tmp_path / "memory", limit=limit)
    for client in range(5):
        keep(store, client, 1, b"abc")
    assert len(files(store)) == (5 if limit == 0 else 4)
    assert [store.get(k, 1) for k in range(5)] == [b"abc"] * 5
    store.put(2, 2, b"new")
    store.drop(2, 2)
    assert "2-2.safetensors" not in files(store)
    assert store.get(2, 1) == b"abc"


def test_exactly_at_the_limit_nothing_goes_to_disk(tmp_path):
    store = MemoryStore(tmp_path / "memory", limit=6)
    store.put(0, 1, b"abc")
    store.put(1, 1, b"def")
    assert files(store) == []
    store.put(2, 1, b"g")
    assert files(store) == ["0-1.safetensors"], "the oldest, and only as many as needed"


def test_what_is_put_again_or_dropped_counts_once_towards_the_limit(tmp_path):
    store = MemoryStore(tmp_path / "memory", limit=6)
    for _ in range(5):
        store.put(0, 1, b"abcdef")
    store.drop(0, 1)
    store.put(1, 1, b"abcdef")
    assert files(store) == []


def test_a_version_that_was_durable_and_is_put_again_is_written_again(store):
    """A round done again after a resume has the number of one that was kept: its file must be the new memory."""
    keep(store, 1, 1, b"of the first time")
    store.persist()
    keep(store, 1, 1, b"of the second time")
    store.persist()
    again = MemoryStore(store.folder)
    again.restore(store.table, store.digests)
    assert again.get(1, 1) == b"of the second time"


def test_a_spilled_version_that_is_put_again_is_the_new_one(tmp_path):
    """A round drawn again writes the same version anew."""
    store = MemoryStore(tmp_path / "memory", limit=0)
    store.put(1, 1, b"first attempt")
    keep(store, 1, 1, b"second attempt")
    assert store.get(1, 1) == b"second attempt"
    store.persist()
    MemoryStore(store.folder).restore(store.table, store.digests)


def test_persist_writes_what_counts_and_a_new_store_restores_it(store):
    keep(store, 1, 1, b"one")
    keep(store, 2, 4, b"two")
    store.put(3, 4, b"does not count")
    store.persist()
    assert files(store) == ["1-1.safetensors", "2-4.safetensors"]
    again = MemoryStore(store.folder)
    again.restore(store.table, store.digests)
    assert (again.table, again.digests) == (store.table, store.digests)
    assert (again.get(1, 1), again.get(2, 4)) == (b"one", b"two")


def test_persist_replaces_a_file_left_by_a_sitting_that_was_killed(store):
    """It may come from other bits (another machine, a client lost): only what this store wrote is trusted."""
    store.folder.mkdir()
    (store.folder.path / "1-2.safetensors").write_bytes(b"of the killed one")
    keep(store, 1, 2, b"of this one")
    store.persist()
    MemoryStore(store.folder).restore(store.table, store.digests)


def test_persist_syncs_every_version_once(store, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    for client in range(3):
        keep(store, client, 1, b"abc")
    store.persist()
    assert len([s for s in synced if "safetensors" in s]) == 3
    assert str(store.folder) in synced
    synced.clear()
    store.persist()
    assert synced == []


def test_persist_syncs_what_was_spilled(tmp_path, monkeypatch):
    store, synced = MemoryStore(tmp_path / "memory", limit=0), []
    keep(store, 1, 1, b"abc")
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.readlink(f"/proc/self/fd/{handle}")))
    store.persist()
    assert str(store.folder.path / "1-1.safetensors") in synced


@pytest.mark.parametrize("content", [b"", b"onf", b"one and more"])
def test_restore_refuses_a_file_that_is_not_what_was_written(store, content):
    keep(store, 1, 1, b"one")
    store.persist()
    (store.folder.path / "1-1.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="client 1, version 1, is corrupt"):
        MemoryStore(store.folder).restore(store.table, store.digests)


def test_restore_refuses_a_missing_file_and_changes_nothing(store):
    keep(store, 1, 1, b"one")
    again = MemoryStore(store.folder)
    with pytest.raises(DataError, match="is missing"):
        again.restore(store.table, store.digests)
    assert again.table == {}


def test_prune_keeps_what_kept_checkpoints_and_the_present_need(store):
    for version in (1, 2, 3):
        for client in (1, 2):
            keep(store, client, version, f"{client} {version}".encode())
        store.persist()
    (store.folder.path / ".3-1.safetensors.99.tmp").write_bytes(b"a killed write")
    assert len(files(store)) == 7
    store.prune({1: 2, 2: 2})
    assert files(store) == [f"{c}-{v}.safetensors" for c in (1, 2) for v in (2, 3)]
    store.prune()
    assert files(store) == ["1-3.safetensors", "2-3.safetensors"]


def test_prune_without_a_folder(store):
    store.prune({1: 1})
    assert not store.folder.exists()


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_file(path, b"old")

    def broken(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="No space"):
        write_file(path, b"new")
    assert path.read_bytes() == b"old"


def test_a_run_whose_memories_all_spill_has_the_same_bits(trial, own, monkeypatch):
    changes = {"method.name": own("Counting")}
    fingerprint = trial.kept(changes).fingerprint
    monkeypatch.setattr(MemoryStore.__init__, "__defaults__", (100,))
    assert trial(changes).fingerprint == fingerprint
    assert trial(changes | {"engine.workers": 2, "checkpoint.every": 3}).fingerprint == fingerprint
