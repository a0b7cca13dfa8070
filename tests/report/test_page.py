"""The page as text: whole, closed to the network, safe against what stands in files; only sections with data."""

import base64
import hashlib
import json
import re
import shutil
import zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hand_made import measured, write_run

import polyfed
from polyfed.errors import UsageError
from polyfed.report.kinds import KINDS
from polyfed.report.packed import LETTERS, packed
from polyfed.report.page import SECTIONS, page, stylesheet, write_report
from polyfed.report.runs import select

NASTY = "<img src=x onerror=alert(1)>"


class Parsed(HTMLParser):
    """What a browser would see: elements, texts, scripts."""

    def __init__(self, text: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.scripts: list[tuple[dict[str, str], str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, {key: value or "" for key, value in attributes}))
        if tag == "script":
            self.scripts.append((self.elements[-1][1], ""))

    def handle_data(self, data):
        if self.cdata_elem == "script":
            attributes, before = self.scripts.pop()
            self.scripts.append((attributes, before + data))
        elif data.strip():
            self.texts.append(data)

    @property
    def ids(self) -> set[str]:
        return {attributes["id"] for _, attributes in self.elements if "id" in attributes}

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def whole(everything: Path) -> Parsed:
    return Parsed(page(select([everything])))


def test_every_section_and_figure_is_there(whole: Parsed) -> None:
    assert {title.replace(" ", "-").lower() for title in SECTIONS} <= whole.ids
    assert {f"figure-{kind}" for kind in KINDS} <= whole.ids
    assert {kind for kinds in SECTIONS.values() for kind in kinds} == set(KINDS)


def test_nothing_is_fetched(whole: Parsed) -> None:
    tags = {tag for tag, _ in whole.elements}
    assert not tags & {"link", "img", "iframe", "object", "embed", "video", "audio", "source", "base"}
    assert not [attributes for _, attributes in whole.elements if "src" in attributes]
    outside = [
        attributes["href"] for _, attributes in whole.elements if not attributes.get("href", "#").startswith("#")
    ]
    assert not outside
    assert not re.search(r"url\(|@import", stylesheet())


def test_only_our_scripts_may_run(whole: Parsed) -> None:
    (policy,) = [a["content"] for t, a in whole.elements if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    allowed = set(re.findall(r"'sha256-([^']+)'", policy))
    run = [text for attributes, text in whole.scripts if "type" not in attributes]
    assert len(run) == 1
    run.append(unpacked(whole, "library"))
    assert {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in run} == allowed
    assert "unsafe" not in policy.partition("script-src")[2]


def unpacked(whole: Parsed, name: str) -> str:
    """A text that lies in the page, as its script reads it: two letters are 13 bits of what is compressed."""
    ((attributes, text),) = [one for one in whole.scripts if one[0].get("id") == name]
    letters = {chr(code): at for at, code in enumerate(LETTERS.tolist())}
    values = [91 * letters[text[at]] + letters[text[at + 1]] for at in range(0, len(text), 2)]
    bits = np.unpackbits(np.array(values, ">u2").view(np.uint8).reshape(-1, 2), axis=1)[:, 3:].ravel()
    return zlib.decompress(np.packbits(bits).tobytes()[: int(attributes["data-bytes"])]).decode()


def test_figures_lie_in_the_page_as_data(whole: Parsed) -> None:
    figures = json.loads(unpacked(whole, "figures"))
    places = [int(attributes["data-figure"]) for _, attributes in whole.elements if "data-figure" in attributes]
    assert places == list(range(len(figures)))


@pytest.mark.parametrize("text", ["", "a", "ab", "<script>&amp;\\</script>", "süd " * 1000])
def test_packed_texts_read_back(text: str) -> None:
    letters, count = packed(text)
    assert not set(letters) & set("<&\\ \n")
    assert unpacked(Parsed(f'<script id="t" data-bytes="{count}">{letters}</script>'), "t") == text


def test_the_page_is_below_two_megabytes(everything: Path) -> None:
    """Of which the library is all but little, however many figures there are."""
    assert len(page(select([everything])).encode()) < 2_000_000


def test_what_is_wrong_with_the_files_is_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", rounds=measured("global", 0.5))
    (run / "rounds.csv").unlink(missing_ok=True)
    text = Parsed(page(select([run]))).text
    assert "To be read with care" in text
    assert "has no rounds.csv" in text


def test_the_table_has_the_finished_runs(whole: Parsed) -> None:
    assert "50.0 ± 0.0" in whole.texts
    assert "after finish" in whole.text
    assert whole.text.count("(unfinished)") >= 1  # fedper's line in the legend
    assert ", seed 0: 0 of 2 rounds begun (" in whole.text


def test_config_environment_and_commands(whole: Parsed, everything: Path) -> None:
    assert f"polyfed run {everything}/fedavg-s0/config.yaml --out again" in whole.texts
    assert "polyfed run 'a b'" in whole.texts  # from environment.json, as a shell takes it
    assert any(text.startswith("method:\n") for text in whole.texts)
    assert "FedAvg, seeds 0, 1" in whole.texts
    assert f"polyfed figure rounds {everything} --out rounds.pdf" in whole.texts
    assert "f" * 8 in whole.texts


def test_names_and_configs_are_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", keys={"tag": NASTY}, rounds=measured("global", 0.5))
    for name in ("config.yaml", "federation.json", "environment.json"):
        text = (run / name).read_text()
        for word in ("fedavg", "clinic", '"1"'):
            text = text.replace(word, f'"{NASTY}"' if word == '"1"' else NASTY)
        (run / name).write_text(text)
    text = page(select([run]))
    assert NASTY not in text
    assert "&lt;img src=x onerror=alert(1)&gt; on digits" in text
    assert not [tag for tag, _ in Parsed(text).elements if tag == "img"]


def test_what_stays_on_the_clients_is_shown(tmp_path: Path, whole: Parsed) -> None:
    path = write_run(tmp_path / "run", "ditto", rounds=measured("global", 0.5))
    assert "Kept on the clients" not in Parsed(page(select([path]))).text, "an earlier version did not write it"
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "keeps": {"personal_model": NASTY}}))
    seen = Parsed(page(select([path])))
    at = seen.texts.index("Kept on the clients, never sent")
    assert seen.texts[at + 1 : at + 4] == ["Ditto", "personal_model", NASTY]


