"""Measures nsqadmin's page with a large cluster: 100 simulated nsqds with 1,000 topics each, opened in Chromium.

    python tests/browser/measure_page.py [--nodes 100] [--topics 1000] [--rounds 5]

The simulated nsqds are those of tests/bench/bench_nsqadmin.py. Prints the time from the request until the topics are
visible, the time from a key or click until its result is visible, the processing time of one poll, and the memory of
the page. Asserts nothing.
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "bench"))

from bench_nsqadmin import serve
from browsers import browser, view, what_is_missing

from daemons import Daemon, Fleet, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Runs in the page: performs an action and returns the milliseconds until its result is visible.
UNTIL_SHOWN = """async ([act, isShown]) => {
  const started = performance.now();
  eval(act);
  while (!eval(isShown)) await new Promise(requestAnimationFrame);
  await new Promise(requestAnimationFrame);
  return performance.now() - started;
}"""

COUNT_WORK = """() => { window.busy = []; new PerformanceObserver((list) => window.busy.push(
  ...list.getEntries().map((entry) => entry.duration))).observe({type: 'longtask', buffered: false}); }"""

SEARCH = """{ const input = document.querySelector('[data-search]'); input.value = '%s';
  input.dispatchEvent(new InputEvent('input', {bubbles: true})); }"""
ROWS = "document.querySelectorAll('[data-index]').length"
FOUND = "document.querySelector('.found').textContent.trim()"

INTERACTIONS = {
    "search, 11 of 1,000 found": (SEARCH % "topic.number.99", f"{FOUND}.startsWith('11 of')"),
    "search cleared": (SEARCH % "", f"!{FOUND}.includes(' of ')"),
    "sort by rate": (
        "[...document.querySelectorAll('[role=columnheader] button')][1].click()",
        "document.querySelectorAll('[role=columnheader]')[2].ariaSort === 'descending'",
    ),
    "scroll to the end": (
        "scrollTo(0, document.body.scrollHeight)",
        "[...document.querySelectorAll('[data-index]')].some((row) => row.dataset.index === LAST)",
    ),
    "open a topic": (
        "document.querySelector('[data-index]').click()",
        "document.querySelector('figure[data-points]:not([data-points=\"0\"]) canvas')",
    ),
    "back to the topics": ("history.back()", ROWS + " > 10"),
}


def print_times(name: str, values: list[float]) -> None:
    print(f"{name}: {statistics.median(values):.0f} ms (at most {max(values):.0f})", flush=True)


def load(chromium: "Browser", address: str, rounds: int) -> None:
    times = []
    for _ in range(rounds):
        context = chromium.new_context(**view())
        page = context.new_page()
        started = time.perf_counter()
        page.goto(address, wait_until="commit")
        page.locator("[data-index]").nth(10).wait_for()
        times.append((time.perf_counter() - started) * 1000)
        context.close()
    print_times("from the request to visible topics", times)


def interact(page: "Page", rounds: int, last: int) -> None:
    for name, (act, is_shown) in INTERACTIONS.items():
        values = []
        for _ in range(rounds if "open" not in name and "back" not in name else 1):
            if name.startswith("scroll"):
                page.evaluate("scrollTo(0, 0)")
            values.append(page.evaluate(UNTIL_SHOWN, [act, is_shown.replace("LAST", f"'{last}'")]))
        print_times(name, values)


def follow(page: "Page", polls: int, number: Callable[[], int]) -> None:
    page.evaluate(COUNT_WORK)
    started = number()
    wait_until(lambda: number() >= started + polls, "polls", 120)
    busy: list[float] = page.evaluate("window.busy")
    print_times(f"longest tasks over {polls} polls ({len(busy)} above 50 ms)", busy or [0.0])
    heap: int = page.evaluate("performance.memory.usedJSHeapSize")
    print(f"JavaScript memory: {heap / 1e6:.0f} MB; elements: {page.evaluate('document.querySelectorAll(`*`).length')}")


def measure(admin: Daemon, arguments: argparse.Namespace) -> None:
    def number() -> int:
        polls: int = admin.request("GET", "/api/health").json()["number"]
        return polls

    wait_until(lambda: number() >= 2, "two polls", 120)
    address = f"http://{admin.http_address}/topics"
    with browser() as chromium:
        load(chromium, address, arguments.rounds)
        # The script of the measurement is not part of the page: bypass the content security policy.
        context = chromium.new_context(**view(bypass_csp=True))
        page = context.new_page()
        page.goto(address)
        page.locator("[data-index]").nth(10).wait_for()
        interact(page, arguments.rounds, arguments.topics - 1)
        page.goto(address)
        page.locator("[data-index]").nth(10).wait_for()
        follow(page, 5, number)
        context.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    if missing := what_is_missing():
        print(missing, file=sys.stderr)
        return 1
    ours, theirs = multiprocessing.Pipe()
    wanted = (arguments.nodes, arguments.topics, 1)
    nsqds = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, *wanted))
    nsqds.start()
    fleet = Fleet()
    try:
        ports, size = ours.recv()
        print(f"{arguments.nodes} nsqd, /stats of {size / 1e3:.0f} kB each")
        measure(fleet.nsqadmin("nsqx", *[f"--nsqd-http-address=127.0.0.1:{port}" for port in ports]), arguments)
    finally:
        fleet.close()
        ours.send(None)
        nsqds.join()
    return 0


if __name__ == "__main__":
    sys.exit(main())
