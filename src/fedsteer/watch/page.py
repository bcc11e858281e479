"""Frames as a page on this machine's loopback address: HTML once, then JSON again and again.

Nothing outside this machine can connect. A page of another site in the same browser could ask us
under a name of its own that it lets point here, so we answer to our own address only.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, final
from urllib.parse import parse_qs, urlsplit

from fedsteer.errors import ConfigurationError, printable
from fedsteer.watch import words
from fedsteer.watch.clients import counts
from fedsteer.watch.folder import Frame, LiveFolder
from fedsteer.watch.run import Details, RunState

HOST = "127.0.0.1"
MOST_CLIENTS = 1000
"""Clients that the page draws one by one; the most urgent ones."""
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
LAST_LOOKS = 3
"""For so many intervals after the end, open pages can fetch the last frame."""


def serve(folder: LiveFolder, port: int, every: float, say: Callable[[str], None]) -> None:
    """Serve the page until all runs have ended; `say` gets its address."""
    with served(folder, port, every) as server:
        say(server.address)
        while not server.look(None).ended:
            time.sleep(every)
        time.sleep(LAST_LOOKS * every)


@contextmanager
def served(folder: LiveFolder, port: int, every: float) -> Iterator["PageServer"]:
    """Serve the page while this lasts."""
    try:
        server = PageServer(folder, port, every)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot serve on port {port}: {why}") from None
    with server:
        threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()


@final
class PageServer(ThreadingHTTPServer):
    """Answers requests in threads, which look at the runs one after the other."""

    daemon_threads = True

    def __init__(self, folder: LiveFolder, port: int, every: float) -> None:
        super().__init__((HOST, port), _Handler)
        self.every = every
        self._folder = folder
        self._looking = threading.Lock()
        self.address = f"http://{HOST}:{self.server_port}/"

    def look(self, focus: str | None) -> Frame:
        with self._looking:
            return self._folder.look(focus)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that goes away in the middle of an answer is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@final
class _Handler(BaseHTTPRequestHandler):
    server: PageServer

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        if self.headers.get("Host") not in {
            f"{name}:{self.server.server_port}" for name in (HOST, "localhost")
        }:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif asked.path == "/":
            page = (files("fedsteer.watch") / "page.html").read_text(encoding="utf-8")
            self._answer(page, "text/html")
        elif asked.path == "/frame":
            focus = parse_qs(asked.query).get("run", [None])[0]
            content = data_of(self.server.look(focus)) | {"every": self.server.every}
            self._answer(json.dumps(content, allow_nan=False), "application/json")
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _answer(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(HTTPStatus.OK)
        for name, value in {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Content-Security-Policy": POLICY,
            "X-Content-Type-Options": "nosniff",
            "Cache-Control": "no-store",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal is for people."""


def data_of(frame: Frame) -> dict[str, Any]:
    """A frame as JSON, all texts as they are shown."""
    run, details = frame.focus, frame.details
    return {
        "folder": printable(frame.folder),
        "summary": words.summary(frame),
        "ended": frame.ended,
        "runs": [_row(run) for run in frame.runs],
        "focus": None if run is None else _focus(run),
        "details": None if run is None or details is None else _details(run, details),
    }


def _row(run: RunState) -> dict[str, Any]:
    return {
        "name": run.name,
        "title": words.title(run),
        "status": run.status,
        "progress": words.progress(run),
        "left": words.left(run),
        "value": words.value(run),
    }


def _focus(run: RunState) -> dict[str, Any]:
    share = run.round / run.rounds if run.rounds and run.status != "warm-up" else None
    return _row(run) | {
        "where": words.where(run),
        "share": None if share is None else min(share, 1.0),
        "best": words.best(run),
        "measure": run.measure,
        "facts": words.facts(run),
    }


def _details(run: RunState, details: Details) -> dict[str, Any]:
    shown = details.clients[:MOST_CLIENTS]
    warnings = [[words.moment(one.round, details), words.said(one)] for one in details.warnings]
    return {
        "curve": details.curve,
        "ends": [words.point(run, one) for one in (details.curve[:1] + details.curve[-1:])],
        "counts": counts(details.clients),
        "clients": [
            [printable(one.name), one.state, words.since(one, details), printable(one.reason)]
            for one in shown
        ],
        "more": len(details.clients) - len(shown),
        "warnings": warnings + ([["", words.damaged(details)]] if details.damaged else []),
    }
