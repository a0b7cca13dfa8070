"""`polyfed` without its start: a command is a fork of one process in which everything is imported.

Pages of the documentation name some fifty commands, of which each would spend seconds on importing torch. `python -m
starter SOCKET` waits for them until its standard input ends; `polyfed` in the folder `programs()` sends it what it was
called with and its own standard streams, and ends as the fork does.
"""

import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
USED = ("polyfed.api", "polyfed.report.page", "polyfed.report.print", "polyfed.papers.reproduce", "polyfed.use.export")
CLIENT = """#!{python} -IS
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
socket.send_fds(server, [b"!"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
code = server.recv(8)
sys.exit(int(code) if code else "its fork was killed")
"""


@cache
def programs() -> Path:
    """A folder with a `polyfed` to put first on the PATH; it and the process behind it are gone when this one ends."""
    folder = Path(tempfile.mkdtemp(prefix="polyfed-starter-"))
    address = str(folder / "socket")
    command = [sys.executable, str(HERE / "starter.py"), address]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    (folder / "polyfed").write_text(CLIENT.format(python=sys.executable, address=address), encoding="utf-8")
    (folder / "polyfed").chmod(0o755)
    return folder


def serve(address: str) -> None:
    """Fork for everybody who connects, until standard input ends."""
    for name in USED:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks here
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as either:
        listener.bind(address)
        listener.listen()
        either.register(listener, selectors.EVENT_READ)
        either.register(sys.stdin, selectors.EVENT_READ)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while all(key.fileobj is listener for key, _ in either.select()):
            asked, _ = listener.accept()
            with asked:
                if os.fork() == 0:
                    listener.close()
                    become(asked)
    shutil.rmtree(Path(address).parent)


def become(asked: socket.socket) -> None:
    """Be the command that was asked for, to its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    code = 99
    try:
        _, streams, _, _ = socket.recv_fds(asked, 1, 3)
        with asked.makefile("rb") as words:
            arguments, folder, around = json.load(words)
        for standard, stream in enumerate(streams):
            os.dup2(stream, standard)
            os.close(stream)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(around)
        from polyfed.cli import call

        code = call(arguments)
        sys.stdout.flush()
    finally:
        asked.sendall(str(code).encode())
        os._exit(code)


if __name__ == "__main__":
    serve(sys.argv[1])
