"""A page in a real browser: opened offline, watched for errors and requests, and asked what it shows."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page, Route

CHROMIUM = os.environ.get("SINKSCOPE_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
    "--disable-component-update", "--disable-default-apps", "--disable-sync", "--no-first-run",
    "--force-color-profile=srgb",
]  # fmt: skip
LOCAL = ("file:", "data:", "blob:", "about:")
COMPLETE = ".statistics[data-complete=true]"
WIDE, NARROW = (1440, 900), (390, 844)


@contextmanager
def browser() -> Iterator["Browser"]:
    """Debian's Chromium. Skips the test where it, or playwright, is not installed."""
    api = pytest.importorskip("playwright.sync_api", reason="browser tests need playwright: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("browser tests need chromium: apt-get install chromium, or name one in SINKSCOPE_CHROMIUM")
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield running
        running.close()


@dataclass
class Visit:
    """One window of the browser. `problems`: errors and warnings of its console, and requests to any host."""

    page: "Page"
    problems: list[str] = field(default_factory=list)

    def open(self, file: Path, view: str = "", *, at_mean: bool = True) -> None:
        """Open a report at this view, and wait until all of it is worked out.

        at_mean: at the mean over layers and heads where the view names none, not where the page would open.
        """
        words = [word for word in view.split("&") if word]
        for name, second in (("layer", False), ("layer2", True)):
            wanted = at_mean and (not second or "trace2=" in view)
            if wanted and not any(word.startswith((f"{name}=", name.replace("layer", "head") + "=")) for word in words):
                words.append(f"{name}=mean")
        self.page.goto(f"{file.as_uri()}#{'&'.join(words)}")
        self.settle()

    def settle(self) -> None:
        """Wait until the page has drawn what was last done to it, and every pane shows all its steps."""
        self.frames()
        self.page.wait_for_selector(COMPLETE)
        self.page.wait_for_function("() => !document.querySelector('.statistics:not([data-complete=true])')")
        self.frames()

    def frames(self, count: int = 2) -> None:
        """Let the page draw."""
        self.page.evaluate(
            "async (count) => { for (let i = 0; i < count; i++) await new Promise(requestAnimationFrame); }", count
        )

    def numbers(self, pane: int = 0) -> dict[str, str]:
        """What the statistics of a pane carry for machines: sinks, stepSinks, complete."""
        found: dict[str, str] = self.page.locator(".statistics").nth(pane).evaluate("(list) => ({ ...list.dataset })")
        return found

    def sinks(self, pane: int = 0) -> int:
        """Number of sinks over all steps, layers and heads that are chosen."""
        return int(self.numbers(pane)["sinks"])

    def texts(self, pane: int = 0) -> list[str]:
        """Texts of the canvas, a cell each."""
        return self.page.locator(".tokens").nth(pane).locator("li[role=option] bdi").all_text_contents()

    def cells(self, name: str, pane: int = 0) -> list[int]:
        """Positions of the cells of this class."""
        classes = self.page.locator(".tokens").nth(pane).locator("li[role=option]")
        every: list[list[str]] = classes.evaluate_all("(cells) => cells.map((cell) => [...cell.classList])")
        return [position for position, names in enumerate(every) if name in names]

    def step_to(self, step: int) -> None:
        """Move the slider."""
        self.page.locator("#step").fill(str(step))
        self.frames()

    def step(self) -> int:
        """The step that the slider is at."""
        return int(self.page.locator("#step").input_value())

    def view(self) -> str:
        """The view in the address, once it is written."""
        self.page.wait_for_timeout(400)
        return str(self.page.evaluate("() => location.hash.slice(1)"))

    def tip(self) -> str:
        """Text of the tip, lines parted by spaces; empty where there is none."""
        tip = self.page.locator("#tip")
        return " | ".join(tip.locator("> *").all_text_contents()) if tip.is_visible() else ""


@contextmanager
def visiting(running: "Browser", size: tuple[int, int] = WIDE, **options: Any) -> Iterator[Visit]:
    """A fresh window; at the end there must have been no problem."""
    context = running.new_context(viewport={"width": size[0], "height": size[1]}, accept_downloads=True, **options)
    context.set_default_timeout(60_000)
    visit = Visit(context.new_page())
    _watch(context, visit)
    yield visit
    context.close()
    assert visit.problems == []


def _watch(context: "BrowserContext", visit: Visit) -> None:
    def refuse(route: "Route") -> None:
        if route.request.url.startswith(LOCAL):
            route.continue_()
            return
        visit.problems.append(f"request to {route.request.url}")
        route.abort()

    context.route("**/*", refuse)
    visit.page.on("pageerror", lambda error: visit.problems.append(f"error: {error}"))
    visit.page.on("console", lambda message: visit.problems.append(f"console: {message.type} {message.text}"))
