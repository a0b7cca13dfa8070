"""A release: wheel and sdist in dist/, each installed into an empty environment and tried there."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TRIAL = "method=fedper data=digits data.limit=20 split.clients=3 rounds=2 engine.workers=0 --quiet --out run"


def main() -> None:
    """Build both into an empty folder, try both, and only then put them into dist/."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        call([sys.executable, "-m", "build", "--outdir", str(made), str(ROOT)], ROOT)
        files = sorted(made.iterdir())
        for file in files:
            try_out(file)
        (ROOT / "dist").mkdir(exist_ok=True)
        for file in files:
            shutil.move(file, ROOT / "dist" / file.name)
            print(f"dist/{file.name}")


def try_out(file: Path) -> None:
    """Install one file into a new environment; it must tell its version and its methods, train, and show the run."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        call([sys.executable, "-m", "venv", "venv"], place)
        pip = f"install --quiet --disable-pip-version-check -c {ROOT / 'constraints.txt'} {file}"
        call(["venv/bin/python", "-m", "pip", *pip.split()], place)
        said = call(["venv/bin/polyfed", "--version"], place)
        version = file.name.split("-")[1].removesuffix(".tar.gz")
        if said.strip() != f"polyfed {version}":
            raise SystemExit(f"{file.name} says it is {said.strip()!r}")
        for words in ("methods", f"run {TRIAL}", "show run", "report run"):
            call(["venv/bin/polyfed", *words.split()], place)
        print(f"{file.name}: installed into an empty environment, and it works")


def call(command: list[str], place: Path) -> str:
    """Run a command; what it printed. A release in which anything fails is none."""
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
