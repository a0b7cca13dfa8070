"""What a notebook shows: a table of text, and nothing that runs."""

from polyfed.report.forms import BEST, SECOND, Entry, Table
from polyfed.report.notebook import as_html


def test_entries_ranks_and_differences() -> None:
    rows = [[Entry("<a>"), Entry("0.5", BEST, "+1 & more")], [Entry("b"), Entry("0.4", SECOND)]]
    shown = as_html("<run>", Table(["method", "x"], 1, [rows], [], ["first <note>"]))
    assert shown == (
        "<p><code>&lt;run&gt;</code></p><table><thead><tr><th>method</th><th>x</th></tr></thead><tbody>"
        "<tr><td>&lt;a&gt;</td><td><b>0.5</b> <small>+1 &amp; more</small></td></tr>"
        "<tr><td>b</td><td><u>0.4</u></td></tr></tbody></table><p><small>first &lt;note&gt;</small></p>"
    )


def test_without_a_table() -> None:
    assert as_html("run", None) == "<p><code>run</code></p>"
