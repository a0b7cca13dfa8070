"""The records: plain CSV that grows by appending and can be cut back."""

import numpy as np
import pandas as pd
import pytest

from polyfed.measure.recorder import FIELDS, Recorder

GROUPS = {"head": [0], "mid": [1], "tail": [2]}


@pytest.fixture
def recorder(tmp_path):
    return Recorder(tmp_path, GROUPS, {0: "zero", 1: 'the "first", of two'})


def tables():
    return {1: np.array([[3, 1, 0], [0, 0, 2], [0, 0, 0]]), 0: np.zeros((3, 3), int)}


def test_a_row_per_client_with_its_name_and_numbers(recorder, tmp_path):
    recorder.clients(4, "personal", tables())
    found = pd.read_csv(tmp_path / "clients.csv")
    assert list(found) == FIELDS["clients"]
    assert found["client"].tolist() == [0, 1]
    assert found["name"].tolist() == ["zero", 'the "first", of two']
    assert found["samples"].tolist() == [0, 6]
    assert np.isnan(found["accuracy"][0])
    assert found["accuracy"][1] == 0.5
    assert found["balanced"][1] == 0.375
    assert (found["head"][1], found["mid"][1]) == (0.75, 0.0)
    assert np.isnan(found["tail"][1])


def test_a_row_per_class_over_all_clients(recorder, tmp_path):
    recorder.clients(4, "personal", tables())
    found = pd.read_csv(tmp_path / "classes.csv")
    assert found["samples"].tolist() == [4, 2, 0]
    assert found["recall"].tolist()[:2] == [0.75, 0.0]
    assert np.isnan(found["recall"][2])
    assert set(found["measure"]) == {"personal"}


def test_no_clients_no_classes(recorder, tmp_path):
    recorder.clients(1, "heldout", {})
    assert not (tmp_path / "classes.csv").exists()


def test_one_header_however_often_it_is_appended_to(recorder, tmp_path):
    for round in (1, 2):
        recorder.append("rounds", [{"round": round, "measure": "global", "accuracy": 0.5}])
    assert (tmp_path / "rounds.csv").read_text().splitlines() == [
        ",".join(FIELDS["rounds"]),
        "1,global,0.5,,,,,,,,",
        "2,global,0.5,,,,,,,,",
    ]


def test_cut_goes_back_to_the_byte(recorder, tmp_path):
    recorder.append("rounds", [{"round": 1, "measure": "global"}])
    lengths = recorder.lengths()
    kept = (tmp_path / "rounds.csv").read_bytes()
    recorder.append("rounds", [{"round": 2, "measure": "global"}])
    recorder.clients(2, "personal", tables())
    recorder.sync()
    recorder.cut(lengths)
    assert (tmp_path / "rounds.csv").read_bytes() == kept
    assert (tmp_path / "clients.csv").read_bytes() == b"", "it was not there yet"
    recorder.clients(2, "personal", tables())
    assert (tmp_path / "clients.csv").read_text().startswith("round,measure,client")


def test_a_column_that_is_not_declared_is_refused(recorder):
    with pytest.raises(ValueError, match="best20"):
        recorder.append("rounds", [{"round": 1, "best20": 1.0}])


def test_a_table_of_an_earlier_version_keeps_its_columns(tmp_path):
    (tmp_path / "training.csv").write_text("round,attempt,client\n1,0,0\n")
    recorder = Recorder(tmp_path, {}, {})
    recorder.append("training", [{"round": 2, "attempt": 0, "client": 1, "attacker": 1}])
    assert (tmp_path / "training.csv").read_text() == "round,attempt,client\n1,0,0\n2,0,1\n"
