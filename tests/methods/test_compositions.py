"""DittoRS, ScaRS and ScaMAP are nothing but their parts, and every method file is short and has no loop of its own."""

import ast
import inspect
import io
import tokenize
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from riding import Ride

import polyfed.methods.base
from polyfed.methods.compositions import DittoRS, ScaMAP, ScaRS
from polyfed.methods.ditto import Ditto
from polyfed.methods.fedrs import FedRS
from polyfed.methods.map import MAP
from polyfed.methods.scaffold import Scaffold

Riding = Callable[..., Ride]
HOOKS = {"train", "local", "fit", "merge", "loss", "correct", "upload", "send", "start", "wire", "adapt", "finish"}
HOME = Path(polyfed.methods.base.__file__).parent
FILES = sorted(HOME.glob("*.py"))
HOSTS = {"base.py", "sites.py", "__init__.py"}  # not methods: what methods stand on
LONGER = {"distfl": 131}  # it may only shrink
EVEN = {"weighting": "uniform"}


@pytest.mark.parametrize(
    ("made", "parts"),
    [(DittoRS, (Ditto, FedRS)), (ScaRS, (Scaffold, FedRS)), (ScaMAP, (Scaffold, MAP))],
    ids=["ditto-rs", "sca-rs", "sca-map"],
)
def test_a_composition_has_nothing_of_its_own(made: type, parts: tuple[type, ...]) -> None:
    assert made.__bases__ == parts
    own = {name for name in vars(made) if not name.startswith("_")} - {"model_post_init"}  # pydantic's
    assert not own & (HOOKS | {"predictor", "global_predictor"})
    assert not [name for name in own if inspect.isfunction(vars(made)[name])]


def test_sca_rs_with_alpha_1_is_scaffold(ride: Riding) -> None:
    one, other = ride({"name": "sca-rs", "alpha": 1.0}), ride("scaffold", **EVEN)
    assert torch.equal(one.params.flat, other.params.flat)
    assert torch.equal(one.state["state.c"], other.state["state.c"])
    assert one.train(3, 1).after == other.train(3, 1).after  # the controls
    assert not torch.equal(one.params.flat, one.initial.flat)


def test_ditto_rs_with_alpha_1_is_ditto(ride: Riding) -> None:
    one, other = ride({"name": "ditto-rs", "alpha": 1.0}), ride("ditto", **EVEN)
    assert torch.equal(one.params.flat, other.params.flat)
    assert one.train(3, 1).after == other.train(3, 1).after  # the personal models


def test_with_missing_classes_the_compositions_are_more_than_their_first_part(ride: Riding) -> None:
    for name, first in (("sca-rs", "scaffold"), ("ditto-rs", "ditto")):
        one = ride({"name": name, "alpha": 0.1}, data="skewed")
        other = ride(first, data="skewed", **EVEN)
        assert not torch.equal(one.params.flat, other.params.flat)


def test_in_ditto_rs_only_the_global_branch_is_restricted(ride: Riding) -> None:
    """Its first personal branch starts at w_g, as Ditto's does, and knows nothing of alpha."""
    one, other = ride({"name": "ditto-rs", "alpha": 0.1}, data="skewed"), ride("ditto", data="skewed", **EVEN)
    for k in range(4):
        mine, theirs = (r.train(1, k).memory().personal_model.flat for r in (one, other))
        assert torch.equal(mine, theirs)
        assert k == 2 or not torch.equal(one.train(1, k).up.w, other.train(1, k).up.w)  # client 2 misses no class


def test_sca_map_updates_controls_by_its_first_stage_and_keeps_a_private_model(ride: Riding) -> None:
    """tau = n_1: with n_1 = 4 of 8 steps, c_k+ = c_k - c + (w_g - w_k) / (4 eta), w_k the uploaded model."""
    run = ride("sca-map")
    for round in (1, 2):
        for k in range(4):
            seen = run.train(round, k)
            before = seen.memory(after=False).get("control", torch.zeros(run.layout.n_weights))
            after = seen.memory().control
            expected = before - seen.down.c + (seen.down.w - seen.up.w) / (4 * 0.1)
            torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(seen.up.c, after - before, rtol=1e-4, atol=1e-6)
            assert seen.memory().times == round
            assert not torch.equal(seen.memory().hpm.flat, seen.up.w)  # stage two went on from the upload
    same = ride({"name": "map", "alpha": 0.9}, rounds=1)
    first = ride("sca-map", rounds=1)
    torch.testing.assert_close(first.params.flat, same.params.flat, rtol=1e-5, atol=1e-6)  # zero controls


# ---- every file


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_no_method_descends_by_itself(path: Path) -> None:
    """The one training loop is parts/fit.py."""
    source = path.read_text()
    for forbidden in (".backward(", "autograd.grad", "torch.optim", "zero_grad"):
        assert forbidden not in source, f"{path.name} has {forbidden}"


WORDS = {"cost", "edges", "family", "keeps", "newcomer"}  # what the catalogue prints of a method


def code_lines(source: str) -> int:
    """Lines that hold code: no blank line, comment or docstring, and nothing that only the catalogue prints."""
    lines: set[int] = set()
    skip = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in skip:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            said = node.body[0]
            lines -= _lines_of(said)
        if isinstance(node, ast.ClassDef):
            words = [n for n in node.body if isinstance(n, ast.Assign) and {ast.unparse(t) for t in n.targets} <= WORDS]
            for each in (*node.decorator_list, *words):
                lines -= _lines_of(each)
    return len(lines)


def _lines_of(node: ast.stmt | ast.expr) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def test_code_lines_are_counted_right() -> None:
    source = (
        '"""Doc\n\nmore."""\n\n# why\nx = 1  # this\n\n\ndef f():\n    """Doc."""\n    return (\n        x\n    )\n'
    )
    assert code_lines(source) == 5
    registered = '@method(\n    "mine",\n    paper="ours",\n)\nclass Mine(Method):\n    cost = "none"\n    mu = 1\n'
    assert code_lines(registered) == 2


@pytest.mark.parametrize("path", [p for p in FILES if p.name not in HOSTS], ids=lambda p: p.stem)
def test_a_method_file_is_at_most_120_lines_of_code(path: Path) -> None:
    assert code_lines(path.read_text()) <= LONGER.get(path.stem, 120)


@pytest.mark.parametrize(("name", "most"), [("fedper", 10), ("fedprox", 14), ("ditto", 30), ("scaffold", 65)])
def test_the_small_ones_stay_small(name: str, most: int) -> None:
    """Whole files with their imports; the aims are for what is inside."""
    assert code_lines((HOME / f"{name}.py").read_text()) <= most


@pytest.mark.parametrize("path", [p for p in FILES if p.name not in HOSTS], ids=lambda p: p.stem)
def test_a_method_file_names_its_paper(path: Path) -> None:
    module = ast.parse(path.read_text())
    assert ast.get_docstring(module)
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            assert ast.get_docstring(node), node.name
