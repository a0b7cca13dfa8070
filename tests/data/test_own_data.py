"""Data of one's own, from end to end, as a user's script has it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import polyfed
from polyfed.api import config_of
from polyfed.data.live import reading_anew
from polyfed.data.sources import arrays, base
from polyfed.engine import work
from polyfed.errors import DataError, UsageError

OWN: dict[str, Any] = {"model": "mlp", "model.width": 0.1, "train.lr": 0.5, "rounds": 2, "engine.workers": 0}


class Pictures(Dataset):
    """Pictures of three kinds, the darker the smaller the class."""

    def __init__(self, count: int, side: int = 8, seed: int = 0, mode: str = "RGB"):
        draw = np.random.default_rng(seed)
        self.y = np.arange(count) % 3
        shape = (count, side, side, 3) if mode == "RGB" else (count, side, side)
        dark = draw.integers(0, 60, shape) + 80 * self.y.reshape(-1, *[1] * (len(shape) - 1))
        self.x = dark.astype(np.uint8)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        return Image.fromarray(self.x[at]), int(self.y[at])


def points(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Points of three classes that a linear model tells apart."""
    y = np.arange(count) % 3
    return (np.random.default_rng(seed).normal(size=(count, 5)) + 3 * np.eye(3, 5)[y]).astype(np.float32), y


class Halves(Dataset):
    """A data set whose labels are no classes."""

    def __init__(self, count: int):
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, at: int) -> tuple[np.ndarray, float]:
        return np.zeros(5, np.float32), at + 0.5


def a_set(count: int, seed: int = 0) -> TensorDataset:
    return TensorDataset(*map(torch.from_numpy, points(count, seed)))


def held(fed: Any) -> dict[str, tuple[int, int]]:
    return {client.name: (len(client.train), len(client.test)) for client in fed.clients}


