"""`polyfed export` and `polyfed predict` on the command line: runs, exports, and what is said of mistakes."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

import masked
import polyfed


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny):
    return polyfed.run(tiny, method="fedper", out=tmp_path_factory.mktemp("use") / "run")


@pytest.fixture(scope="module")
def rows(run):
    return polyfed.federation(run.config).dataset.x[:7]


def lines(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_run_an_export_and_a_folder_of_pictures_give_the_same_answers(run, rows, tmp_path, cli):
    np.save(tmp_path / "x.npy", rows)
    asked = cli("predict", str(run.path), "--client", "2", "--input", str(tmp_path / "x.npy"))
    assert asked.code == 0, asked.err
    found = lines(asked.out)
    chances = run.client(2).probabilities(rows)
    assert [int(line["class"]) for line in found] == chances.argmax(1).tolist()
    assert [float(line["probability"]) for line in found] == pytest.approx(chances.max(1).tolist(), abs=1e-6)
    assert list(found[0]) == ["row", "class", "name", "probability"]

    shipped = tmp_path / "shipped"
    said = cli("export", str(run.path), "--client", "2", "--out", str(shipped), "--json")
    assert json.loads(said.out) == {"export": str(shipped), "format": "safetensors"}
    again = cli("predict", str(shipped), "--input", str(tmp_path / "x.npy"), "--out", str(tmp_path / "a.csv"))
    assert (again.code, again.out) == (0, "")
    assert (tmp_path / "a.csv").read_text() == asked.out

    (tmp_path / "pictures").mkdir()
    for number, row in enumerate(rows):
        Image.fromarray(row[..., 0]).save(tmp_path / "pictures" / f"{number}.png")
    (tmp_path / "pictures" / "notes.txt").write_text("")
    seen = cli("predict", str(shipped), "--input", str(tmp_path / "pictures"))
    answers = [(line["file"], line["class"], line["probability"]) for line in lines(seen.out)]
    assert answers == [(f"{line['row']}.png", line["class"], line["probability"]) for line in found]
    assert "1 files in" in seen.err
    assert cli("predict", str(shipped), "--input", str(tmp_path / "pictures"), "--quiet").err == ""


def test_answers_as_json(run, rows, tmp_path, cli):
    np.savetxt(tmp_path / "x.csv", rows.reshape(7, -1), delimiter=",", fmt="%d")
    said = json.loads(cli("predict", str(run.path), "--client", "0", "--input", str(tmp_path / "x.csv"), "--json").out)
    assert [line["class"] for line in said] == run.client(0).predict(rows).tolist()


def test_class_names_with_commas_stay_one_cell(tmp_path, cli):
    x, y = np.random.default_rng(0).random((60, 4), np.float32), np.arange(60) % 3
    for client in ("a", "b"):
        (tmp_path / "data" / client).mkdir(parents=True)
        np.savez(tmp_path / "data" / client / "x.npz", x=x, y=y)
    np.save(tmp_path / "x.npy", x[:2])
    keys = {"data.name": "folder", "data.root": str(tmp_path / "data"), "data.classes": ["left, up", "right", "none"]}
    polyfed.run(keys, {"split.partition": "users", "rounds": 1, "engine.workers": 0}, out=tmp_path / "run")
    said = cli("predict", str(tmp_path / "run"), "--global", "--input", str(tmp_path / "x.npy"))
    assert said.code == 0, said.err
    assert {line["name"] for line in lines(said.out)} <= {"left, up", "right", "none"}


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["predict", "RUN", "--input", "X"], 2, "say whose model: --client NAME or --global"),
        (["predict", "RUN", "--client", "1", "--global", "--input", "X"], 2, "say whose model"),
        (["predict", "RUN", "--client", "9", "--input", "X"], 2, "there is no client 9"),
        (["predict", "RUN", "--global", "--input", "X"], 2, "has no global model"),
        (["predict", "RUN", "--client", "1", "--input", "nowhere.npy"], 3, "nowhere.npy"),
        (["predict", "RUN", "--client", "1", "--input", "X", "--out", "no/where.csv"], 2, "cannot write to"),
        (["predict", "EXPORT", "--client", "1", "--input", "X"], 2, "is one exported model: leave out --client"),
        (["predict", "nowhere", "--client", "1", "--input", "X"], 3, "there is no folder 'nowhere'"),
        (["predict", "EMPTY", "--client", "1", "--input", "X"], 3, "is not a run"),
        (["predict", "EMPTY", "--site", "a", "--input", "X"], 3, "is not a site named 'a'"),
        (["export", "RUN"], 2, "say whose model"),
        (["export", "RUN", "--client", "1", "--format", "pickle"], 2, "exported as safetensors, onnx, torch-export"),
        (["export", "EXPORT", "--client", "1"], 3, "is not a run"),
    ],
)
def test_mistakes_are_one_sentence(run, rows, tmp_path, cli, words, code, sentence):
    np.save(tmp_path / "x.npy", rows)
    (tmp_path / "empty").mkdir()
    if "EXPORT" in words:
        run.export("safetensors", 1, tmp_path / "out")
    places = {"RUN": run.path, "X": tmp_path / "x.npy", "EMPTY": tmp_path / "empty", "EXPORT": tmp_path / "out"}
    said = cli(*(str(places.get(word, word)) for word in words))
    assert said.code == code, said.err
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_the_figure_of_a_split_of_masks_counts_pixels_of_named_classes(tmp_path, cli):
    root = masked.folders(tmp_path / "streets", ("north", "south"))
    words = ["split", "data=folder", f"data.root={root}", "data.classes=[sky, tree, road]"]
    said = cli(*words, "--figure", str(tmp_path / "split.png"))
    assert said.code == 0, said.err
    with (tmp_path / "split.csv").open() as file:
        table = list(csv.DictReader(file))
    assert {row["class"] for row in table} == {"sky", "tree", "road"}
    shown = sum(int(row["pixels"]) for row in table)
    assert shown % (masked.WIDE * (masked.HIGH - 1)) == 0, "all pixels with a label of some pictures"
    assert shown > 0
