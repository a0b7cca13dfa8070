"""The server behind the page: it only reads, only below one directory, and only for whom it was started."""

import contextlib
import ipaddress
import json
import os
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

from polyfed.errors import DataError, PolyfedError, UsageError, reading
from polyfed.report.view.listing import Listing, inside

HERE = Path(__file__).parent
TEXT = {"html": "text/html", "css": "text/css", "js": "text/javascript", "json": "application/json"}
OURS = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Answer = tuple[str, str]  # kind, text


class View(ThreadingHTTPServer):
    """Serves the page of one directory."""

    daemon_threads = True
    most = 32  # connections at a time; each has a thread
    patience = 10.0  # seconds in which a whole request must have come

    def __init__(self, root: Path, host: str, port: int, allow_remote: bool = False):
        if not root.is_dir():
            raise DataError(f"there is no directory '{root}'")
        if not is_loopback(host) and not allow_remote:
            raise UsageError(
                f"'{host}' is reached from other machines, and the page has no password; "
                "say --allow-remote if that is meant"
            )
        self.listing, self.hosts = Listing(root.resolve()), _hosts(host)
        self.drawing = Lock()  # reports are drawn one at a time
        self.free = BoundedSemaphore(self.most)
        self.awaited: dict[socket.socket, float] = {}  # connections whose request has not come, and until when it must
        if ":" in host:
            self.address_family = socket.AF_INET6
        try:
            super().__init__((host, port), Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on {host}, port {port}: {error}") from None

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a request on a thread of its own; if all threads are taken, refuse it."""
        if not self.free.acquire(blocking=False):
            with contextlib.suppress(OSError):
                request.sendall(b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n")
            self.shutdown_request(request)
            return
        self.awaited[request] = time.monotonic() + self.patience
        try:
            super().process_request(request, client_address)
        except BaseException:
            self.awaited.pop(request, None)
            self.free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection from its beginning to its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.awaited.pop(request, None)
            self.free.release()

    def service_actions(self) -> None:
        """Between requests, close connections whose request comes too slowly."""
        now = time.monotonic()
        for request, until in list(self.awaited.items()):
            if now > until:
                self.awaited.pop(request, None)
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    @property
    def url(self) -> str:
        """Where the page is."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def expects(self, host: str) -> bool:
        """Whether a request is meant for this server: a foreign name that was made to lead here is not."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in self.hosts or ("*" in self.hosts and _is_address(name))


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and reached by nobody else."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _hosts(host: str) -> set[str]:
    """The names a request may call this server by; * stands for any address."""
    local = {"localhost", "127.0.0.1", "::1", host.lower()}
    everywhere = _is_address(host) and ipaddress.ip_address(host).is_unspecified
    return local | ({"*", socket.gethostname().lower()} if everywhere else set())


class Handler(BaseHTTPRequestHandler):
    """One request."""

    server: View
    timeout = 30
    server_version, sys_version = "polyfed", ""

    def do_GET(self) -> None:
        """Answer; nothing in here may end the server."""
        self.server.awaited.pop(self.connection, None)
        try:
            if not self.server.expects(self.headers.get("Host", "")):
                self._send(HTTPStatus.FORBIDDEN, "html", _sentence("this server goes by another name"))
                return
            self._route()
        except PolyfedError as error:
            self._send(HTTPStatus.NOT_FOUND, "html", _sentence(str(error)))
        except (BrokenPipeError, ConnectionError, TimeoutError):
            self.close_connection = True  # whoever asked has gone
        except Exception as error:
            if os.environ.get("POLYFED_DEBUG"):
                traceback.print_exc()
            self._send(HTTPStatus.INTERNAL_SERVER_ERROR, "html", _sentence(f"{type(error).__name__}: {error}"))

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, "html", _sentence("this page is only read"), {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def _route(self) -> None:
        try:
            asked = urlsplit(self.path)
            query = parse_qs(asked.query, max_num_fields=200)
        except ValueError as error:
            raise DataError(f"this cannot be asked for: {error}") from None
        if asked.path not in ROUTES:
            raise DataError("there is no such page")
        kind, text = ROUTES[asked.path](self.server, query)
        still = asked.path == "/plotly.js"
        policy = {} if asked.path == "/report" else {"Content-Security-Policy": OURS + "frame-ancestors 'none'"}
        self._send(HTTPStatus.OK, kind, text, {"Cache-Control": "max-age=86400" if still else "no-store", **policy})

    def _send(self, status: HTTPStatus, kind: str, text: str, more: Mapping[str, str] | None = None) -> None:
        body = text.encode(errors="replace")
        self.send_response(status)
        for name, value in {**HEADERS, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{TEXT[kind]}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write no log of requests."""


def _sentence(text: str) -> str:
    from html import escape

    return f"<!doctype html><meta charset='utf-8'><title>polyfed</title><p>{escape(text)}</p><p><a href='/'>back</a>"


# ---- what can be asked for

Query = Mapping[str, list[str]]


def _file(name: str) -> Callable[[View, Query], Answer]:
    return lambda view, query: (name.rpartition(".")[2], (HERE / name).read_text(encoding="utf-8"))


def _style(view: View, query: Query) -> Answer:
    """The report's colours and letters, and what the list needs beside."""
    from polyfed.report.page import stylesheet

    return "css", stylesheet() + (HERE / "view.css").read_text(encoding="utf-8")


def _runs(view: View, query: Query) -> Answer:
    return "json", json.dumps(view.listing.now(), allow_nan=False)


def _plotly(view: View, query: Query) -> Answer:
    from plotly.offline import get_plotlyjs

    return "js", get_plotlyjs()


def _report(view: View, query: Query) -> Answer:
    """The report of the runs and comparisons that are named, drawn as they are now."""
    from polyfed.report.page import page
    from polyfed.report.runs import select

    words = query.get("path", [])
    if not words:
        raise DataError("choose a run or a comparison")
    paths = [inside(view.listing.root, word) for word in dict.fromkeys(words)]
    with view.drawing, reading(" and ".join(words)):
        return "html", page(select(paths), plotly="/plotly.js")


ROUTES: Mapping[str, Callable[[View, Query], Answer]] = {
    "/": _file("index.html"),
    "/view.js": _file("view.js"),
    "/style.css": _style,
    "/runs.json": _runs,
    "/plotly.js": _plotly,
    "/report": _report,
}
