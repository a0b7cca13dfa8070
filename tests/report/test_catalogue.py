"""What there is to choose from: parameters as they are declared, in words and as plain data."""

import json
from pathlib import Path
from typing import Literal

import pytest

from polyfed.comparison.rows import named_rows
from polyfed.data.sources.base import sources
from polyfed.errors import UsageError
from polyfed.methods.base import EDGES, FAMILIES, Method, OnTop, methods
from polyfed.registry import Spec, param
from polyfed.report.catalogue import (
    data_entries,
    data_text,
    markdown,
    method_entries,
    method_text,
    methods_text,
    parameters,
    row_entries,
    rows_text,
)


class Garden(Spec):
    """Has one of everything."""

    root: Path = param(..., "where it is")
    depth: float = param(0.5, "of the holes", gt=0, le=2)
    tool: Literal["spade", "rake"] = param("rake", "in hand")
    rows: int | None = param(None, "how many", ge=1)
    sizes: tuple[int, ...] = param((1, 2), "of the beds")


def test_parameters() -> None:
    found = {entry["name"]: entry for entry in parameters(Garden)}
    assert list(found) == ["root", "depth", "tool", "rows", "sizes"]
    assert found["depth"] == {
        "name": "depth",
        "type": "float",
        "default": 0.5,
        "required": False,
        "range": {"gt": 0, "le": 2},
        "what": "of the holes",
    }
    assert (found["root"]["required"], found["root"]["default"]) == (True, None)
    assert found["tool"]["type"] == "Literal['spade', 'rake']"
    assert found["rows"]["range"] == {"ge": 1}
    json.dumps(list(found.values()))


@pytest.mark.parametrize("name", methods.names())
def test_every_method_is_described(name: str) -> None:
    (entry,) = method_entries(name)
    text = method_text(entry)
    paper = ", ".join(said for said in (entry["paper"], entry["title"]) if said)
    assert text.startswith(f"{name}: {entry['what']}\npaper: {paper}\nfamily: {entry['family']}\n")
    assert all(f"  method.{p['name']} " in text for p in entry["params"])
    assert all(p["what"] for p in entry["params"]), "a parameter says what it is for"
    assert all(f"  {kept}: {what}\n" in text for kept, what in entry["keeps"].items())
    assert all(f"  {field}: " in text for way in ("down", "up") for field in entry["wire"][way])
    json.dumps(entry)


def test_method_of_nothing() -> None:
    text = method_text(method_entries("local")[0])
    assert "parameters:\n  none" in text
    assert "goes down:\n  nothing" in text
    assert "goes up:\n  nothing" in text


def test_what_stays_at_home_is_said() -> None:
    assert "never sent:\n  personal_model: the client's full personal model v_k\n" in method_text(
        *method_entries("ditto")
    )
    assert "never sent:\n  personal: the slice 'head' of the model\n" in method_text(*method_entries("fedper"))
    assert "never sent:\n  nothing\n" in method_text(*method_entries("fedavg"))


def test_only_named_methods_are_listed() -> None:
    class Hidden(Method):
        """A user's."""

    methods.hold(Hidden)
    assert Hidden.name not in {entry["name"] for entry in method_entries(None)}
    lines = methods_text(method_entries(None)).splitlines()
    assert len([line for line in lines if line.startswith("  ")]) == len(method_entries(None))


def test_method_that_must_be_given_something() -> None:
    class Above(OnTop):
        """Needs a base."""

    with pytest.raises(UsageError, match=r"'method\.base' must be given"):
        method_entries(methods.hold(Above).name)


@pytest.mark.parametrize("name", sources.names())
def test_every_source_is_described(name: str) -> None:
    (entry,) = data_entries(name)
    text = data_text([entry])
    assert text.startswith(f"{name}  {entry['what']}")
    assert all(f"  data.{p['name']} " in text for p in entry["params"])
    json.dumps(entry)


