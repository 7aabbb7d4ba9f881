"""Downloads from a server on this machine: good ones are stored whole, all others leave no trace."""

import shutil
import ssl
import subprocess
import threading

import pytest

from bilevel.data import DataError, download as module
from bilevel.data.download import download, fetch

REAL_OPENER = module.https_only
CONTENT = bytes(range(256)) * 1000


def check(content: bytes, name: str) -> None:
    if content != CONTENT:
        raise DataError(f"{name}: unexpected content")


def leftovers(cache):
    return sorted(cache.iterdir()) if cache.exists() else []


def promise_more(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(CONTENT)))
    handler.end_headers()
    handler.wfile.write(CONTENT[:-1])


def break_off_chunked(handler):
    handler.protocol_version = "HTTP/1.1"
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"1000\r\n" + CONTENT[:100])
    handler.close_connection = True


def talk_nonsense(handler):
    handler.wfile.write(b"no HTTP at all\r\n\r\n")


def without_length(handler):
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(CONTENT)


@pytest.mark.parametrize("answer", [CONTENT, without_length], ids=["length", "no length"])
def test_a_good_download_is_stored(server, cache, answer):
    server.answers["/file"] = answer
    download([server.address + "/file"], cache / "file", check)
    assert leftovers(cache) == [cache / "file"]
    assert (cache / "file").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "the server answers 404"),
        (promise_more, f"ended after {len(CONTENT) - 1} of {len(CONTENT)} bytes"),
        (break_off_chunked, "cannot be fetched"),
        (talk_nonsense, "cannot be fetched"),
        (CONTENT[:-1], "unexpected content"),
        (CONTENT[:-1] + b"x", "unexpected content"),
        (b"", "unexpected content"),
    ],
    ids=["missing", "cut off", "cut off in a chunk", "no http", "short", "wrong", "empty"],
)
def test_a_bad_download_leaves_nothing(server, cache, answer, message):
    if answer is not None:
        server.answers["/file"] = answer
    with pytest.raises(DataError, match=message) as caught:
        download([server.address + "/file"], cache / "file", check)
    assert leftovers(cache) == []
    assert server.address + "/file" in str(caught.value)
    assert "BILEVEL_DATA" in str(caught.value)


def test_the_next_address_is_tried(server, cache):
    server.answers |= {"/a/file": b"wrong", "/b/file": CONTENT, "/c/file": CONTENT}
    download([f"{server.address}/{mirror}/file" for mirror in "abc"], cache / "file", check)
    assert server.asked == ["/a/file", "/b/file"]
    assert (cache / "file").read_bytes() == CONTENT


def test_an_interrupted_download_leaves_nothing(server, cache, monkeypatch):
    server.answers["/file"] = CONTENT

    def interrupt(*arguments, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("rich.progress.Progress.update", interrupt)
    with pytest.raises(KeyboardInterrupt):
        download([server.address + "/file"], cache / "file", check)
    assert leftovers(cache) == []


def test_an_endless_answer_is_cut_short(server, monkeypatch):
    monkeypatch.setattr(module, "LARGEST", 100_000)
    server.answers["/file"] = without_length
    with pytest.raises(DataError, match="more than 100000 bytes"):
        fetch(server.address + "/file")


@pytest.mark.slow
def test_a_slow_drip_is_given_up(server, cache, monkeypatch):
    """A byte now and then keeps every timeout of a socket from expiring, in the body and in the headers."""
    done = threading.Event()

    def drip(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        while not done.wait(0.02):
            handler.wfile.write(b"x")

    def drip_headers(handler):
        handler.wfile.write(b"HTTP/1.0 200 OK\r\nX-Long: ")
        while not done.wait(0.02):
            handler.wfile.write(b"x")

    monkeypatch.setattr(module, "DEADLINE_SECONDS", 0.2)
    server.answers |= {"/a": drip, "/b": drip_headers, "/c": CONTENT}
    try:
        download([server.address + "/a", server.address + "/b", server.address + "/c"], cache / "file", check)
        assert server.asked == ["/a", "/b", "/c"]
        with pytest.raises(
            DataError, match=r"/a: gave up after 0\.2 seconds, with \d+ bytes .*/b: gave up .* 0 bytes"
        ):
            download([server.address + "/a", server.address + "/b"], cache / "other", check)
    finally:
        done.set()
    assert leftovers(cache) == [cache / "file"]


def test_a_cache_that_cannot_be_written(server, tmp_path):
    server.answers["/file"] = CONTENT
    (tmp_path / "occupied").write_text("a file where the folder should be")
    with pytest.raises(DataError, match=r"cannot be written .* set BILEVEL_CACHE"):
        download([server.address + "/file"], tmp_path / "occupied" / "file", check)


def test_nobody_answers(server):
    dead = server.address.rsplit(":", 1)[0] + ":1"
    with pytest.raises(DataError, match="cannot be fetched"):
        fetch(dead + "/file")


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/file", "file:///etc/hostname", "ftp://127.0.0.1:1/file"])
def test_only_https_is_spoken(url):
    with pytest.raises(DataError, match="unknown url type"):
        fetch(url)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with")
def test_https_end_to_end(server, cache, monkeypatch, tmp_path):
    """The real opener against a server with a certificate: trusted it works, untrusted or redirected it does not."""
    monkeypatch.setattr(module, "https_only", REAL_OPENER)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    options = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=127.0.0.1"
    command = f"openssl req -x509 {options} -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        [*command.split(), "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.listening.socket = context.wrap_socket(server.listening.socket, server_side=True)
    address = server.address.replace("http:", "https:")

    def redirect_to_http(handler):
        handler.send_response(302)
        handler.send_header("Location", server.address + "/file")
        handler.end_headers()

    server.answers |= {"/file": CONTENT, "/moved": redirect_to_http}
    with pytest.raises(DataError, match="certificate verify failed"):
        download([address + "/file"], cache / "file", check)
    assert leftovers(cache) == []
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with pytest.raises(DataError, match="unknown url type: http"):
        download([address + "/moved"], cache / "file", check)
    download([address + "/file"], cache / "file", check)
    assert (cache / "file").read_bytes() == CONTENT
