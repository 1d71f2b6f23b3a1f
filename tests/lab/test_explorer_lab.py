"""The explorer as a person meets it: in JupyterLab, with mouse and keyboard, light and dark."""

import time

import pytest

NAME = "00_explorer"


def shown(page) -> str:
    return page.locator(".widget-html").first.inner_text()


def changed(page, before: str, limit_s: float = 10) -> str:
    limit = time.monotonic() + limit_s
    while shown(page) == before:
        assert time.monotonic() < limit, "the answer did not follow"
        time.sleep(0.02)
    return shown(page)


@pytest.mark.parametrize("theme", ["JupyterLab Light", "JupyterLab Dark"])
def test_the_numbers_follow_the_sliders_by_keyboard_too(lab, opened, shots, theme):
    page = opened(lab(theme), NAME, height=2300)
    page.wait_for_selector(".widget-html svg")
    first = shown(page)
    assert "over serial" in first

    size = page.locator(".widget-hslider:visible .noUi-handle").last
    size.focus()
    page.keyboard.press("ArrowRight")
    second = changed(page, first)
    assert "over serial" in second

    page.get_by_label("collective", exact=True).select_option("all-to-all")
    third = changed(page, second)
    page.get_by_label("layer", exact=True).select_option("70b-gateup")
    fourth = changed(page, third)
    page.locator(".widget-hslider:visible .noUi-handle").first.focus()
    page.keyboard.press("PageUp")
    changed(page, fourth)
    box = page.locator(".widget-html").first.bounding_box()
    assert box["y"] + box["height"] < 2300, "the picture would not hold all of it"
    page.screenshot(path=shots / f"{NAME}-{theme.split()[-1].lower()}.png")
    # Text must stand out from the page whatever the theme.
    ink, paper = page.evaluate(
        "[getComputedStyle(document.querySelector('.widget-html svg text')).fill,"
        " getComputedStyle(document.querySelector('.jp-Notebook')).backgroundColor]"
    )
    assert abs(luminance(ink) - luminance(paper)) > 0.4, (ink, paper)


def luminance(colour: str) -> float:
    parts = [float(part) for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return (0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]) / 255
