"""The report in a real browser: everything is drawn, nothing is fetched, nothing is complained about, all can be used.

Screenshots (light, dark, narrow) and a printed page are kept in the temporary directory of the test.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polyfed
from killing import wait_for
from polyfed.report.kinds import KINDS
from polyfed.report.page import write_report

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
PATIENCE = 120_000  # milliseconds; the machine is shared
WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 390, "height": 844}

pytestmark = pytest.mark.slow
playwright = pytest.importorskip("playwright.sync_api", reason="skipped: no playwright")
if not CHROMIUM.exists():
    pytest.skip("skipped: no chromium", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


class Tab:
    """A page that is being looked at, and what it asked for and complained about."""

    def __init__(self, browser: Any, report: Path, scheme: str = "light", size: dict[str, int] | None = None):
        self.page = browser.new_page(viewport=size or WIDE, color_scheme=scheme)
        self.page.set_default_timeout(PATIENCE)
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.route("**/*", lambda route: self._only(route, report.as_uri()))
        self.page.goto(report.as_uri())
        self.drawn()

    def _only(self, route: Any, address: str) -> None:
        if route.request.url == address:
            route.continue_()
        else:
            self.asked.append(route.request.url)
            route.abort()

    def drawn(self) -> None:
        """Wait until every figure is there."""
        self.page.wait_for_selector("body[data-drawn]")

    def fine(self) -> None:
        assert self.complaints == []
        assert self.asked == []
        assert not self.page.evaluate("document.documentElement.scrollWidth > innerWidth"), "wider than the screen"

    def background(self) -> str:
        return str(self.page.evaluate("getComputedStyle(document.body).backgroundColor"))

    def ink(self) -> str:
        """The colour of the first figure's numbers."""
        return str(self.page.eval_on_selector(".plot .xtick text", "text => getComputedStyle(text).fill"))


