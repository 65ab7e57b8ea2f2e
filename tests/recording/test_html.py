"""The exported page in a real headless Chromium: it opens, zooms, pans, shows details and finds names, offline."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from sgtop_core.export import html
from sgtop_core.export.build import build, gather
from sgtop_core.export.timeline import Mark, Timeline

from tests.recording import recordings

WAIT_S = 30


def a_timeline(ranks: int = 2, seconds: float = 2.0, steps_per_s: int = 100) -> Timeline:
    entries = recordings.entries(ranks, seconds, steps_per_s=steps_per_s)
    lo, hi = entries[0].mono_ns, entries[-1].mono_ns
    mark = Mark(lo + 700_000_000, "TP0", "warning", "decode runs eager", "bs 67 > 32")
    return build(gather(entries), lo=lo, hi=hi, marks=[mark], title="</script> %%BLOB%% <b>test</b>")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (chromium and driver):
        assert not os.environ.get("CI"), ".ci/run installs chromium and chromium-driver"
        pytest.skip("needs a browser: apt-get install chromium chromium-driver")
    o = Options()
    o.binary_location = chromium
    for arg in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                "--disable-background-networking", "--disable-component-update", "--disable-sync",
                "--disable-dev-shm-usage", "--window-size=1500,950",
                f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):  # fmt: skip
        o.add_argument(arg)
    o.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with webdriver.Chrome(options=o, service=Service(driver)) as d:
        yield d


class Page:
    def __init__(self, driver: webdriver.Chrome, path: Path, timeline: Timeline) -> None:
        self.d = driver
        with path.open("w", encoding="utf-8") as f:
            html.write(timeline, f)
        driver.get_log("performance")  # what was loaded before this page
        driver.get(path.as_uri())
        WebDriverWait(driver, WAIT_S).until(lambda d: self.js("return document.body.dataset.ready") is not None)

    def js(self, script: str, *args: Any) -> Any:
        return self.d.execute_script(script, *args)

    def view(self) -> tuple[float, float]:
        lo, hi = self.js("return sgtop.view()")
        return lo, hi

    def frame(self) -> None:
        """Until what was asked for is painted."""
        self.d.execute_async_script(
            "const f = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => f()))"
        )

    def over(self, area: str) -> Any:
        return self.d.find_element(By.CSS_SELECTOR, f"#{area} .u-over")

    def at(self, area: str, row: str, t_ns: float) -> tuple[int, int]:
        """Offset of a moment in a row from the middle of its area, as ActionChains wants it."""
        x, y = self.js(
            """const [area, title, t] = arguments;
            const u = sgtop.plots.find((p) => p.rows && p.rows[0].area === area);
            const i = u.rows.findIndex((r) => `${r.group} ${r.title}` === title);
            const h = u.over.clientHeight / u.rows.length;
            return [u.valToPos(t / 1e9, "x") - u.over.clientWidth / 2, (i + 0.5) * h - u.over.clientHeight / 2]""",
            area, row, t_ns,
        )  # fmt: skip
        return round(x), round(y)

    def middle_of(self, area: str, row: str, index: int) -> float:
        t: float = self.js(
            """const [area, title, i] = arguments;
            const row = sgtop.state.model.rows.find((r) => r.area === area && `${r.group} ${r.title}` === title);
            return row.t0[i] + row.len[i] / 2""",
            area, row, index,
        )  # fmt: skip
        return t

    def details(self) -> dict[str, str]:
        box = self.d.find_element(By.ID, "details")
        if not box.is_displayed():
            return {}
        keys = [e.text for e in box.find_elements(By.TAG_NAME, "dt")]
        values = [e.text for e in box.find_elements(By.TAG_NAME, "dd")]
        return {"name": box.find_element(By.TAG_NAME, "h2").text, **dict(zip(keys, values, strict=True))}


@pytest.fixture
def page(browser: webdriver.Chrome, tmp_path: Path) -> Page:
    return Page(browser, tmp_path / "x.html", a_timeline())


def test_opens_offline_without_a_complaint(page: Page) -> None:
    assert page.d.find_element(By.TAG_NAME, "h1").text == "</script> %%BLOB%% <b>test</b>"
    areas = page.js("return [...document.querySelectorAll('main > section')].map((s) => s.id)")
    assert areas == ["gpu", "cpu", "counters"]
    assert page.d.get_log("browser") == []
    asked = [m["message"] for m in page.d.get_log("performance") if "requestWillBeSent" in m["message"]]
    assert asked, "the page's own request is seen"
    assert not [m for m in asked if '"url":"http' in m], "nothing comes from the network"
    assert page.js("return document.body.dataset.failed") is None


def test_the_three_areas_are_aligned(page: Page) -> None:
    edges = page.js(
        "return sgtop.plots.map((u) => { const r = u.over.getBoundingClientRect(); return [r.left, r.width] })"
    )
    assert len(edges) >= 3
    assert all(e == pytest.approx(edges[0], abs=1) for e in edges)


def test_something_is_drawn(page: Page) -> None:
    """Each row of the first area has pixels of its spans' colours."""
    blue = page.js(
        """const u = sgtop.plots[0], k = devicePixelRatio;
        const d = u.ctx.getImageData(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height / u.rows.length).data;
        let n = 0; for (let i = 0; i < d.length; i += 4) if (d[i + 2] > d[i] + 60) n++; return n / (d.length / 4)"""
    )
    assert blue > 0.3


