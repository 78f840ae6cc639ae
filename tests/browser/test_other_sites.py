"""A page of another site, in a real browser, cannot use the daemons that the browser can reach."""

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest
from browsers import browser

from daemons import Fleet

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

POST = """async (url) => { await fetch(url, {method: "POST", mode: "no-cors", body: "x"}); }"""
READ = """async (url) => { try { return (await fetch(url)).status } catch (error) { return String(error) } }"""


@pytest.fixture(scope="module")
def rebinding_browser() -> Iterator["Browser"]:
    """Run a browser that resolves evil.example to this machine, as an attacker's DNS server can."""
    with browser("--host-resolver-rules=MAP evil.example 127.0.0.1") as running:
        yield running


@pytest.fixture
def evil_port() -> Iterator[int]:
    """Serve a page of another site; return the port."""

    class OnePage(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>evil</title>")

        def log_message(self, *_arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), OnePage)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def evil_page(rebinding_browser: "Browser", evil_port: int) -> Iterator["Page"]:
    context = rebinding_browser.new_context()
    page = context.new_page()
    page.goto(f"http://evil.example:{evil_port}/")
    yield page
    context.close()


def test_a_page_of_another_site_changes_nothing(fleet: Fleet, evil_page: "Page") -> None:
    guarded, as_go = fleet.nsqd("nsqx"), fleet.nsqd("nsqx", "--http-browser-checks=false")
    lookupd = fleet.nsqlookupd("nsqx")
    for daemon in (guarded, as_go, lookupd):
        evil_page.evaluate(POST, f"http://{daemon.http_address}/topic/create?topic=forged")
    assert guarded.stats()["topics"] == []
    assert lookupd.request("GET", "/topics").json() == {"topics": []}
    assert [topic["topic_name"] for topic in as_go.stats()["topics"]] == ["forged"]  # the browser did send the request


def test_a_name_rebound_to_a_daemon_reads_and_changes_nothing(fleet: Fleet, rebinding_browser: "Browser") -> None:
    nsqd, as_go = fleet.nsqd("nsqx"), fleet.nsqd("nsqx", "--http-browser-checks=false")
    admin = fleet.nsqadmin("nsqx", f"--nsqd-http-address={nsqd.http_address}")
    context = rebinding_browser.new_context()
    for daemon, target, status in ((nsqd, "/stats", 403), (admin, "/api/topics", 403), (as_go, "/stats", 200)):
        page = context.new_page()
        page.goto(f"http://evil.example:{daemon.http_port}/ping")
        assert page.evaluate(READ, f"http://evil.example:{daemon.http_port}{target}") == status
    context.close()
