"""Texts and tables with categories, from their files to a model that answers for new ones."""

import json

import numpy as np
import pytest

import polyfed
from polyfed.data.inputs import read_inputs
from polyfed.data.sources.arrays import Arrays
from polyfed.data.sources.base import load_cached, sources
from polyfed.data.tokens import Tokenizer, hashed
from polyfed.errors import DataError, UsageError
from polyfed.use.export import read

KEYS = {"rounds": 2, "train.lr": 0.1, "engine.workers": 0, "model.width": 0.25}
WORDS = {"good": ["fine", "great", "kind"], "bad": ["poor", "rude", "late"]}


def texts(folder, ending=".csv", rows=60):
    draw = np.random.default_rng(3)
    made = []
    for at in range(rows):
        label = "good" if draw.random() < 0.5 else "bad"
        words = [*draw.choice(WORDS[label], 3), *draw.choice(["the", "food", "was"], 2)]
        made.append({"text": " ".join(words), "label": label, "client": f"c{at % 3}"})
    file = folder / f"texts{ending}"
    if ending == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in made))
    else:
        file.write_text("text,label,client\n" + "".join(f"{r['text']},{r['label']},{r['client']}\n" for r in made))
    return file


def test_words_have_the_same_ids_everywhere():
    assert [hashed(word, 4096) for word in ("the", "food")] == [2506, 143]
    x, notes = Tokenizer(length=3).rows(["The food was  GOOD", "", "the"])
    assert x.dtype == np.int64
    assert x[0, 0] == x[2, 0] == hashed("the", 4096) > 0
    assert notes == {"texts_cut": 1, "texts_empty": 1}
    assert Tokenizer(by="bytes", length=4).rows(["aé"])[0].tolist() == [[98, 196, 170, 0]]
    known = Tokenizer(vocabulary=("food", "the"), length=3)
    assert known.rows(["the odd food"])[0].tolist() == [[3, 1, 2]]
    assert known.kinds == 4


@pytest.mark.parametrize("ending", [".csv", ".jsonl"])
def test_a_table_of_texts_is_learnt_and_answers_new_ones(tmp_path, ending, cli):
    file = texts(tmp_path, ending)
    data = {"data.name": "text", "data.file": str(file), "data.length": 6, "data.ids": 64}
    result = polyfed.run(
        KEYS, data, {"model.name": "text-bag", "method.name": "fedper"}, rounds=20, out=tmp_path / "run"
    )
    assert result["personal.accuracy"] > 0.8
    assert result.config["model"]["ids"] == 64  # the source's, without being said twice
    predictor = result.client(0)
    (tmp_path / "new.txt").write_text("the food was fine great kind\nlate rude poor\n")
    new = read_inputs(tmp_path / "new.txt", predictor.preparation)
    assert new.x.shape == (2, 6)
    assert new.notes == {}
    (tmp_path / "long.txt").write_text("the food was fine great kind too\n\nlate\n")
    assert read_inputs(tmp_path / "long.txt", predictor.preparation).notes == {"texts_cut": 1, "texts_empty": 1}
    said = cli("predict", str(tmp_path / "run"), "--client", "0", "--input", str(tmp_path / "long.txt"))
    assert said.err.splitlines() == [
        f"polyfed: 1 texts in '{tmp_path}/long.txt' are longer than the model's texts and are cut",
        f"polyfed: 1 texts in '{tmp_path}/long.txt' hold no word",
    ]
    assert len(said.out.splitlines()) == 4
    out = result.export("safetensors", 0, tmp_path / "export")
    assert np.allclose(read(out).logits(new.x), predictor.logits(new.x), atol=1e-5)
    with pytest.raises(UsageError, match=r"no token id.*from 0 to 63"):
        predictor.logits(np.full((1, 6), 64))


def test_a_model_that_eats_something_else_is_refused(tmp_path):
    tokens = Arrays.hold(np.arange(40).reshape(10, 4), np.arange(10) % 2, tokens=True)
    for data, model, told in (
        (tokens, {"model.name": "mlp"}, "eats numbers, and arrays holds tokens: set model.name to text-bag"),
        (tokens, {"model.name": "text-bag", "model.ids": 9}, "token id 39.*set model.ids=40"),
        ("digits", {"model.name": "text-bag"}, "eats tokens, and digits holds numbers.*data.tokens=true"),
    ):
        with pytest.raises(UsageError, match=told):
            polyfed.run(KEYS, {"split.clients": 2}, model, data=data, out=tmp_path / "run")
    with pytest.raises(DataError, match="whole numbers"):
        load_cached(Arrays.hold(np.full((4, 2), 0.5), [0, 1, 0, 1], tokens=True))


