"""The card says what a model is, takes and achieved, each number with what it is, and nothing of this machine."""

import json

import pytest

import polyfed
from polyfed.errors import Interrupted


@pytest.fixture(scope="module")
def ecl(tmp_path_factory, tiny):
    keys = {"method": "ecl", "method.phase2_epochs": 1, "split.alpha": 0.1, "split.heldout": 1, "tag": "first try"}
    return polyfed.run(tiny, keys, out=tmp_path_factory.mktemp("card") / "run")


def text_of(result, client, out) -> str:
    return (result.export("safetensors", client, out) / "card.md").read_text()


def test_numbers_stand_with_what_they_are(ecl, tmp_path):
    text = text_of(ecl, 1, tmp_path / "out")
    final = ecl.clients.query("client == 1 and measure == 'personal_final'").iloc[0]
    line = next(line for line in text.splitlines() if line.startswith("| personal_final"))
    assert f"{100 * final['accuracy']:.1f} %" in line
    assert line.endswith("after finish |")
    before = next(line for line in text.splitlines() if line.startswith("| personal |"))
    assert before.endswith("before finish |")
    whole = next(line for line in text.splitlines() if line.startswith("| global |"))
    assert f"{100 * ecl['global.accuracy']:.1f} %" in whole
    for words in (ecl.fingerprint, "method.name: ecl", "tag: first try", "uint8 [N, 8, 8, 1]", "after round 1 of 1"):
        assert words in text
    assert str(tmp_path.parent) not in text


def test_masked_classes_are_named(ecl, tmp_path):
    held = json.loads((ecl.path / "summary.json").read_text())["clients"]
    assert held == 4
    counts = polyfed.federation(ecl.config).clients[1].counts
    never = ", ".join(str(c) for c in (counts == 0).nonzero().flatten().tolist())
    assert f"holds no sample of them: {never}." in text_of(ecl, 1, tmp_path / "out")


def test_a_client_that_never_trained_and_the_global_model(ecl, tmp_path):
    heldout = polyfed.federation(ecl.config).heldout[0]
    assert "which never trained" in text_of(ecl, heldout, tmp_path / "a")
    whole = text_of(ecl, None, tmp_path / "b")
    assert whole.startswith("# The global model")
    assert "| global |" in whole
    assert "personal" not in whole.partition("## How")[0]


def test_a_run_that_is_not_finished_says_so(tmp_path, tiny):
    class Stop:
        def round(self, done, rounds, numbers):
            raise Interrupted("enough")

        def say(self, text): ...

    with pytest.raises(Interrupted):
        polyfed.run(tiny, rounds=2, progress=Stop(), out=tmp_path / "run")
    text = text_of(polyfed.load(tmp_path / "run"), 0, tmp_path / "out")
    assert "after round 1 of 2, before finish: the run is not finished" in text
    assert "fingerprint: none, the run is not finished" in text