def test_each_method_says_what_a_client_that_never_trained_gets() -> None:
    entries = [entry for entry in method_entries(None) if "tests" not in entry["name"]]
    for entry in entries:
        assert f"a client that never trained gets {entry['newcomer']}" in method_text(entry)
        if not entry["global"]:  # there is no global model to get
            assert entry["newcomer"] != Method.newcomer, entry["name"]


# ---- by family


PAGE = Path(__file__).parents[2] / "docs" / "catalogue.md"


def test_methods_stand_under_their_family() -> None:
    families = [entry["family"] for entry in method_entries(None)]
    assert families == sorted(families, key=FAMILIES.index)
    assert set(families) == set(FAMILIES)
    by_name = {entry["name"]: entry["family"] for entry in method_entries(None)}
    expected = {
        "fedavg": "global",
        "local": "personal",
        "k-cluster": "clustered",
        "ecl": "on top",
        "creff": "long tail",
    }
    assert by_name.items() >= expected.items()
    headings = [line for line in methods_text(method_entries(None)).splitlines() if line.endswith(":")]
    assert headings == [f"{family}:" for family in FAMILIES]


def test_a_method_that_says_nothing_is_sorted_by_who_answers() -> None:
    class Plain(Method):
        """FedAvg."""

    class Tuned(Method):
        """Answers for itself."""

        def finish(self, client: object) -> None:
            """Something."""

    assert Plain().sorted_under == "global"
    assert Tuned().sorted_under == "personal"


@pytest.mark.parametrize("name", [n for n in methods.names() if ":" not in n])
def test_every_method_names_its_paper_whole(name: str) -> None:
    (entry,) = method_entries(name)
    assert entry["family"] in FAMILIES
    assert entry["cost"]
    assert entry["paper"] == "control" or entry["title"], "say title= beside paper= in @method(...)"
    assert set(entry["edges"]) == set(EDGES)


def test_edges_of_a_class_go_over_those_of_its_bases() -> None:
    edges = {entry["name"]: entry["edges"] for entry in method_entries(None)}
    assert edges["fedavg"] == EDGES
    assert edges["fedbn"] == EDGES | {"no BatchNorm": "it is FedAvg"}
    assert edges["sca-rs"]["one class"] == edges["fedrs"]["one class"] != EDGES["one class"]


def test_sizes_are_read_off_the_wire() -> None:
    sizes = {entry["name"]: (entry["sizes"]["down"], entry["sizes"]["up"]) for entry in method_entries(None)}
    assert sizes["fedavg"] == ("P", "P")
    assert sizes["scaffold"] == ("2 P", "2 P")
    assert sizes["local"] == ("nothing", "nothing")
    assert sizes["fedper"] == ("P[not head]", "P[not head]")
    assert sizes["k-cluster"] == ("2 shared, 2 shared integers", "P, a number")
    assert sizes["creff"] == ("P + P[head]", "P + classes C h, classes integers")
    assert sizes["mupfl"][0] == "P; at times matched 100 d, matched integers"


def test_the_page_is_what_is_printed() -> None:
    found = markdown(method_entries(None), row_entries(named_rows().values()))
    assert found == PAGE.read_text(), "write it again: polyfed methods --markdown > docs/catalogue.md"


def test_the_page_says_what_is_unusual_only() -> None:
    page = PAGE.read_text()
    assert "| no BatchNorm: it is FedAvg |" in page
    assert page.count(EDGES["one sample"]) == 1


def test_rows_are_listed_with_the_words_that_make_them() -> None:
    entries = {entry["name"]: entry for entry in row_entries(named_rows().values())}
    assert entries["ecl+fedprox"]["keys"] == "method=ecl method.base=fedprox"
    assert entries["fedper-averaged"]["keys"] == "method=fedper eval.oracle=true"
    text = rows_text(list(entries.values()))
    assert "ecl+fedprox: ECL after FedProx\n  ECL, Table 4: personal_classes.accuracy\n  method=ecl" in text
    json.dumps(list(entries.values()))
