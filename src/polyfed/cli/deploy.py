"""`polyfed deploy ...`: between real sites."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from polyfed.cli.common import Json

app = typer.Typer(
    help="Train between real sites over Flower, with TLS and node authentication.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    suggest_commands=False,
)
Folder = Annotated[Path, typer.Argument(metavar="DIR", show_default=False, help="The federation's folder.")]
Words = Annotated[list[str] | None, typer.Argument(metavar="[key=value ...]", show_default=False)]
Name = Annotated[str | None, typer.Option("--site", help="A site's name.")]


@app.command()
def init(
    path: Folder,
    words: Words = None,
    sites: Annotated[str, typer.Option(help="The sites' names, for example a,b,c.")] = "",
    host: Annotated[str, typer.Option(help="The name or address at which sites reach the server.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The guard's port, the only open one; the next ones are used inside.")
    ] = 9700,
    disclose: Annotated[str, typer.Option(help="What sites tell of their data: counts or n.")] = "counts",
    mutual: Annotated[bool, typer.Option("--mutual-tls", help="Sites show certificates, not only keys.")] = False,
) -> None:
    """Write a ready federation: certificates, keys, start scripts, the app and its config."""
    _need_flower()
    from polyfed.config import make_config, merge, read_assignments
    from polyfed.engine.flower.deploy import layout

    layout.check_disclose(disclose, "--disclose")
    tree = merge(dict(layout.FIRST_CONFIG), read_assignments(words or []))
    make_config(tree)
    layout.init(path, [name.strip() for name in sites.split(",") if name.strip()], host, port, tree, mutual, disclose)
    sys.stdout.write((path / "README.md").read_text())


@app.command()
def sign(
    path: Folder,
    authority: Annotated[
        Path | None, typer.Option("--ca", help="The folder of the signing key; DIR/ca if not given.")
    ] = None,
) -> None:
    """Sign the server's app again after it was changed; sites run only what was signed."""
    _need_flower()
    from polyfed.engine.flower.deploy import layout, signing

    server = layout.Server.at(path)
    signing.sign(server.path, authority or server.path.parent / "ca")
    signing.check_app(server.path)


@app.command()
def check(path: Folder, site: Name = None) -> None:
    """Certificates, keys, secrets, data, and whether what runs lets nobody in: what is wrong is one sentence."""
    _need_flower()
    from polyfed.engine.flower.deploy import check as checking

    sys.stdout.write("".join(f"{line}\n" for line in checking.check(path, site)))


@app.command()
def serve(path: Folder) -> None:
    """The server, in the foreground (server/start.sh calls this)."""
    _need_flower()
    from polyfed.engine.flower.deploy import layout, processes

    raise typer.Exit(processes.serve(layout.Server.at(path)))


@app.command()
def join(path: Folder, site: Name = None) -> None:
    """A site, in the foreground (sites/NAME/start.sh calls this)."""
    _need_flower()
    from polyfed.engine.flower.deploy import layout, processes

    raise typer.Exit(processes.join(layout.Site.at(path, site)))


@app.command(hidden=True)
def guard(path: Folder) -> None:
    """The guard alone (serve starts it)."""
    from polyfed.engine.flower.deploy import guard, layout

    guard.serve(layout.Server.at(path))


@app.command(hidden=True)
def superlink(path: Folder) -> None:
    """The SuperLink alone (serve starts it)."""
    from polyfed.engine.flower.deploy import layout, superlink

    superlink.serve(layout.Server.at(path))


@app.command(hidden=True)
def supernode(path: Folder) -> None:
    """The SuperNode alone (join starts it)."""
    from polyfed.engine.flower.deploy import layout, supernode

    supernode.serve(layout.Site.at(path))


@app.command()
def run(path: Folder, words: Words = None, as_json: Json = False) -> None:
    """Train, and wait for the result; key=value changes the federation's config for this run."""
    _need_flower()
    from polyfed.config import read_assignments
    from polyfed.engine.flower.deploy import control, layout

    _result(control.begin(layout.Server.at(path), read_assignments(words or [])), as_json)


@app.command()
def resume(path: Folder, as_json: Json = False) -> None:
    """Go on with the newest run from its checkpoint, with the sites that are there."""
    _need_flower()
    from polyfed.engine.flower.deploy import control, layout

    _result(control.go_on(layout.Server.at(path)), as_json)


@app.command()
def status(path: Folder, as_json: Json = False) -> None:
    """Who is there, and how far it is."""
    _need_flower()
    from polyfed.engine.flower.deploy import control, layout

    said = control.status(layout.Server.at(path))
    if as_json:
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
        return
    there = f"{said.get('online', 0)} of {len(said['sites'])} sites online" if said["listening"] else "nobody listens"
    lines = [f"{said['server']}: {there}"]
    if "run" in said:
        about = said["run"]
        lines.append(f"{about['path']}: {about['state']}, {about['round']} of {about['rounds']} rounds {about['why']}")
    sys.stdout.write("\n".join(lines) + "\n")


def _need_flower() -> None:
    from polyfed.engine.flower import need_flower

    need_flower()


def _result(path: Path, as_json: bool) -> None:
    from polyfed.api import load
    from polyfed.report.tables import caption

    result: Any = load(path)
    shown = f"\n{result.table()}\n{caption([result.summary])}\n\nrun: {path}"
    text = json.dumps(result.summary, indent=1) if as_json else shown
    sys.stdout.write(text + "\n")
