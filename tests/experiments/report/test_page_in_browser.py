"""Reports in a browser, on a phone and on a desktop, in light and dark colours."""

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from jaxagents.experiments.report.page import write_report
from tests.browser import CHROMIUM, Browser
from tests.reported import write_run

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

PHONE, DESKTOP = (390, 844), (1280, 900)
WINDOWS = [(*PHONE, "light"), (*PHONE, "dark"), (*DESKTOP, "light"), (*DESKTOP, "dark")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """A report with long names and wide tables."""
    folder = tmp_path_factory.mktemp("browser")
    name = "a_name_of_a_run_that_is_much_too_long_for_a_phone_to_show_in_one_line"
    runs = [
        write_run(folder / f"{name}-{i}", name=name, seed=i, mean=(-19.0, -18.0, -17.0))
        for i in range(2)
    ]
    other = write_run(folder / "other", name="other", agent={"recurrent": "gru"})
    return write_report([*runs, other], folder / "report.html", replay=False)


def luminance(colour: str) -> float:
    """Return WCAG 2.2's relative luminance of a colour such as "rgb(0, 0, 0)"."""
    channels = [int(each) / 255 for each in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first: str, second: str) -> float:
    """Return WCAG 2.2's contrast ratio of two colours."""
    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("width", "height", "scheme"), WINDOWS)
def test_the_page_fits_the_window_and_loads_without_errors(
    browser, page, tmp_path, width, height, scheme
):
    browser.open(page, width, height, scheme)
    assert browser.problems == []
    assert [each for each in browser.requested if not each.startswith("data:")] == [page.as_uri()]
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    browser.screenshot(tmp_path / "page.png")
    picture = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (2 * width, 2 * height)


@pytest.mark.parametrize(("width", "height"), [PHONE, DESKTOP])
def test_every_section_is_visible(browser, page, width, height):
    browser.open(page, width, height)
    titles = browser.evaluate("[...document.querySelectorAll('h2')].map(each => each.innerText)")
    assert titles == [
        "Learning curves",
        "Evaluation",
        "Episode",
        "Training",
        "Configuration",
        "How to reproduce",
    ]
    sizes = "[...document.images].map(each => [each.naturalWidth, each.clientWidth])"
    drawn = browser.evaluate(sizes)
    assert len(drawn) == 2
    # No plot is shrunk so far that its text becomes illegible.
    assert all(natural > 0 and shown > 0.6 * natural for natural, shown in drawn)
    assert not browser.evaluate("document.querySelector('details').open")
    folded = "document.querySelector('details pre').checkVisibility()"
    assert browser.evaluate(folded) is False
    browser.evaluate("document.querySelector('summary').click()")
    assert browser.evaluate(folded) is True


def test_wide_content_scrolls_in_its_box_on_a_phone(browser, page):
    browser.open(page, *PHONE)
    wide = browser.evaluate(
        "[...document.querySelectorAll('.box')].filter(e => e.scrollWidth > e.clientWidth).length"
    )
    assert wide > 0
    beyond = browser.evaluate(
        "[...document.querySelectorAll('main *')].filter(e => !e.closest('.box, pre') &&"
        " e.getBoundingClientRect().right > innerWidth).map(e => e.outerHTML.slice(0, 80))"
    )
    assert beyond == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_contrasts_with_the_background(browser, page, scheme):
    browser.open(page, *PHONE, scheme)
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(background) > 0.5) == (scheme == "light")
    for selector in ("body", "figcaption", ".faint", "summary", "thead th", "footer"):
        colour = f"getComputedStyle(document.querySelector('{selector}')).color"
        assert contrast(browser.evaluate(colour), background) > 4.5, selector


def test_plots_are_inverted_in_dark_mode(browser, page):
    filters = "[...document.querySelectorAll('.drawn')].map(e => getComputedStyle(e).filter)"
    browser.open(page, *DESKTOP, "light")
    assert set(browser.evaluate(filters)) == {"none"}
    browser.open(page, *DESKTOP, "dark")
    assert all("invert" in each for each in browser.evaluate(filters))
