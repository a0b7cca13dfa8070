"""Finding runs, reading them, telling them apart; what is wrong with one is said in one sentence."""

import shutil
from pathlib import Path

import pytest
from hand_made import measured, write_run

import polyfed
from polyfed.errors import DataError, UsageError
from polyfed.report.runs import read, records, select


def test_a_run_a_folder_of_runs_and_several(tmp_path: Path) -> None:
    one, two = write_run(tmp_path / "in" / "one"), write_run(tmp_path / "in" / "two", "fedper", 3)
    (tmp_path / "in" / "notes.txt").write_text("mine")
    assert [run.path for run in select([one]).runs] == [one]
    assert [(run.row, run.seed) for run in select([tmp_path / "in"]).runs] == [("fedavg", 0), ("fedper", 3)]
    assert [run.path for run in select([two, one, two]).runs] == [two, one]


def test_a_comparison_gives_its_rows_and_settings(tmp_path: Path, tiny: dict) -> None:
    grid = {**tiny, "methods": ["fedprox"], "fedprox.mu": [0.1, 1.0], "seeds": [5], "split.alpha": [0.5, 1.0]}
    polyfed.compare(grid, out=tmp_path / "c", baseline="fedprox, mu=1.0")
    selection = select([tmp_path / "c"])
    assert selection.rows == ["fedprox, mu=0.1", "fedprox, mu=1.0"]
    assert list(selection.by_setting()) == ["split.alpha = 0.5", "split.alpha = 1.0"]
    assert {run.seed for run in selection.runs} == {5}
    assert selection.against == "fedprox, mu=1.0"
    assert selection.missing == 0
    shutil.rmtree(selection.runs[0].path)
    again = select([tmp_path / "c"])
    assert (again.missing, len(again.runs)) == (1, 3)


class TestTellingApart:
    def test_other_federations_are_settings(self, tmp_path: Path) -> None:
        one = write_run(tmp_path / "one", keys={"split": {"clients": 2}})
        two = write_run(tmp_path / "two", "fedper", keys={"split": {"clients": 7}})
        selection = select([one, two])
        assert {key: [r.row for r in runs] for key, runs in selection.by_setting().items()} == {
            "split.clients = 2": ["fedavg"],
            "split.clients = 7": ["fedper"],
        }

    def test_other_training_is_another_row(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / str(lr), keys={"train": {"lr": lr}}) for lr in (0.5, 0.25)]
        assert select(paths).rows == ["fedavg, train.lr=0.5", "fedavg, train.lr=0.25"]

    def test_only_who_differs_from_most_says_so(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / name, name) for name in ("fedavg", "fedper")]
        paths.append(write_run(tmp_path / "odd", "fedprox", keys={"train": {"lr": 0.5}}))
        assert select(paths).rows == ["fedavg", "fedper", "fedprox, train.lr=0.5"]

    def test_parameters_of_a_method(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / str(mu), keys={"method": {"name": "fedprox", "mu": mu}}) for mu in (0.1, 1.0)]
        paths.append(write_run(tmp_path / "other"))
        assert select(paths).rows == ["fedprox, mu=0.1", "fedprox, mu=1.0", "fedavg"]

    def test_the_same_run_twice_goes_by_its_directory(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / name) for name in ("here", "there")]
        assert select(paths).rows == ["fedavg, here", "fedavg, there"]

    def test_seeds_engines_and_tags_make_no_difference(self, tmp_path: Path) -> None:
        one = write_run(tmp_path / "one", keys={"engine": {"workers": 0}})
        two = write_run(tmp_path / "two", seed=1, keys={"engine": {"workers": 1}, "tag": "x", "eval": {"every": 2}})
        assert select([one, two]).rows == ["fedavg"]


class TestBaseline:
    def test_usual_ones(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / name, name) for name in ("ditto", "local", "fedavg")]
        assert select(paths).against == "fedavg"
        assert select(paths[:2]).against == "local"
        assert select(paths[:1]).against is None
        assert select(paths, "ditto").against == "ditto"

    def test_a_stranger_is_refused(self, tmp_path: Path) -> None:
        paths = [write_run(tmp_path / name, name) for name in ("ditto", "fedavg")]
        with pytest.raises(UsageError, match="baseline 'fedavgg' is not in the comparison; did you mean 'fedavg'"):
            select(paths, "fedavgg")


class TestWrong:
    def test_nothing_there(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there is no run at"):
            select([tmp_path / "nothing"])
        with pytest.raises(DataError, match="neither a run nor a comparison"):
            select([tmp_path])

    @pytest.mark.parametrize(
        ("file", "text", "sentence"),
        [
            ("config.yaml", "rounds: [", "is corrupt"),
            ("config.yaml", "rounds: 3\n", "config.yaml has no 'method'"),
            ("config.yaml", "{method: {name: a}, data: {}, split: {}, model: {}, seed: 1}", "has no 'rounds'"),
            ("summary.json", "{", "is corrupt: summary.json"),
            ("summary.json", "[1]", "summary.json is not what was written"),
        ],
    )
    def test_corrupt(self, tmp_path: Path, file: str, text: str, sentence: str) -> None:
        path = write_run(tmp_path / "run")
        (path / file).write_text(text)
        with pytest.raises(DataError, match=sentence):
            read(path)

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("round,measure\n1,global\n", "rounds.csv: it has no column 'accuracy'"),
            ("round,measure,accuracy,balanced,head,mid,tail,std,worst10,best10\n1,global,high,,,,,,,\n", "high"),
            ('"\n', "is corrupt: rounds.csv"),
        ],
    )
    def test_corrupt_records(self, tmp_path: Path, text: str, sentence: str) -> None:
        path = write_run(tmp_path / "run")
        (path / "rounds.csv").write_text(text)
        with pytest.raises(DataError, match=sentence):
            records(path, "rounds")

    def test_corrupt_pictures(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", arrays={"clusters-000001": [[0, 1]]})
        (path / "arrays" / "clusters-000001.npy").write_bytes(b"no array")
        with pytest.raises(DataError, match="is corrupt: arrays/clusters"):
            read(path).arrays("clusters")
        (path / "federation.json").write_text("[]")
        with pytest.raises(DataError, match=r"federation\.json is not what was written"):
            _ = read(path).federation


class TestRecords:
    def test_a_line_that_is_being_written_is_left_out(self, tmp_path: Path) -> None:
        path = write_run(tmp_path / "run", rounds=measured("global", 0.1, 0.2))
        with (path / "rounds.csv").open("a") as file:
            file.write("3,global,0.")
        assert records(path, "rounds")["accuracy"].tolist() == [0.1, 0.2]

    def test_none_yet(self, tmp_path: Path) -> None:
        found = records(write_run(tmp_path / "run"), "rounds")
        assert len(found) == 0
        assert "accuracy" in found

    def test_arrays_come_by_round(self, tmp_path: Path) -> None:
        run = read(write_run(tmp_path / "run", arrays={"a-000002": [2], "a-000010": [10], "ab-000001": [1]}))
        assert {number: array.tolist() for number, array in run.arrays("a").items()} == {2: [2], 10: [10]}
