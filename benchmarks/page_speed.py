"""How fast the interactive page loads and moves in Chromium, for a trace of LLaDA-8B's counts and for a twin's.

    python benchmarks/page_speed.py
    python benchmarks/page_speed.py --runs 5 --steps 64

The large trace is the "calm" one of `page_size.py`: 128 steps, 32 layers x 32 heads, 165 positions. Printed are medians
over the runs, in milliseconds:

- first view: from the start of the navigation until the canvas of the first step is drawn, and the processor time that
  the page's main thread has worked by then;
- complete: until all steps are worked out, that is, all charts, counts and tables;
- a frame: from a move of the slider until the browser has drawn, the median and the 95th percentile over all steps;
- busy: processor time of the page's main thread for such a move, which other work on the machine does not disturb;
- epsilon: from another epsilon until all counts and tables have followed.

Of the same trace from a server (`sinkscope view`): milliseconds for a step over a connection that stays open, median
over all steps, read anew and kept; and how many of 1,000 requests over 200 connections at once had no answer within a
second of waiting for one.

`--served` measures the page of a served trace instead, where it opens and at the mean over all layers and heads: until
its first view; work of its main thread for each step until all are worked out, and for a move of the slider. A step
that is fetched takes the server's milliseconds besides.

    python benchmarks/page_speed.py --served --steps 128 --positions 1024

Where it misleads: a browser without a screen and without a graphics card paints on the processor; a desktop's is
faster.
"""

import argparse
import http.client
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread

from page_size import ask, served, twins, write_trace
from playwright.sync_api import Browser, Page, sync_playwright
from rich.console import Console
from rich.table import Table

from sinkscope.report.page import Live, PageServer, choose, read_template, write_report
from sinkscope.trace import Counts

FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
COMPLETE = ".statistics[data-complete=true]"
_DRAWN = "await new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn)));"
_MOVES = f"""async () => {{
  const slider = document.getElementById('step');
  const times = [];
  for (let step = 0; step <= Number(slider.max); step++) {{
    const start = performance.now();
    slider.value = step;
    slider.dispatchEvent(new Event('input'));
    {_DRAWN}
    times.push(performance.now() - start);
  }}
  return times;
}}"""


@dataclass(frozen=True)
class Run:
    """Milliseconds of one run."""

    first: float
    first_busy: float
    complete: float
    frame: float
    slow_frame: float
    busy: float
    epsilon: float


def measure(browser: Browser, report: Path) -> Run:
    """One run in a fresh window."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    thread = main_thread(page)
    start = time.perf_counter()
    page.goto(report.as_uri())
    page.wait_for_selector(".tokens li.word")
    first, first_busy = 1000 * (time.perf_counter() - start), 1000 * thread()
    page.wait_for_selector(COMPLETE)
    complete = 1000 * (time.perf_counter() - start)
    before = thread()
    frames = sorted(page.evaluate(_MOVES))
    busy = 1000 * (thread() - before) / len(frames)
    start = time.perf_counter()
    page.locator("#setting").fill("2")
    page.evaluate(f"async () => {{ {_DRAWN} }}")
    page.wait_for_selector(COMPLETE)
    epsilon = 1000 * (time.perf_counter() - start)
    page.close()
    return Run(first, first_busy, complete, median(frames), frames[int(0.95 * (len(frames) - 1))], busy, epsilon)


def main_thread(page: Page) -> Callable[[], float]:
    """Gives the seconds that the page's main thread has worked so far."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})

    def seconds() -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration"))

    return seconds


def serve(trace: Path) -> tuple[float, float, int]:
    """Milliseconds a step, read anew and kept, and time-outs of 1,000 requests over 200 connections."""
    template = read_template()
    with PageServer(Live(lambda: choose([trace])[0], template), template) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        port = int(server.server_address[1])
        received = f"{server.root}data/0/0/received"

        def visit(_: int) -> int:
            late = 0
            for _ in range(5):
                one = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
                try:
                    ask(one, f"{received}/0")
                except TimeoutError:
                    late += 1
                one.close()
            return late

        with ThreadPoolExecutor(200) as visitors:
            late = sum(visitors.map(visit, range(200)))
        server.shutdown()
    return (*served(trace), late)


def served_page(browser: Browser, trace: Path, steps: int) -> Table:
    """Milliseconds of the page of a served trace: until its first view, at work a step until complete, and a move."""
    table = Table("opened at", "first view", "at work a step, all worked out", "frame", "95 %", "at work a move")
    template = read_template()
    with PageServer(Live(lambda: choose([trace])[0], template), template) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        for name, view in (("its sinks", ""), ("the mean", "#layer=mean")):
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            thread = main_thread(page)
            start = time.perf_counter()
            page.goto(server.url + view)
            page.wait_for_selector(".tokens li.word")
            first = 1000 * (time.perf_counter() - start)
            page.wait_for_selector(COMPLETE, timeout=600_000)
            complete, before = 1000 * thread() / steps, thread()
            frames = sorted(page.evaluate(_MOVES))
            busy = 1000 * (thread() - before) / len(frames)
            numbers = (first, complete, median(frames), frames[int(0.95 * (len(frames) - 1))], busy)
            table.add_row(name, *(f"{number:.0f}" for number in numbers))
            page.close()
        server.shutdown()
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 128), ("layers", 32), ("heads", 32), ("positions", 165), ("runs", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--served", action="store_true", help="the page of a served trace instead")
    parser.add_argument("--chromium", default=shutil.which("chromium"), help="the browser; Debian's if left out")
    arguments = parser.parse_args()
    counts = Counts(
        max_steps=arguments.steps, layers=arguments.layers, heads=arguments.heads, kv_heads=arguments.heads,
        positions=arguments.positions,
    )  # fmt: skip
    table = Table("trace", "report, MB", "first view", "busy", "complete", "frame", "95 %", "busy", "epsilon")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        write_trace(folder / "calm", "calm", counts)
        anew, kept, late = serve(folder / "calm")
        browser = playwright.chromium.launch(executable_path=arguments.chromium, args=FLAGS)
        if arguments.served:
            Console(width=110).print(served_page(browser, folder / "calm", arguments.steps))
            print(f"the server: {anew:.1f} ms a step, {kept:.1f} ms one that is kept")
            browser.close()
            return
        for trace in [folder / "calm", *twins(folder)]:
            written = write_report(choose([trace])[0], folder / f"{trace.name}.html", most_megabytes=1000)
            runs = [measure(browser, written.file) for _ in range(arguments.runs)]
            names = ("first", "first_busy", "complete", "frame", "slow_frame", "busy", "epsilon")
            medians = [f"{median(getattr(run, name) for run in runs):.0f}" for name in names]
            table.add_row(trace.name, f"{written.size / 1e6:.2f}", *medians)
        browser.close()
    Console(width=110).print(table)
    print(f"served: {anew:.1f} ms a step, {kept:.1f} ms one that is kept, {late} of 1000 requests timed out")


if __name__ == "__main__":
    main()