@pytest.fixture(scope="module")
def report(everything: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([everything], tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def tab(browser: Any, report: Path) -> Iterator[Tab]:
    made = Tab(browser, report)
    yield made
    made.fine()
    made.page.close()


def test_every_section_is_drawn(tab: Tab) -> None:
    for kind in KINDS:
        plots = tab.page.query_selector_all(f"#figure-{kind} .plot")
        assert plots, kind
        for plot in plots:
            axes = plot.query_selector_all(".xtick, .ytick")
            shapes = plot.query_selector_all(".scatterlayer .trace, .barlayer .point, .heatmaplayer image")
            assert len(axes) >= 2, kind
            assert shapes, kind
            box = plot.bounding_box()
            assert box is not None
            assert box["width"] > 200
            assert box["height"] > 200
    assert "summary" in tab.page.inner_html("main")


@pytest.mark.parametrize(
    ("scheme", "size"), [("light", WIDE), ("dark", WIDE), ("light", NARROW)], ids=["light", "dark", "narrow"]
)
def test_light_dark_and_narrow(browser: Any, report: Path, tmp_path: Path, scheme: str, size: dict[str, int]) -> None:
    tab = Tab(browser, report, scheme, size)
    assert tab.background() == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 28)")
    picture = tmp_path / f"{scheme}-{size['width']}.png"
    tab.page.screenshot(path=picture, full_page=True)
    assert picture.stat().st_size > 50_000
    for plot in tab.page.query_selector_all(".plot"):
        assert (plot.bounding_box() or {"width": 10**6})["width"] <= size["width"]
    tab.fine()
    tab.page.close()


def test_theme_can_be_switched(tab: Tab) -> None:
    background, ink = tab.background(), tab.ink()
    tab.page.click("#theme")
    tab.drawn()
    assert tab.background() != background
    assert tab.ink() != ink
    tab.page.click("#theme")
    tab.drawn()
    assert (tab.background(), tab.ink()) == (background, ink)


def test_theme_follows_the_system(tab: Tab) -> None:
    background = tab.background()
    tab.page.emulate_media(color_scheme="dark")
    tab.drawn()
    assert tab.background() != background


def test_legend_hides_and_shows(tab: Tab) -> None:
    lines, button = "#figure-rounds .plot >> nth=0", "#figure-rounds .legend button >> nth=0"
    traces = "plot => plot.querySelectorAll('.scatterlayer .trace').length"
    before = tab.page.eval_on_selector(lines, traces)
    elsewhere = tab.page.eval_on_selector("#figure-bytes .plot >> nth=0", traces)
    tab.page.click(button)
    assert tab.page.get_attribute(button, "aria-pressed") == "false"
    assert tab.page.eval_on_selector(lines, traces) < before
    assert tab.page.eval_on_selector("#figure-bytes .plot >> nth=0", traces) == elsewhere
    tab.page.click("#theme")  # a figure that is drawn anew keeps what was hidden
    tab.drawn()
    assert tab.page.eval_on_selector(lines, traces) < before
    tab.page.click(button)
    assert tab.page.get_attribute(button, "aria-pressed") == "true"
    assert tab.page.eval_on_selector(lines, traces) == before


def test_the_pointer_gives_numbers(tab: Tab) -> None:
    dots, bars, tiles = ".scatterlayer path.point", ".barlayer .point path", ".heatmaplayer image"
    wanted = {"rounds": dots, "holdings": dots, "groups": bars, "clients": dots, "clusters": tiles}
    for kind, shape in wanted.items():
        spot = tab.page.locator(f"#figure-{kind} .plot").first.locator(shape).first
        spot.scroll_into_view_if_needed()
        box = spot.bounding_box()
        assert box is not None
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        tab.page.mouse.move(x + 40, y)
        tab.page.mouse.move(x, y, steps=5)
        tab.page.wait_for_selector(f"#figure-{kind} .hoverlayer .hovertext", state="attached", timeout=30_000)
        said = " ".join(tab.page.locator(f"#figure-{kind} .hoverlayer").all_text_contents())
        assert re.search(r"\d", said), kind


def test_names_from_files_are_shown_as_they_are(tab: Tab) -> None:
    """The second client is called <b>lab</b>, and a reason ends a script."""
    assert "<b>lab</b>" in tab.page.locator("#figure-holdings .xtick").all_text_contents()
    assert tab.page.locator("h4 b, .legend b").count() == 0
    assert "</script>" in " ".join(tab.page.locator("#figure-uploads").all_text_contents())


def test_sections_can_be_jumped_to_and_details_opened(tab: Tab) -> None:
    tab.page.click('nav a[href="#clients"]')
    top = "Math.abs(document.getElementById('clients').getBoundingClientRect().top)"
    assert wait_for(lambda: tab.page.evaluate(top) < 200, step=0.1)
    tab.page.click("#config details:nth-of-type(2) summary")
    assert "method:" in tab.page.inner_text("#config details[open] pre")


def test_it_prints_in_light_as_wide_as_paper(browser: Any, report: Path, tmp_path: Path) -> None:
    tab = Tab(browser, report, "dark")
    seen = """() => { window.seen = null; addEventListener('beforeprint', () => {
        const plots = [...document.querySelectorAll('.plot')];
        window.seen = { paper: getComputedStyle(document.documentElement).getPropertyValue('--paper').trim(),
          wide: Math.max(...plots.map((plot) => plot.querySelector('.main-svg').getBoundingClientRect().width)) };
    }) }"""
    tab.page.evaluate(seen)
    tab.page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert tab.page.evaluate("window.seen.paper") == "#ffffff"
    assert 300 < tab.page.evaluate("window.seen.wide") <= 700
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert tab.background() == "rgb(20, 23, 28)"  # and afterwards it is as it was
    tab.fine()
    tab.page.close()


def test_the_report_of_a_real_comparison(browser: Any, tmp_path: Path, tiny: dict[str, Any]) -> None:
    polyfed.compare({**tiny, "methods": ["fedavg", "mupfl"], "seeds": 1, "rounds": 2}, out=tmp_path / "c")
    tab = Tab(browser, write_report([tmp_path / "c"]))
    assert tab.page.inner_text("h1") == "FedAvg, MuPFL on digits"
    assert tab.page.locator(".plot .main-svg").count() >= 10
    tab.fine()
    tab.page.close()
