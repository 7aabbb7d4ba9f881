"""Data tests see neither the user's folders nor the network; the reference files have a fixture of their own."""

import http.server
import os
import threading
import urllib.request
from pathlib import Path

import pytest

from bilevel.data import download as download_module

REFERENCE = os.environ.get("BILEVEL_DATA")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """An empty cache, not yet created, and no named folder."""
    monkeypatch.delenv("BILEVEL_DATA", raising=False)
    monkeypatch.setenv("BILEVEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def reference() -> Path:
    if not REFERENCE:
        pytest.skip("BILEVEL_DATA names no folder with the original files")
    return Path(REFERENCE)


@pytest.fixture
def no_network(monkeypatch):
    def refuse():
        raise AssertionError("the network was used")

    monkeypatch.setattr(download_module, "https_only", refuse)


class Server:
    """Answers of a web server by path: a body, or a function that writes the whole answer itself."""

    def __init__(self, listening: http.server.ThreadingHTTPServer):
        self.listening = listening
        self.address = f"http://127.0.0.1:{listening.server_port}"
        self.answers = {}
        self.asked = []


@pytest.fixture
def server(monkeypatch):
    """A web server on this machine, and downloads that may reach it although it speaks plain http."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            served.asked.append(self.path)
            answer = served.answers.get(self.path)
            if answer is None:
                self.send_error(404)
            elif callable(answer):
                answer(self)
            else:
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

        def log_message(self, format, *args):
            pass

    class Quiet(http.server.ThreadingHTTPServer):
        def handle_error(self, request, client_address):
            pass  # clients that hang up are part of the tests

    with Quiet(("127.0.0.1", 0), Handler) as listening:
        served = Server(listening)
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setattr(
            download_module,
            "https_only",
            lambda: urllib.request.build_opener(urllib.request.ProxyHandler({})),
        )
        yield served
        listening.shutdown()
        thread.join()
