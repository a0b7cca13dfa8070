"""Code outside polyfed: a file by its path, with the files beside it that it imports."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyfed import outside

FILES = {
    "whole": "from outside_one import ONE\n\ndef later():\n    import outside_three\n    return outside_three.THREE\n",
    "outside_one": "import outside_two\nimport json\nONE = outside_two.TWO - 1\n",
    "outside_two": "TWO = 2\n",
    "outside_three": "THREE = 3\n",
    "outside_unused": "raise SystemExit('nobody imports this')\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith(("polyfed_user_whole", "outside_"))]:
        del sys.modules[name]


def test_a_file_may_import_those_beside_it_and_all_of_them_are_hashed_before_they_run(folder: Path) -> None:
    code = outside.find(str(folder / "whole.py"))
    assert "outside_one" not in sys.modules
    assert {Path(path).stem for path in code.files} == {"whole", "outside_one", "outside_two", "outside_three"}
    (folder / "outside_two.py").write_text("TWO = 100\n")
    module = code.load()
    assert module.ONE == 1, "what runs is what was hashed"
    (folder / "outside_three.py").write_text("THREE = 100\n")
    assert module.later() == 3
    assert outside.find(str(folder / "whole.py")).files == code.files, "it is loaded once"


def test_nothing_beside_it_is_found_by_others(folder: Path) -> None:
    before = list(sys.meta_path)
    outside.find(str(folder / "whole.py")).load()
    assert sys.meta_path == before
    with pytest.raises(ModuleNotFoundError):
        __import__("outside_unused")


def test_a_name_that_another_file_has_already_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "json.py").write_text("dumps = None\n")
    with pytest.raises(ImportError, match=r"imports 'json' from beside it, but .* has that name already: rename"):
        outside.find(str(folder / "whole.py"))


def test_a_file_that_fails_leaves_nothing(folder: Path) -> None:
    (folder / "whole.py").write_text("import outside_two\nraise ValueError('no')\n")
    with pytest.raises(ValueError, match="no"):
        outside.find(str(folder / "whole.py")).load()
    assert "polyfed_user_whole" not in sys.modules