def test_attacks_have_a_table_in_their_section(tmp_path: Path, whole: Parsed) -> None:
    assert "asr" not in whole.texts, "no summary of these runs tells of an attack"
    told = {"attack": "label-flip", "defence": NASTY, "acc": 0.5, "asr": 0.25}
    rows = [{"round": 2, "attackers": 1, "acc": 0.5, "asr": 0.25}]
    path = write_run(tmp_path / "run", rounds=measured("global", 0.5), threats=rows)
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "threats": told}))
    seen = Parsed(page(select([path])))
    at = [place for place, text in enumerate(seen.texts) if text == "Attack and defence"][-1]
    assert seen.texts[at + 1 : at + 7] == ["method", "acc", "asr", "FedAvg", "50.0", "25.0"]
    assert f"attack: label-flip; defence: {NASTY}." in seen.texts


def test_sections_without_data_are_absent(tmp_path: Path) -> None:
    seen = Parsed(page(select([write_run(tmp_path / "run", federation=False, rounds=measured("global", 0.5))])))
    assert {"figure-rounds", "accuracy-and-its-cost", "config"} <= seen.ids
    assert not {"the-data", "clients", "clusters", "uploads-that-did-not-count", "figure-bytes"} & seen.ids
    assert "The data" not in seen.texts


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=False, federation=False)
    (run / "environment.json").unlink()
    seen = Parsed(page(select([run])))
    assert "No run is finished: what follows is what there is so far." in seen.texts
    assert not [i for i in seen.ids if i.startswith("figure-")]


def test_other_environments_are_shown_apart(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    (runs[1] / "environment.json").write_text('{"torch": "2"}')
    texts = Parsed(page(select(runs))).texts
    assert {"Environment of one", "Environment of two"} <= set(texts)


def test_where_it_is_written(everything: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = shutil.copytree(everything, tmp_path / "runs")
    assert write_report([copy]) == copy / "report.html"
    monkeypatch.chdir(tmp_path)
    assert write_report([copy / "slow", copy / "fedavg-s0"]) == Path("report.html")
    assert write_report([copy / "slow"], tmp_path / "x.html").is_file()
    with pytest.raises(UsageError, match="cannot write to"):
        write_report([copy], tmp_path / "nowhere" / "x.html")


def test_the_same_runs_are_the_same_page(everything: Path) -> None:
    assert page(select([everything])) == page(select([everything]))


def test_of_a_real_comparison(tmp_path: Path, tiny: dict) -> None:
    keys = {**tiny, "methods": ["fedavg", "k-cluster"], "seeds": 2, "rounds": 2, "split.longtail": 5}
    polyfed.compare(keys, out=tmp_path / "c")
    seen = Parsed(page(select([tmp_path / "c"])))
    found = {i.removeprefix("figure-") for i in seen.ids if i.startswith("figure-")}
    assert found == set(KINDS) - {"scatter", "similarity", "uploads", "ranks", "attack", "weights", "pictures"}
    assert f"polyfed compare {tmp_path}/c/comparison.yaml --out again" in seen.texts
