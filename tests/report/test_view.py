"""The page over a directory: what it lists, what it refuses, and that nothing ends it."""

import contextlib
import http.client
import json
import os
import shutil
import socket
import threading
import time
from contextlib import contextmanager
from urllib.parse import quote

import pytest

import polyfed
from polyfed.config import read_config, write_yaml
from polyfed.engine.run_folder import RunFolder
from polyfed.errors import DataError, UsageError
from polyfed.report.view.listing import Listing
from polyfed.report.view.server import View


@pytest.fixture(scope="module")
def made(tmp_path_factory, tiny):
    """A run that was stopped, a finished comparison, a corrupt run, an export and foreign files."""
    root = tmp_path_factory.mktemp("view") / "runs"
    polyfed.run(tiny, method="fedper", tag="first", out=root / "done")
    keys = {**tiny, "methods": ["fedavg", "local"], "seeds": 2, "tag": "pair"}
    polyfed.compare(keys, out=root / "deep" / "compared")
    shutil.copytree(root / "done", root / "stopped")
    (root / "stopped" / "summary.json").unlink()
    shutil.copytree(root / "done", root / "corrupt")
    (root / "corrupt" / "config.yaml").write_text("rounds: [")
    polyfed.load(root / "done").export("safetensors", 0, root / "shipped")
    (root / "notes.txt").write_text("mine")
    (root / "report.html").write_text("of polyfed report")
    (root / ".hidden").write_text("")
    return root


@pytest.fixture
def root(made, tmp_path):
    """A copy that a test may change."""
    return shutil.copytree(made, tmp_path / "runs", symlinks=True)


@contextmanager
def serving(root, **options):
    with View(root, "127.0.0.1", 0, **options) as view:
        thread = threading.Thread(target=view.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield view
        finally:
            view.shutdown()
            thread.join()


def ask(view, path, method="GET", host=None):
    """Status, headers and body of one request, its path sent as it is."""
    connection = http.client.HTTPConnection(*view.server_address[:2], timeout=60)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{view.server_address[1]}")
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


# ---- what is there


def test_runs_comparisons_and_by_name_what_is_neither(made):
    with RunFolder(made / "stopped").locked():
        now = Listing(made.resolve()).now()
    runs = {run["path"]: run for run in now["runs"]}
    assert {path: run["state"] for path, run in runs.items()} == {
        "done": "finished",
        "stopped": "live",
        "deep/compared/fedavg-s0": "finished",
        "deep/compared/fedavg-s1": "finished",
        "deep/compared/local-s0": "finished",
        "deep/compared/local-s1": "finished",
    }
    done, summary = runs["done"], polyfed.load(made / "done").summary
    assert (done["method"], done["data"], done["tag"], done["round"]) == ("fedper", "digits", "first", 1)
    assert (done["personal"], done["when"]) == (summary["personal"]["accuracy"], "after finish")
    assert done["curves"]["personal"] == [[1, summary["personal_before"]["accuracy"]]]
    assert done["global"] is None, "fedper has no global model"
    assert runs["stopped"]["when"] == "before finish"
    (compared,) = now["comparisons"]
    assert (compared["methods"], compared["cells"], compared["finished"]) == (["fedavg", "local"], 4, 4)
    assert (compared["state"], compared["data"], compared["tag"]) == ("finished", "digits", "pair")
    named = {one["path"]: one["why"] for one in now["named"]}
    assert set(named) == {"corrupt", "notes.txt", "shipped"}
    assert "config.yaml' is not valid YAML" in named["corrupt"]
    assert str(made) not in json.dumps(now)


def test_a_run_is_live_while_its_lock_is_held_and_followed_as_it_grows(root):
    listing = Listing(root.resolve())

    def stopped():
        return next(run for run in listing.now()["runs"] if run["path"] == "stopped")

    assert stopped()["state"] == "stopped"
    with RunFolder(root / "stopped").locked():
        assert stopped()["state"] == "live"
        line = (root / "stopped" / "rounds.csv").read_text().splitlines()[-1].split(",")
        with (root / "stopped" / "rounds.csv").open("a") as file:
            file.write(",".join(["2", "personal", "0.75", *line[3:]]) + "\n3,pers")  # a row that is being written
        assert stopped()["personal"] == 0.75
    assert stopped()["state"] == "stopped"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.yaml", b"\xff\xfe"),
        ("config.yaml", b"[]"),
        ("config.yaml", b"method: fedavg"),
        ("summary.json", b"{"),
        ("summary.json", b"[]"),
        ("rounds.csv", b"what\nis,this\n"),
        ("spent.csv", b"\xff\n"),
    ],
)
def test_a_damaged_run_is_named_and_the_others_stay(root, name, content):
    (root / "done" / name).write_bytes(content)
    now = Listing(root.resolve()).now()
    assert "done" in {one["path"] for one in now["named"]}
    assert "stopped" in {one["path"] for one in now["runs"]}


