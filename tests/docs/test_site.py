"""The built documentation in a browser: `make site-test` installs what this needs but Chromium."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SITE = Path(__file__).parents[2] / "docs/_build/html"
PAGES = sorted(str(path.relative_to(SITE)) for path in SITE.rglob("*.html") if path.is_file())
PAGES = [page for page in PAGES if not page.startswith(("_modules", "genindex", "search"))]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# No sandbox, so that root can start it; nothing that a browser does in the background.
SWITCHES = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync"]
WIDTHS = {"desktop": 1280, "phone": 390}
GRAVE = ("serious", "critical")

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
    pytest.mark.skipif(not PAGES, reason="the documentation is not built: make docs"),
]


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Say nothing of each request."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address at which the built pages are served."""
    handler = functools.partial(_Quiet, directory=str(SITE))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, address: str) -> Iterator[Any]:
    """A function that opens a page at a width; what the page reports as an error fails the test."""
    errors: list[str] = []
    contexts = []

    def opened(page: str, width: str = "desktop", **options: Any) -> Any:
        size = {"width": WIDTHS[width], "height": 900}
        contexts.append(browser.new_context(viewport=size, **options))
        tab = contexts[-1].new_page()
        tab.set_default_timeout(120_000)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("response", lambda answer: answer.status < 400 or errors.append(answer.url))
        own = (address, "data:")  # nothing is loaded from elsewhere
        tab.on("request", lambda sent: sent.url.startswith(own) or errors.append(sent.url))
        tab.goto(address + page)
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert not errors


@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_fits_its_width_and_shows_its_images(open_page: Any, width: str) -> None:
    tab = open_page(PAGES[0], width)
    root = tab.url.removesuffix(PAGES[0])
    for page in PAGES:
        tab.goto(root + page)
        assert tab.locator("h1").count() == 1, page
        wider = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not tab.evaluate(wider), page
        broken = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        assert tab.evaluate(broken) == [], page


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("page", ["index.html", "quickstart.html", "planners.html", "api.html"])
def test_no_serious_fault_for_those_who_use_a_keyboard_or_a_screen_reader(
    open_page: Any, page: str, width: str
) -> None:
    found = axe.Axe().run(open_page(page, width)).response["violations"]
    serious = [(each["id"], each["nodes"]) for each in found if each["impact"] in GRAVE]
    assert serious == []


def test_the_cards_of_the_first_page_lead_on(open_page: Any) -> None:
    tab = open_page("index.html")
    cards = tab.locator("a.sd-stretched-link").evaluate_all("links => links.map(a => a.href)")
    assert len(cards) >= 6
    for card in cards:
        tab.goto(card)
        assert tab.locator("h1").count() == 1


def test_the_navigation_of_a_phone_opens_and_leads_on(open_page: Any) -> None:
    tab = open_page("index.html", "phone")
    link = tab.locator(".sidebar-tree a", has_text="Quickstart").first
    assert not link.is_visible() or link.bounding_box()["x"] < 0
    tab.locator("label[for=__navigation]:visible").first.click()
    link.click()
    tab.wait_for_url("**/quickstart.html")
    assert tab.locator("h1").inner_text().startswith("Quickstart")


def test_the_search_finds_a_method(open_page: Any) -> None:
    tab = open_page("index.html")
    tab.fill("input[name=q]", "step_batch")
    tab.press("input[name=q]", "Enter")
    found = tab.locator("ul.search li a")
    found.first.wait_for()
    assert any("api.html" in link for link in found.evaluate_all("all => all.map(a => a.href)"))
    found.first.click()
    tab.wait_for_url(lambda url: "search.html" not in url)
    assert "step_batch" in tab.locator("article").inner_text()


def test_a_reader_can_choose_dark_colours(open_page: Any) -> None:
    tab = open_page("index.html", color_scheme="light")
    light = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.locator("button.theme-toggle:visible").first.click()
    dark = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark


def test_copied_examples_have_no_prompts(open_page: Any) -> None:
    tab = open_page("api.html", permissions=["clipboard-read", "clipboard-write"])
    example = tab.locator("div.highlight", has_text=">>> ").first
    example.hover()
    example.locator("button.copybtn").click()
    tab.wait_for_function("navigator.clipboard.readText().then(text => text.length > 0)")
    copied = tab.evaluate("navigator.clipboard.readText()")
    assert "import" in copied or "=" in copied
    assert ">>>" not in copied
