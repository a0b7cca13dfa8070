"""The snippets of a page: files it names are written, commands and scripts are run in order, in one directory."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from starter import programs

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"(?:^<!-- skip: (?P<why>[^\n]+) -->\n)?^```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```", re.S | re.M)
NAMED = re.compile(r"# (\S+\.(?:py|yaml))\n")
SHELL = ("bash", "sh")


@dataclass(frozen=True)
class Snippet:
    """A fenced block: its language, its text, and why it is not run, if it is not."""

    kind: str
    text: str
    why: str = ""

    @property
    def file(self) -> str:
        """The file it is: a Python or YAML block that begins with a comment `# name.ext`."""
        named = NAMED.match(self.text) if self.kind in ("python", "yaml") else None
        return named[1] if named else ""

    @property
    def commands(self) -> list[str]:
        """Its command lines, without comments."""
        lines = self.text.splitlines() if self.kind in SHELL else []
        return [line.split("  #")[0].strip() for line in lines if line.strip()]


def snippets(page: Path) -> list[Snippet]:
    """Every block of a page, in order."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Snippet(m["kind"], m["text"], m["why"] or "") for m in found]


def steps(page: Path) -> Iterator[tuple[str, str]]:
    """What a reader does, in order: ("write", file), ("run", command) or ("script", text)."""
    for snippet in snippets(page):
        if snippet.why:
            continue
        if snippet.file:
            yield "write", snippet.text
        elif snippet.kind in SHELL:
            yield "run", snippet.text
        elif snippet.kind == "python":
            yield "script", snippet.text


def environment(folder: Path) -> dict[str, str]:
    """The caller's, with a quick `polyfed` and this interpreter's commands first, and with runs under the folder."""
    path = f"{programs()}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "POLYFED_OUT": str(folder / "out")}


def call(folder: Path, command: list[str], seconds: float = 1800) -> str:
    """Run a command as a reader would; what it printed."""
    done = subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, f"{command[-1]}\n{done.stderr}"
    return done.stdout


STUB = """#!/bin/sh
{ printf '%s\\037' "${0##*/}" "$@"; printf '\\036'; } >> "$PASTED"
"""


def pasted(text: str, shell: Sequence[str], folder: Path) -> list[list[str]]:
    """The words that each command gets when a block is pasted into an interactive shell; nothing is really run."""
    stubs, found = folder / "stubs", folder / f"{Path(shell[0]).name}.words"
    stubs.mkdir(exist_ok=True)
    for name in ("polyfed", "python", "make", "pip", "grep", "kill"):
        (stubs / name).write_text(STUB, encoding="utf-8")
        (stubs / name).chmod(0o755)
    found.write_text("", encoding="utf-8")
    around = {"PATH": str(stubs), "PASTED": str(found), "HOME": str(folder), "TERM": "dumb"}
    subprocess.run(shell, input=text, cwd=folder, env=around, capture_output=True, text=True, timeout=60, check=False)
    each = found.read_text(encoding="utf-8").split("\036")[:-1]
    return [words.split("\037")[:-1] for words in each]


def follow(page: Path, folder: Path) -> list[str]:
    """Do everything a page says, in order; what each step printed."""
    said = []
    for what, text in steps(page):
        if what == "write":
            (folder / Snippet("python", text).file).write_text(text, encoding="utf-8")
        elif what == "run":
            said.append(call(folder, ["bash", "-euo", "pipefail", "-c", text]))
        else:
            said.append(call(folder, [sys.executable, "-c", text]))
    return said