DAMAGES = {
    "nan": lambda run: _summary(run, personal={"accuracy": float("nan")}),
    "infinite": lambda run: _summary(run, personal={"accuracy": float("inf")}),
    "words for numbers": lambda run: _summary(run, personal={"accuracy": "much"}, seed="x"),
    "another kind": lambda run: _summary(run, personal=[1], bytes=None),
    "curves of infinity": lambda run: _cell(run / "rounds.csv", "inf"),
    "curves of words": lambda run: _cell(run / "rounds.csv", "much"),
    "no round": lambda run: _cell(run / "spent.csv", "", 0),
    "a mapping for a name": lambda run: _config(run, "data: {name: {a: 1}}"),
    "a tag that is a number": lambda run: _config(run, "tag: .nan"),
    "a rounds that is no number": lambda run: _config(run, "rounds: .inf"),
    "links in a circle": lambda run: [(run / "x").symlink_to(run / "y"), (run / "y").symlink_to(run / "x")],
    "a config that is a circle": lambda run: _link(run / "config.yaml", run / "config.yaml"),
    "a summary that is a circle": lambda run: _link(run / "summary.json", run / "summary.json"),
    "a pipe": lambda run: [(run / "rounds.csv").unlink(), os.mkfifo(run / "rounds.csv")],
    "a bomb": lambda run: (run / "config.yaml").write_bytes(BOMB),
    "deep": lambda run: (run / "summary.json").write_text("[" * 100_000),
}
BOMB = b"a: &a [1,1,1,1,1,1,1,1,1]\n" + b"".join(b"%c: &%c [%s]\n" % (n, n, b"*%c," % (n - 1) * 9) for n in b"bcdefgh")


def _summary(run, **changes):
    found = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(found | changes))


def _cell(file, value, column=2):
    *lines, last = file.read_text().splitlines()
    cells = last.split(",")
    cells[column] = value
    file.write_text("\n".join([*lines, ",".join(cells)]) + "\n")


def _config(run, line):
    key = line.partition(":")[0]
    tree = read_config(run / "config.yaml")
    tree.pop(key)
    (run / "config.yaml").write_text(write_yaml(tree) + line + "\n")


def _link(path, target):
    path.unlink()
    path.symlink_to(target)


@pytest.mark.parametrize("damage", DAMAGES)
def test_no_damage_hides_the_others(root, damage):
    """Whatever a run holds, it is listed or named, and its report is a sentence or a page."""
    DAMAGES[damage](root / "done")
    with serving(root) as view:
        status, _, body = ask(view, "/runs.json")
        found = json.loads(body, parse_constant=pytest.fail)
        assert status == 200
        assert {run["path"] for run in found["runs"]} >= {"stopped", *(f"deep/compared/{c}" for c in CELLS)}
        assert "done" in {one["path"] for one in (*found["runs"], *found["named"])}
        assert ask(view, "/report?path=done")[0] in (200, 404)


CELLS = [f"{method}-s{seed}" for method in ("fedavg", "local") for seed in (0, 1)]


def test_a_path_that_is_too_long_is_not_found(made):
    with serving(made) as view:
        for word in ("x" * 5000, "/".join(["x" * 200] * 30)):
            assert ask(view, f"/report?path={word}")[0] == 404
        assert ask(view, f"/{'x' * 60_000}")[0] == 404


def test_who_sends_slowly_is_hung_up_on(made, monkeypatch):
    monkeypatch.setattr(View, "patience", 0.3)
    with serving(made) as view, socket.create_connection(view.server_address[:2], timeout=30) as slow:
        began = time.monotonic()
        slow.sendall(b"GET / HTTP/1.1\r\n")
        with contextlib.suppress(OSError):
            while time.monotonic() < began + 20:
                slow.sendall(b"X: y\r\n")  # one line after the other, each in time
                time.sleep(0.05)
        assert time.monotonic() < began + 20
        assert ask(view, "/runs.json")[0] == 200


def test_there_are_only_so_many_connections(made, monkeypatch):
    monkeypatch.setattr(View, "most", 3)
    with serving(made) as view, contextlib.ExitStack() as open_ones:
        for _ in range(3):
            open_ones.enter_context(socket.create_connection(view.server_address[:2], timeout=30))
        until(lambda: len(view.awaited) == 3)
        before = threading.active_count()
        assert ask(view, "/runs.json")[0] == 503
        assert threading.active_count() == before
        open_ones.close()
        until(lambda: not view.awaited)
        until(lambda: ask(view, "/runs.json")[0] == 200)


def until(true):
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_damaged_comparison_is_named_and_so_are_links_and_what_lies_too_deep(root, tmp_path):
    (root / "deep" / "compared" / "comparison.yaml").write_text("seeds: 0")
    (root / "out").symlink_to(tmp_path)
    (root / "in").symlink_to(root / "done")
    (root / "done" / "extra.csv").symlink_to(root / "notes.txt")
    deep = root.joinpath(*"abcdefgh")
    deep.mkdir(parents=True)
    named = {one["path"]: one["why"] for one in Listing(root.resolve()).now()["named"]}
    assert "is corrupt" in named["deep/compared"]
    assert named["out"] == named["in"] == "a link; links are not followed"
    assert "too deep" in named["a/b/c/d/e/f/g"]
    (root / "done" / "config.yaml").unlink()
    (root / "done" / "config.yaml").symlink_to(tmp_path)
    named = {one["path"]: one["why"] for one in Listing(root.resolve()).now()["named"]}
    assert "leads out" in named["done"]