class TestOneDataSetPerClient:
    def test_a_list_of_three(self) -> None:
        result = polyfed.run(OWN, data=[Pictures(60), Pictures(45, seed=1), Pictures(30, seed=2)])
        assert sorted(set(result.clients["name"])) == ["client-0", "client-1", "client-2"]
        assert result["personal.accuracy"] > 0.6
        assert result.client(2).predict(Pictures(3, seed=9).x).shape == (3,)

    def test_a_mapping_of_names_with_tests_of_their_own(self) -> None:
        clients = {"north": (a_set(40), a_set(12, 7)), "south": a_set(30, 1), "east": (a_set(20, 2), a_set(9, 8))}
        fed = polyfed.federation(OWN, data=clients)
        assert held(fed) == {"north": (40, 12), "south": (24, 6), "east": (20, 9)}  # in this order; one test is cut
        assert len(fed.global_test) == 12 + 6 + 9
        assert torch.equal(fed.clients[0].test.take(torch.arange(12))[0], clients["north"][1].tensors[0])
        result = polyfed.run(OWN, data=clients)
        tested = result.clients[result.clients["measure"] == "personal_final"]
        assert dict(zip(tested["name"], tested["samples"], strict=True)) == {"north": 12, "south": 6, "east": 9}

    def test_without_a_cut_only_those_that_were_given_are_tested(self) -> None:
        clients = {"north": (a_set(40), a_set(12, 7)), "south": a_set(30, 1)}
        fed = polyfed.federation(OWN, data=clients, **{"split.test": "none", "split.val": 0.1})
        assert held(fed) == {"north": (36, 12), "south": (27, 0)}
        with pytest.raises(UsageError, match=r"split.test=mirror deals out an official test set"):
            polyfed.federation(OWN, data=clients, **{"split.test": "mirror"})

    def test_tests_of_those_who_are_left_out_are_tested_by_all(self) -> None:
        clients = {"north": (a_set(40), a_set(12, 7)), "south": (a_set(30, 1), a_set(9, 3))}
        fed = polyfed.federation(OWN, data=clients, **{"split.clients": 1})
        assert held(fed) == {"north": (40, 12)}
        assert fed.split.global_test.tolist() == list(range(70, 91))

    def test_samples_of_the_server_are_in_nobodys_test(self) -> None:
        clients = {"north": (a_set(40), a_set(12, 7)), "south": (a_set(30, 1), a_set(12, 3))}
        fed = polyfed.federation(OWN, data=clients, **{"split.public": 6})
        tested = np.concatenate(fed.split.test)
        assert len(fed.public) == 6
        assert len(tested) == len(fed.global_test) == 18
        assert not np.isin(fed.split.public, tested).any()

    def test_arrays_and_sets_are_the_same_federation(self) -> None:
        sets = {"a": (a_set(20), a_set(6, 3)), "b": a_set(30, 1)}
        tuples = {"a": (*points(20), *points(6, 3)), "b": points(30, 1)}
        fields = {"a": dict(zip(("x", "y", "x_test", "y_test"), tuples["a"], strict=True)), "b": points(30, 1)}
        keys = {config_of(OWN, data=data).data.key for data in (sets, tuples, fields)}
        assert len(keys) == 1

    def test_a_pair_is_one_data_set_with_its_test(self) -> None:
        fed = polyfed.federation(OWN, data=(a_set(60), a_set(15, 1)), **{"split.clients": 4})
        assert len(fed.clients) == 4
        assert fed.split.global_test.tolist() == list(range(60, 75))

    def test_sizes_that_differ_name_the_key_that_brings_them_together(self, runs: Path) -> None:
        clients = {"north": Pictures(20, side=8), "south": Pictures(20, side=12)}
        with pytest.raises(
            DataError, match=r"client 'south' are uint8 \[12, 12, 3\].*'north' uint8 \[8, 8.*data.size=N"
        ):
            polyfed.run(OWN, data=clients)
        assert not runs.exists()
        assert polyfed.federation(OWN, data=clients, **{"data.size": 10}).shape == (3, 10, 10)

    def test_sizes_that_differ_within_a_client(self) -> None:
        class Mixed(Pictures):
            def __getitem__(self, at: int) -> tuple[Any, int]:
                picture, y = super().__getitem__(at)
                return picture.resize((8 + at % 2, 8)), y

        with pytest.raises(DataError, match=r"item 1 of client 'client-0' are uint8 \[8, 9, 3\]"):
            polyfed.federation(OWN, data=[Mixed(20), Pictures(20)])
        assert polyfed.federation(OWN, data=[Mixed(20), Pictures(20)], **{"data.size": 8}).shape == (3, 8, 8)

    def test_grey_pictures_among_coloured_ones(self) -> None:
        assert polyfed.federation(OWN, data=[Pictures(20), Pictures(20, mode="L")]).shape == (3, 8, 8)

    def test_classes_have_the_names_that_the_data_sets_give_them(self) -> None:
        """As torchvision's folders do: each client's numbers are places in its own list."""
        north, south = Pictures(20), Pictures(20)
        north.classes, south.classes = ["cat", "dog", "eel"], ["dog", "eel", "fox"]  # type: ignore[attr-defined]
        fed = polyfed.federation(OWN, data={"north": north, "south": south})
        assert fed.class_names == ("cat", "dog", "eel", "fox")
        assert (fed.clients[0].counts > 0).tolist() == [True, True, True, False]
        assert (fed.clients[1].counts > 0).tolist() == [False, True, True, True]

    @pytest.mark.parametrize(
        ("data", "says"),
        [
            ({"north": object()}, r"client 'north' has something else: data must be a name, arrays \(x, y\)"),
            ([points(20), 5, object()], r"data must be a name"),
            ({"north": TensorDataset(torch.zeros(0, 5), torch.zeros(0, dtype=torch.int64))}, "no sample to train on"),
            ({"north": (points(9)[0], points(8)[1])}, "x of client 'north': 9 samples but 8 labels"),
            ([a_set(9), points(9)[:1]], "client 'client-1' has something else"),
            ([Halves(9)], "the class 0.5 is not a whole number"),
            ({"x": points(9)[0], "z": points(9)[1]}, "there is no field 'z'"),
            ({"x": points(9)[0], "users": np.arange(9)}, "x and y are needed"),
            ({"a": a_set(9), "b": (points(9)[0], ["cat"] * 9)}, "of client 'a' are numbers, those of x of client 'b'"),
        ],
        ids=lambda value: value if isinstance(value, str) else "data",
    )
    def test_what_cannot_be_clients(self, data: Any, says: str, runs: Path) -> None:
        with pytest.raises((UsageError, DataError), match=says):
            polyfed.run(OWN, data=data)
        assert not runs.exists()