def test_wheel_zooms_where_the_pointer_is(page: Page) -> None:
    over = page.over("gpu")
    at = page.at("gpu", "TP0 forwards (GPU)", 1.5e9)
    before = page.view()
    ActionChains(page.d).scroll_from_origin(ScrollOrigin.from_element(over, *at), 0, -600).perform()
    page.frame()
    lo, hi = page.view()
    assert hi - lo < 0.5 * (before[1] - before[0])
    assert (1.5 - lo) / (hi - lo) == pytest.approx(1.5 / before[1], abs=0.02)
    starts = page.js("return sgtop.plots.map((u) => u.scales.x.min)")
    assert set(starts) == {lo}, "all areas show the same time"


def test_drag_pans_shift_drag_zooms_into_double_click_shows_all(page: Page) -> None:
    over = page.over("cpu")
    page.js("sgtop.show(0.5, 1.0)")
    page.frame()
    ActionChains(page.d).move_to_element(over).click_and_hold().move_by_offset(-200, 0).release().perform()
    page.frame()
    lo, hi = page.view()
    assert hi - lo == pytest.approx(0.5)
    assert lo == pytest.approx(0.5 + 0.5 * 200 / over.size["width"], abs=0.01)
    drag = ActionChains(page.d).key_down(Keys.SHIFT).move_to_element(over).click_and_hold().move_by_offset(130, 0)
    drag.release().key_up(Keys.SHIFT).perform()
    page.frame()
    a, b = page.view()
    assert b - a == pytest.approx(0.5 * 130 / over.size["width"], rel=0.1)
    assert a == pytest.approx((lo + hi) / 2, abs=0.01)
    ActionChains(page.d).double_click(over).perform()
    page.frame()
    assert page.view() == (0, pytest.approx(page.js("return sgtop.state.span")))


def test_hover_and_click_say_what_it_is(page: Page) -> None:
    row = "TP0 forwards (GPU)"
    t = page.middle_of("gpu", row, 7)
    page.js("sgtop.show(arguments[0] - 0.01, arguments[0] + 0.01)", t / 1e9)
    page.frame()
    over = page.over("gpu")
    ActionChains(page.d).move_to_element_with_offset(over, *page.at("gpu", row, t)).perform()
    tip = page.d.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert tip.text.startswith("DECODE graph")
    ActionChains(page.d).move_to_element_with_offset(over, *page.at("gpu", row, t)).click().perform()
    got = page.details()
    assert got["name"] == "DECODE graph"
    assert got["row"] == row
    assert got["step"] == "7"
    assert got["batch"] == "32"
    assert got["graph"] == "replayed"
    assert got["clock"].startswith("20")
    page.d.find_element(By.ID, "close").click()
    assert page.details() == {}


def test_search_counts_dims_and_walks(page: Page) -> None:
    box = page.d.find_element(By.ID, "query")
    ActionChains(page.d).send_keys("/").perform()
    assert page.d.switch_to.active_element == box
    box.send_keys("EXTEND eager")
    hits = page.d.find_element(By.ID, "hits")
    n = int(hits.text)
    assert n == page.js("return sgtop.state.matches.length")
    assert n > 0
    box.send_keys(Keys.ENTER)
    page.frame()
    assert hits.text == f"1 / {n}"
    assert page.details()["name"] == "EXTEND eager"
    lo, hi = page.view()
    m = page.js("const m = sgtop.state.matches[0]; return m.row.t0[m.index] / 1e9")
    assert lo < m < hi
    box.send_keys(Keys.SHIFT, Keys.ENTER)
    assert hits.text == f"{n} / {n}"
    box.send_keys(Keys.ESCAPE)
    assert hits.text == ""
    box.send_keys("no such name")
    assert hits.text == "none"
    page.d.find_element(By.ID, "next").click()
    assert page.js("return sgtop.state.at") == -1


def test_keys_move_and_zoom(page: Page) -> None:
    body = page.d.find_element(By.TAG_NAME, "body")
    body.send_keys("w")
    page.frame()
    lo, hi = page.view()
    span = page.js("return sgtop.state.span")
    assert hi - lo == pytest.approx(0.6 * span)
    body.send_keys(Keys.ARROW_RIGHT)
    page.frame()
    assert page.view()[0] > lo
    body.send_keys("0")
    page.frame()
    assert page.view() == (0, pytest.approx(span))


def test_an_alert_is_found_by_hovering(page: Page) -> None:
    page.js("sgtop.show(0.6999, 0.7001)")
    page.frame()
    over = page.over("cpu")
    x, _ = page.at("cpu", "TP0 steps", 0.7e9)
    ActionChains(page.d).move_to_element_with_offset(over, x, 4 - over.size["height"] // 2).perform()
    assert "decode runs eager" in page.d.find_element(By.ID, "tip").text


def test_a_hundred_thousand_events(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """All of them are there and the page is ready; how fast is measured in bench/."""
    t = a_timeline(ranks=2, seconds=10.0, steps_per_s=500)
    assert t.events > 100_000
    page = Page(browser, tmp_path / "big.html", t)
    drawn = page.js("return sgtop.state.model.rows.reduce((n, r) => n + r.t0.length, 0)")
    assert drawn == sum(len(x.spans) for x in t.tracks)
    page.js("sgtop.search('run_batch')")
    assert page.js("return sgtop.state.matches.length") == 10_000


def test_a_recording_without_spans_says_so(browser: webdriver.Chrome, tmp_path: Path) -> None:
    page = Page(browser, tmp_path / "empty.html", Timeline(0, 10, None, (), (), (), (), (), "nothing"))
    assert page.js("return document.querySelectorAll('main > section').length") == 0
    assert "nothing to draw" in page.d.find_element(By.TAG_NAME, "main").text