def test_a_run_or_a_comparison_itself_may_be_looked_at_and_many_strangers_are_counted(made, tmp_path):
    assert [run["path"] for run in Listing((made / "done").resolve()).now()["runs"]] == ["."]
    for number in range(205):
        (tmp_path / f"{number}.txt").write_text("")
    now = Listing(tmp_path).now()
    assert (len(now["named"]), now["more"]) == (200, 5)


# ---- what is served


def test_the_page_its_files_and_the_listing(made):
    with serving(made) as view:
        for path, kind in (("/", "text/html"), ("/view.js", "text/javascript"), ("/style.css", "text/css")):
            status, headers, body = ask(view, path)
            assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
            assert body
            assert "default-src 'none'" in headers["Content-Security-Policy"]
        status, headers, body = ask(view, "/runs.json")
        assert len(json.loads(body)["runs"]) == 6
        assert headers["Cache-Control"] == "no-store"
        status, headers, body = ask(view, "/runs.json", "HEAD")
        assert (status, body) == (200, "")


def test_reports_of_a_run_a_comparison_and_a_selection_are_drawn_when_asked_for(made):
    with serving(made) as view:
        before = {file: file.stat().st_mtime_ns for file in made.rglob("*")}
        for query in ("path=done", "path=deep/compared", "path=done&path=deep%2Fcompared", "path=stopped"):
            status, _, body = ask(view, f"/report?{query}")
            assert status == 200, body
            assert 'src="/plotly.js"' in body
            assert len(body) < 1_000_000, "Plotly is served once, not in every page"
        assert {file: file.stat().st_mtime_ns for file in made.rglob("*")} == before
        status, headers, _ = ask(view, "/plotly.js", "HEAD")
        assert (status, headers["Cache-Control"]) == (200, "max-age=86400")


WAYS_OUT = ["../outside", "..", "done/../../outside", "/etc", "//etc", "..\\outside", "done\0", "link", "link/inner"]


@pytest.mark.parametrize("word", [*WAYS_OUT, "nowhere", "notes.txt", "", "corrupt"])
def test_no_path_leads_out(root, tmp_path, word):
    shutil.copytree(root / "done", tmp_path / "outside" / "inner")
    (root / "link").symlink_to(tmp_path / "outside")
    with serving(root) as view:
        for written in (quote(word, safe=""), quote(word).replace(".", "%2e"), quote(word)):
            status, _, body = ask(view, f"/report?path={written}")
            assert status == 404
            assert "fingerprint" not in body
        for path in ("/../outside", "/%2e%2e/outside", "/runs.json/../../x", "//etc/passwd", "/done/config.yaml"):
            assert ask(view, path)[0] == 404


def test_a_link_out_of_a_run_is_not_read(root, tmp_path):
    (tmp_path / "secret").write_text("round,measure\n1,secret\n")
    (root / "done" / "rounds.csv").unlink()
    (root / "done" / "rounds.csv").symlink_to(tmp_path / "secret")
    with serving(root) as view:
        status, _, body = ask(view, "/report?path=done")
        assert (status, "leads out" in body) == (404, True)
        assert "secret" not in ask(view, "/runs.json")[2]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_it_is_only_read(made, method):
    with serving(made) as view:
        status, headers, _ = ask(view, "/runs.json", method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("host", "status"),
    [(name, 403) for name in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.1", "[", "::")]
    + [(name, 200) for name in ("localhost", "LOCALHOST:1", "127.0.0.1", "[::1]:80")],
)
def test_a_foreign_name_that_leads_here_is_refused(made, host, status):
    with serving(made) as view:
        assert ask(view, "/runs.json", host=host)[0] == status


def test_other_machines_only_when_told(made):
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with pytest.raises(UsageError, match="say --allow-remote"):
            View(made, host, 0)
    with View(made, "0.0.0.0", 0, allow_remote=True) as view:
        assert view.expects("192.0.2.7:8420")
        assert not view.expects("evil.example")


def test_what_cannot_be_served_is_one_sentence(made, tmp_path, cli):
    assert "there is no directory" in cli("view", str(tmp_path / "nowhere")).err
    assert cli("view", str(made), "--host", "0.0.0.0").code == 2
    with View(made, "127.0.0.1", 0) as taken, pytest.raises(UsageError, match="cannot listen on"):
        View(made, "127.0.0.1", taken.server_address[1])
    with pytest.raises(DataError, match="there is no directory"):
        View(made / "notes.txt", "127.0.0.1", 0)


def test_a_fault_is_one_answer_and_the_server_goes_on(made, monkeypatch):
    with serving(made) as view:

        def broken():
            raise RuntimeError("<script>")

        monkeypatch.setattr(view.listing, "now", broken)
        status, _, body = ask(view, "/runs.json")
        assert (status, "<script>" in body, "&lt;script&gt;" in body) == (500, False, True)
        monkeypatch.undo()
        assert ask(view, "/runs.json")[0] == 200