class TestArraysWithNames:
    def test_users_and_classes(self) -> None:
        x, y = points(60)
        users = np.array(["süd", "north", "north"])[np.arange(60) // 20]
        data = {"x": x, "y": y, "users": users, "classes": ["cat", "dog", "eel", "fox"]}
        result = polyfed.run(OWN, data=data)
        assert sorted(set(result.clients["name"])) == ["north", "süd"]
        assert result.config["data"]["classes"] == ["cat", "dog", "eel", "fox"]
        assert result.client(0, data=data).class_names == ("cat", "dog", "eel", "fox")

    def test_labels_may_be_words(self) -> None:
        x, y = points(60)
        words = np.array(["dog", "cat", "eel"])[y]
        fed = polyfed.federation(OWN, data=(x, words))
        assert fed.class_names == ("cat", "dog", "eel")
        assert fed.dataset.y[:3].tolist() == [1, 0, 2]
        fed = polyfed.federation(OWN, data={"x": x, "y": list(words), "classes": ["eel", "dog", "cat"]})
        assert fed.dataset.y[:3].tolist() == [1, 2, 0]
        with pytest.raises(DataError, match=r"there is a label 'cat', and data.classes does not name it"):
            polyfed.federation(OWN, data={"x": x, "y": words, "classes": ["eel", "dog"]})

    def test_users_of_test_samples(self) -> None:
        (x, y), (x_test, y_test) = points(40), points(12, 1)
        data = {"x": x, "y": y, "users": np.arange(40) % 2, "x_test": x_test, "y_test": y_test}
        fed = polyfed.federation(OWN, data={**data, "users_test": np.arange(12) % 4 // 3})
        assert held(fed) == {"0": (20, 9), "1": (20, 3)}
        assert held(polyfed.federation(OWN, data=data)) == {"0": (16, 4), "1": (16, 4)}  # nobody's: the global test
        with pytest.raises(DataError, match="12 test samples but 3 users"):
            polyfed.federation(OWN, data={**data, "users_test": [0, 1, 0]})

    def test_a_run_is_resumed_with_the_same_objects(self, tmp_path: Path) -> None:
        x, y = points(60)
        data = {"x": x, "y": y, "users": np.arange(60) // 20}
        result = polyfed.run(OWN, data=data, out=tmp_path / "run")
        for kept in (arrays._held, base._loaded, work._recent):  # as in another process
            kept.clear()
        with pytest.raises(DataError, match="pass them again"):
            polyfed.load(tmp_path / "run").client(0)
        assert polyfed.load(tmp_path / "run").client(0, data=data).predict(x).shape == (60,)
        assert result.finished


class TestWrongLayouts:
    @pytest.mark.parametrize(
        ("labels", "says"),
        [
            (np.arange(60) * 17_000, r"labels up to 1003000 make 1003001 classes of 60 samples, and 60 of them occur"),
            (np.arange(60) * 1000, r"renumber them from 0 on with np.unique.*or confirm with data.classes=59001"),
            (np.arange(60).astype(str), "60 samples have 60 different labels such as '0'.*data.classes=60"),
        ],
    )
    def test_labels_that_are_no_classes(self, labels: np.ndarray, says: str, runs: Path) -> None:
        with pytest.raises(DataError, match=says):
            polyfed.run(OWN, data=(points(60)[0], labels))
        assert not runs.exists()

    def test_many_classes_can_be_confirmed(self) -> None:
        fed = polyfed.federation(OWN, data=(points(60)[0], np.arange(60)), **{"data.classes": 60, "split.clients": 2})
        assert fed.classes == 60

    def test_numbers_have_their_channels_first(self, runs: Path) -> None:
        with pytest.raises(
            DataError, match=r"looks like images \[N, H, W, C\].*x.transpose\(0, 3, 1, 2\), or give uint8"
        ):
            polyfed.run(OWN, data=(np.zeros((40, 8, 8, 3)), np.arange(40) % 2))
        with pytest.raises(
            UsageError, match=r"'lenet' takes images of at least 16 x 16, and the samples.*channels first"
        ):
            polyfed.run({**OWN, "model": "lenet"}, data=(np.zeros((40, 20, 24, 3)), np.arange(40) % 2))
        assert not runs.exists()
        assert polyfed.federation(OWN, data=(np.zeros((40, 9, 128, 1)), np.arange(40) % 2)).shape == (9, 128, 1)


def table(path: Path, text: str, rows: Callable[[int], str], count: int = 60) -> Path:
    path.write_text("\n".join([text, *map(rows, range(count))]) + "\n", encoding="utf-8")
    return path


class TestManifest:
    def test_features(self, tmp_path: Path) -> None:
        x, y = points(90)

        def row(at: int) -> str:
            who, part = ("north", "south")[at % 2], "test" if at >= 60 else "train"
            return ",".join([f"{value:.4f}" for value in x[at]] + [("cat", "dog", "eel")[y[at]], who, part])

        file = table(tmp_path / "sites.csv", "a,b,c,d,e,label,client,split", row, 90)
        result = polyfed.run(OWN, data=file)
        assert result.config["data"]["name"] == "manifest"
        assert result["personal.accuracy"] > 0.6
        fed = polyfed.federation(OWN, data=str(file))
        assert held(fed) == {"north": (30, 15), "south": (30, 15)}
        assert fed.class_names == ("cat", "dog", "eel")
        assert np.allclose(fed.dataset.x[:60], x[:60], atol=1e-4)

    def test_on_the_command_line(self, tmp_path: Path, cli: Any) -> None:
        file = table(tmp_path / "t.csv", "age,kind,site", lambda at: f"{at / 60},{at % 2},{at % 3}")
        keys = [f"data={file}", "data.label=kind", "data.client=site"]
        said = cli("split", *keys)
        assert said.code == 0, said.err
        assert "3 clients" in said.out

    def test_several_are_compared(self, tmp_path: Path) -> None:
        rows = {name: lambda at, shift=shift: f"{at / 60 + shift},{at % 2},{at % 3}" for shift, name in enumerate("ab")}
        files = [table(tmp_path / f"{name}.csv", "v,label,client", row) for name, row in rows.items()]
        made = polyfed.compare(OWN, data=[str(file) for file in files], methods=["fedavg"], seeds=1)
        assert made.finished
        assert sorted(Path(result.config["data"]["file"]).name for result in made.results) == ["a.csv", "b.csv"]

    def test_pictures(self, tmp_path: Path) -> None:
        for at, side in enumerate([8, 8, 12, 12, 8, 8] * 4):
            Image.fromarray(np.full((side, side, 3), 10 * at, np.uint8)).save(tmp_path / f"{at}.png")
        file = table(tmp_path / "list.csv", "path,label,client", lambda at: f"{at}.png,{at % 2},{'ab'[at % 2]}", 24)
        with pytest.raises(DataError, match=r"2.png are uint8 \[12, 12, 3\].*data.size=N gives all images one side"):
            polyfed.federation(OWN, data=file)
        fed = polyfed.federation(OWN, data=file, **{"data.size": 8})
        assert fed.shape == (3, 8, 8)
        assert held(fed) == {"a": (9, 3), "b": (9, 3)}
        elsewhere = (tmp_path / "elsewhere").joinpath("list.csv")
        elsewhere.parent.mkdir()
        elsewhere.write_text(file.read_text())
        with pytest.raises(DataError, match=r"elsewhere/0.png is not a readable image"):
            polyfed.federation(OWN, data=elsewhere)
        keys = {"data.size": 8, "data.root": tmp_path}
        assert np.array_equal(polyfed.federation(OWN, data=elsewhere, **keys).dataset.x, fed.dataset.x)

    def test_without_clients_it_is_divided(self, tmp_path: Path) -> None:
        file = table(tmp_path / "t.csv", "a,label", lambda at: f"{at},{at % 2}")
        fed = polyfed.federation(OWN, data=file, **{"split.clients": 3})
        assert [client.name for client in fed.clients] == ["client-0", "client-1", "client-2"]

    def test_numbers_are_sorted_as_numbers(self, tmp_path: Path) -> None:
        file = table(tmp_path / "t.csv", "a,label,client", lambda at: f"{at},{at % 12},{at % 12}")
        fed = polyfed.federation(OWN, data=file)
        assert [client.name for client in fed.clients] == [str(k) for k in range(12)]
        assert fed.class_names == tuple(str(k) for k in range(12))

    @pytest.mark.parametrize(
        ("head", "row", "says"),
        [
            ("a,kind", "1,2", "has no column 'label' for the labels; its columns are a, kind"),
            ("label,client", "1,x", "has neither a column 'path' nor columns of numbers"),
            ("a,label", ",1", "line 2 has no value in the column 'a', as have 59 others"),
            ("a,label", "1,", "line 2 has no value in the column 'label'"),
            ("a,label,client", "1,1,", "line 2 has no value in the column 'client'"),
            ("a,label,split", "1,1,val", "line 2 has 'val' in the column 'split', expected train or test"),
            ("a,label,split", "1,1,test", "there is no sample to train on"),
            ("a,label,client,split", "1,1,x,train\n1,1,y,test", "client 'y' has no sample to train on"),
            ("a,city,label", "1,Rome,1", "the column 'city' holds 'Rome' in line 2, and features are numbers"),
            ("a,label", "inf,1", "row 0 holds a value that is not a finite number"),
            ("a,label", "1,1,1", "is not a readable table: Length of header"),
            ("a,b,label", "1,1", "line 2 has no value in the column 'label'"),
            ("a,label", '"1,1', r"the column 'a' holds '1,1\\n1' in line 2"),
        ],
    )
    def test_bad_tables_get_one_sentence(self, head: str, row: str, says: str, tmp_path: Path, runs: Path) -> None:
        with pytest.raises(DataError, match=says):
            polyfed.run(OWN, data=table(tmp_path / "bad.csv", head, lambda at: row))
        assert not runs.exists()

    def test_missing_files(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match=r"nope.csv does not exist"):
            polyfed.run(OWN, data=tmp_path / "nope.csv")
        (tmp_path / "t.txt").write_text("a,label")
        with pytest.raises(DataError, match=r"t.txt is no .csv or .parquet file"):
            polyfed.run(OWN, data={"name": "manifest", "file": tmp_path / "t.txt"})

    def test_parquet(self, tmp_path: Path) -> None:
        pytest.importorskip("pyarrow", reason="skipped: pyarrow is not installed")
        import pandas

        x, y = points(60)
        frame = pandas.DataFrame(x, columns=list("abcde")).assign(label=y, client=np.arange(60) % 2)
        frame.to_parquet(tmp_path / "t.parquet")
        fed = polyfed.federation(OWN, data=tmp_path / "t.parquet")
        assert held(fed) == {"0": (24, 6), "1": (24, 6)}
        assert np.array_equal(fed.dataset.x, x)
        frame.assign(a=frame["a"].where(frame.index != 5)).to_parquet(tmp_path / "holes.parquet")
        with pytest.raises(DataError, match="row 5 has no value in the column 'a'"):
            polyfed.federation(OWN, data=tmp_path / "holes.parquet")

    def test_parquet_without_its_library(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import pandas

        def missing(*_: Any) -> None:
            raise ImportError("pyarrow")

        monkeypatch.setattr(pandas, "read_parquet", missing)
        (tmp_path / "t.parquet").write_bytes(b"PAR1")
        with pytest.raises(DataError, match=r"reading Parquet needs pyarrow: pip install 'polyfed\[parquet\]'"):
            polyfed.federation(OWN, data=tmp_path / "t.parquet")


class Moving(Dataset):
    """A data set whose items are changed at random whenever they are read."""

    def __init__(self, count: int, seed: int = 0):
        self.x, self.y = points(count, seed)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
        return self.x[at] + np.float32(0.3 * np.random.normal() + 0.3 * torch.rand(1).item()), int(self.y[at])


class TestRandomTransforms:
    def test_they_are_noticed(self, runs: Path) -> None:
        with pytest.raises(UsageError, match=r"client 'north' changes at random.*data.augment, or say data.live=true"):
            polyfed.run(OWN, data={"north": Moving(30), "south": a_set(30)})
        assert not runs.exists()

    def test_they_are_noticed_in_a_single_item(self) -> None:
        class Last(Moving):
            def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
                return super().__getitem__(at) if at == len(self) - 1 else (self.x[at], int(self.y[at]))

        with pytest.raises(UsageError, match="changes at random"):
            polyfed.run(OWN, data=[Last(30)])

    def test_read_once_or_anew(self) -> None:
        data = {"north": Moving(30), "south": Moving(20, 1)}
        once, again = (polyfed.run(OWN, data=data, **{"data.live": False}).fingerprint for _ in range(2))
        anew = polyfed.run(OWN, data=data, **{"data.live": True}).fingerprint
        assert once == again != anew

    @pytest.mark.parametrize("method", ["fedavg", "fedrep"])
    def test_the_same_bits_for_any_number_of_workers(self, method: str) -> None:
        """FedRep would cache the features of its body, which change with the samples."""
        keys = {**OWN, "method": method, "data.live": True}
        data = [Moving(30), Moving(20, 1)]
        prints = {polyfed.run(keys, data=data, **{"engine.workers": workers}).fingerprint for workers in (0, 1, 2)}
        assert len(prints) == 1

    @pytest.mark.slow
    def test_spawned_workers_are_given_the_data_sets(self) -> None:
        data = [Moving(30), Moving(20, 1)]
        keys = {**OWN, "data.live": True}
        here = polyfed.run(keys, data=data).fingerprint
        there = polyfed.run(keys, data=data, **{"engine.workers": 1, "engine.start": "spawn"}).fingerprint
        assert here == there

    @pytest.mark.extras
    def test_flower_has_no_way_to_them(self, runs: Path) -> None:
        pytest.importorskip("flwr")
        keys = {**{key: value for key, value in OWN.items() if not key.startswith("engine")}, "data.live": True}
        with pytest.raises(
            UsageError, match=r"data given as a Python object is in this process only: use engine=local"
        ):
            polyfed.run(keys, data=[Moving(30)], engine={"name": "flower"})

    def test_a_data_set_that_cannot_be_given_to_them(self) -> None:
        import threading

        data = Moving(30)
        data.lock = threading.Lock()  # type: ignore[attr-defined]
        keys = {**OWN, "data.live": True, "engine.workers": 1, "engine.start": "spawn"}
        with pytest.raises(
            UsageError, match=r"the data set of data.live: a spawned worker cannot be given this object"
        ):
            polyfed.run(keys, data=[data])

    def test_each_epoch_reads_something_else(self) -> None:
        seen: list[float] = []

        class Watched(Moving):
            def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
                x, y = super().__getitem__(at)
                if at == 0:
                    seen.append(float(x[0]))
                return x, y

        config = config_of(OWN, data=[Watched(30)], **{"data.live": True, "split.test": "none"})
        fed = work.federation_of(config)
        seen.clear()
        for key in ((0, 1, 0), (0, 2, 0), (0, 1, 0)):
            anew = reading_anew(config.data.reader(), fed, *key)
            anew(torch.tensor([0]))
            anew(torch.tensor([0, 3]))
        assert len(set(seen)) == 4
        assert seen[:2] == seen[4:]

    def test_pictures_are_brought_to_the_size_of_the_others(self) -> None:
        class Zoomed(Pictures):
            def __getitem__(self, at: int) -> tuple[Any, int]:
                picture, y = super().__getitem__(at)
                side = 8 + int(torch.randint(3, (1,)))
                return picture.resize((side, side)), y

        keys = {**OWN, "data.live": True, "data.size": 8}
        assert polyfed.run(keys, data=[Zoomed(30), Zoomed(20, seed=1)]).finished

    def test_what_cannot_be_live(self) -> None:
        class OfItsOwn(Moving):
            draw = np.random.default_rng(0)

            def __getitem__(self, at: int) -> tuple[np.ndarray, int]:
                return self.x[at] + np.float32(self.draw.normal()), int(self.y[at])

        with pytest.raises(UsageError, match="draws from a generator of its own, so no seed decides what is read"):
            polyfed.run(OWN, data=[OfItsOwn(30)], **{"data.live": True})
        with pytest.raises(UsageError, match="here there are arrays, which do not change"):
            polyfed.run(OWN, data=points(30), **{"data.live": True})
        with pytest.raises(UsageError, match=r"unknown key 'data.live' for data 'digits'"):
            polyfed.run(OWN, data="digits", **{"data.live": True})
