"""The page in a real browser, over a live run, a finished comparison, a corrupt run and a foreign file.

Screenshots (light, dark, narrow, and a report) are kept in the temporary directory of each test.
"""

import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import polyfed
from polyfed.report.view.server import View

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
PATIENCE = 120_000  # milliseconds; the machine is shared
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
if CHROMIUM is None:
    pytest.skip("there is no Chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory, tiny, tiny_words):
    """The directory; its live run goes on until the test is over."""
    root = tmp_path_factory.mktemp("view") / "runs"
    polyfed.compare(
        {**tiny, "methods": ["fedavg", "fedper"], "seeds": 2, "rounds": 3, "tag": "pair"}, out=root / "pair"
    )
    shutil.copytree(root / "pair" / "fedavg-s0", root / "corrupt")
    (root / "corrupt" / "summary.json").write_text("{")
    (root / "notes.txt").write_text("mine")
    words = [word for word in tiny_words if not word.startswith("rounds=")]
    command = [
        sys.executable,
        "-m",
        "polyfed.cli",
        "run",
        *words,
        "rounds=100000",
        "method=local",
        "tag=long",
        "--quiet",
    ]
    live = subprocess.Popen([*command, "--out", str(root / "live")], stdout=subprocess.DEVNULL)
    yield root
    live.terminate()
    live.wait(60)


@pytest.fixture(scope="module")
def view(root):
    with View(root, "127.0.0.1", 0) as view:
        threading.Thread(target=view.serve_forever, args=(0.05,), daemon=True).start()
        yield view
        view.shutdown()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS, headless=True)
        yield opened
        opened.close()


@pytest.fixture
def page(browser, view, tmp_path):
    """A tab; what it complains about or asks elsewhere for fails the test."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    tab.set_default_timeout(PATIENCE)
    complaints: list[str] = []
    tab.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.on(
        "request",
        lambda asked: None if asked.url.startswith((view.url, "data:", "blob:")) else complaints.append(asked.url),
    )
    tab.goto(view.url)
    tab.wait_for_selector("body[data-shown]")
    yield tab
    tab.close()
    assert complaints == []


def seen(page, tmp_path: Path, name: str) -> None:
    page.screenshot(path=tmp_path / f"{name}.png", full_page=True)


def test_live_and_finished_ones_are_shown_the_others_named(page, tmp_path):
    live = page.locator("#runs tr[data-path='live']")
    live.locator(".state.live").wait_for()
    before = live.inner_text()
    page.wait_for_function(
        "before => document.querySelector(\"#runs tr[data-path='live']\").innerText !== before",
        arg=before,
    )
    assert "fedavg, fedper" in page.locator("#comparisons tr[data-path='pair']").inner_text()
    assert "4/4" in page.locator("#comparisons tr[data-path='pair']").inner_text()
    assert [row.get_attribute("data-path") for row in page.locator("#runs tbody tr").all()] == ["live"]
    assert page.locator("#folded").inner_text().startswith("4 runs of comparisons folded away")
    page.click("#comparisons tr[data-path='pair'] button")
    assert page.locator("#runs tbody tr").count() == 5
    assert page.locator("#folded").is_hidden()
    assert "after finish" in page.locator("#runs tr[data-path='pair/fedper-s1']").inner_text()
    named = page.locator("#named").inner_text()
    assert "corrupt: the run at 'corrupt' is corrupt: summary.json" in named
    assert "notes.txt: no run and no comparison" in named
    seen(page, tmp_path, "light")


def test_filters_by_method_data_tag_and_name_stay_in_the_address(page, view):
    page.select_option("[name=method]", "fedper")
    assert page.locator("#runs tbody tr").count() == 2
    assert page.locator("#comparisons tbody tr").count() == 1
    page.select_option("[name=tag]", "long")
    assert page.locator("#empty").is_visible()
    page.select_option("[name=method]", "")
    assert [row.get_attribute("data-path") for row in page.locator("#runs tbody tr").all()] == ["live"]
    assert page.url == f"{view.url}?tag=long"
    page.reload()
    page.wait_for_selector("body[data-shown]")
    assert page.locator("#runs tbody tr").count() == 1
    page.fill("[name=name]", "nothing like it")
    assert page.locator("#empty").is_visible()


def test_chosen_ones_are_compared_in_a_report_drawn_now(page, tmp_path):
    page.click("#comparisons tr[data-path='pair'] button")
    for path in ("pair/fedavg-s0", "pair/fedper-s0"):
        page.check(f"#runs tr[data-path='{path}'] input")
    page.wait_for_timeout(2500)  # the list is looked at again, and what is chosen stays
    assert page.locator("#chosen").inner_text().startswith("2 chosen")
    page.click("#chosen a")
    page.wait_for_selector("body[data-drawn=all]")
    assert page.locator(".plot svg.main-svg").count() > 3
    assert "FedPer" in page.locator("#summary").inner_text()
    seen(page, tmp_path, "report")
    page.go_back()
    page.wait_for_selector("body[data-shown]")
    page.locator("#runs tr[data-path='live'] a").click()
    page.wait_for_selector("body[data-drawn=all]")
    assert "Unfinished" in page.locator("#summary").inner_text()


def test_in_the_dark_and_on_a_phone(page, tmp_path):
    paper = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(paper)
    page.click("#theme")
    assert page.evaluate(paper) != light
    page.click("#comparisons tr[data-path='pair'] button")
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.evaluate("[...document.querySelectorAll('.scroll')].every(one => one.scrollWidth <= one.clientWidth)")
    seen(page, tmp_path, "dark")
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#runs tr[data-path='pair/fedper-s1'] a").is_visible()
    seen(page, tmp_path, "narrow")