def table(folder):
    lines = ["colour,size,age,label,client"]
    draw = np.random.default_rng(0)
    for at in range(60):
        colour = ["red", "blue", "pink"][at % 3]
        lines.append(f"{colour},{'SL'[at % 2]},{'' if at == 5 else draw.integers(20, 60)},{at % 3 == 0:d},c{at % 2}")
    file = folder / "table.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_categories_are_ids_and_what_is_not_declared_is_counted(tmp_path, cli):
    file = table(tmp_path)
    section = {"name": "manifest", "file": str(file), "normalise": True, "missing": "mean"}
    section["categories"] = {"colour": ["red", "blue"], "size": ["S", "L"]}
    data = load_cached(sources.build(section, "data"))
    assert data.notes == {"unseen_categories": 20, "missing_values": 1}
    assert data.x[:3, :2].tolist() == [[1, 1], [2, 2], [0, 1]]
    turned = {**section, "categories": dict(reversed(section["categories"].items()))}
    assert load_cached(sources.build(turned, "data")).x[:3, :2].tolist() == [[1, 1], [2, 2], [1, 0]]
    whole = polyfed.federation(data=section)
    held = np.concatenate(whole.split.train)
    assert 0 < len(held) < len(data.x)
    assert whole.dataset.mean[:2] == (0.0, 0.0)
    assert whole.dataset.std[:2] == (1.0, 1.0)
    assert whole.dataset.mean[2] == pytest.approx(np.nanmean(data.x[held, 2]), rel=1e-5)  # no test row
    result = polyfed.run(KEYS, {"model.name": "table-mlp"}, data=section, rounds=30, out=tmp_path / "run")
    assert result.config["model"]["categories"] == [2, 2]
    assert result["personal.accuracy"] > 0.8
    predictor = result.client(0)
    (tmp_path / "new.csv").write_text("size,colour,age\nL,red,30\nS,green,50\n")
    new = read_inputs(tmp_path / "new.csv", predictor.preparation)
    assert new.x.tolist() == [[1, 2, 30], [0, 1, 50]]
    assert new.notes == {"unseen_categories": 1}
    said = cli("predict", str(tmp_path / "run"), "--client", "0", "--input", str(tmp_path / "new.csv"))
    assert (
        said.err == f"polyfed: 1 words in '{tmp_path}/new.csv' are no category the model knows, and count as unknown\n"
    )
    (tmp_path / "gaps.csv").write_text("size,colour,age\nL,,30\n,red,50\n")
    words = ["predict", str(tmp_path / "run"), "--client", "0", "--input", str(tmp_path / "gaps.csv")]
    assert cli(*words).err == f"polyfed: 2 categories are missing in '{tmp_path}/gaps.csv', and count as unknown\n"
    assert cli(*words, "--quiet").err == ""
    assert len(said.out.splitlines()) == 3
    assert predictor.predict(new.x)[0] == 1
    out = result.export("safetensors", 0, tmp_path / "export")  # though the row of a missing age is among the first
    assert np.allclose(read(out).logits(new.x), predictor.logits(new.x), atol=1e-5)
    with pytest.raises(DataError, match="line 7 has no value in the column 'age'"):
        load_cached(sources.build({**section, "missing": "refuse"}, "data"))
    with pytest.raises(UsageError, match=r"set model.name to table-mlp"):
        polyfed.run(KEYS, {"model.name": "mlp"}, data=section, out=tmp_path / "other")


@pytest.mark.slow
def test_workers_read_a_table_with_gaps_alike(tmp_path):
    section = {"name": "manifest", "file": str(table(tmp_path)), "normalise": True, "missing": "mean"}
    section["categories"] = {"colour": ["red", "blue"], "size": ["S", "L"]}
    keys = {"data": section, "model.name": "table-mlp", "method.name": "ditto"}
    one, two = (polyfed.run(KEYS, keys, {"engine.workers": n}, out=tmp_path / str(n)) for n in (0, 2))
    assert two.fingerprint == one.fingerprint
    assert two["personal"] == one["personal"]
