"""The page in a real browser. Needs selenium, chromium and chromedriver; skipped without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedsteer.records import RecordWriter, find_runs
from fedsteer.report import write_page
from tests.browser import browser, load, show_as, waiting
from tests.report.made_records import make_comparison, make_result, make_run

pytestmark = pytest.mark.browser

EVIL = "<script>document.title = 'taken'</script> %{x} <b>&"
PHONE, DESKTOP = 390, 1280


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("page")
    make_comparison(
        folder / "runs", ["fedavg", "fedsteer (practical)", "mifa", "full participation"], seeds=3
    )
    make_run(folder / "runs" / "evil" / "seed-0", label=EVIL, reason=EVIL)
    return write_page(find_runs(folder / "runs"), folder / "report.html", "In a browser")


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments; fedavg is in the first only, and only the second knows label groups."""
    folder = tmp_path_factory.mktemp("several")
    make_comparison(folder / "runs" / "a", ["mifa", "fedavg"], rounds=20, name="first <b>")
    make_comparison(folder / "runs" / "b", ["mifa", "full participation"], rounds=30, name="second")
    for path in (folder / "runs" / "a").rglob("rounds.jsonl"):
        path.write_text(path.read_text().replace("group_accuracy", "unknown"))
    return write_page(find_runs(folder / "runs"), folder / "report.html", "Two experiments")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


Show = Callable[..., Any]


@pytest.fixture
def show(driver: Any, page: Path) -> Show:
    """Open the page at a width, in light or dark, with every plot scrolled past once."""

    def shown(
        width: int = DESKTOP, dark: bool = False, scroll: bool = True, file: Path = page
    ) -> Any:
        show_as(driver, width, dark)
        load(driver, "about:blank")
        load(driver, file.as_uri())
        if scroll:
            driver.execute_async_script(SCROLL_PAST_EVERYTHING)
        return driver

    return shown


SCROLL_PAST_EVERYTHING = """
const done = arguments[0];
const boxes = [...document.querySelectorAll(".plot")].filter((box) => box.offsetParent);
(async () => {
  for (const box of boxes) {
    box.scrollIntoView({block: "center"});
    while (!box.dataset.drawn) await new Promise((next) => setTimeout(next, 20));
  }
  done();
})();
"""
SETTLE = """
const done = arguments[0];
requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 100)));
"""  # two frames, and time for the observer that draws what was scrolled to


def names_drawn(driver: Any, plot: str) -> list[str]:
    """Names of the lines of a plot, as plotly holds them."""
    found: list[str] = driver.execute_script(
        f"return document.querySelector('[data-plot={plot}]').data.map((one) => one.name)"
    )
    return [name for name in found if name]


def press(driver: Any, query: str) -> None:
    driver.execute_script(f"document.querySelector({query!r}).click()")
    driver.execute_async_script(SETTLE)


def rule_button(label: str) -> str:
    return f'#rules button[title="{label}"]'


def test_everything_is_drawn_without_an_error(show: Show) -> None:
    driver = show()
    undrawn = driver.execute_script(
        "return [...document.querySelectorAll('.plot')].filter((box) =>"
        " !box.querySelector('.main-svg') || !box.data.length).map((box) => box.dataset.plot)"
    )
    assert undrawn == []
    assert driver.get_log("browser") == []


def test_plots_below_the_fold_wait(show: Show) -> None:
    driver = show(scroll=False)
    driver.execute_async_script(SETTLE)
    assert driver.execute_script("return !document.querySelector('#events .plot').dataset.drawn")


def test_a_rule_is_switched_off_everywhere(show: Show) -> None:
    driver = show()
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    assert "mifa" in names_drawn(driver, "accuracy")
    press(driver, rule_button("mifa"))
    assert "mifa" not in names_drawn(driver, "accuracy")
    driver.execute_script("document.querySelector('#variance').scrollIntoView()")
    driver.execute_async_script(SETTLE)
    assert "mifa" not in names_drawn(driver, "variance")
    assert driver.execute_script("return document.querySelectorAll('.headline tr.off').length") == 1
    press(driver, "#all")
    assert "mifa" in names_drawn(driver, "variance")
    press(driver, "#none")
    assert names_drawn(driver, "variance") == []
    driver.execute_async_script(SCROLL_PAST_EVERYTHING)
    assert driver.get_log("browser") == []


def test_shares_end_at_0_and_1_whatever_is_shown(show: Show) -> None:
    driver = show()
    for button in ("#none", "#all"):
        press(driver, button)
        driver.execute_script("window.scrollTo(0, 0)")
        for plot in ("accuracy", "groups", "cost"):
            driver.execute_script(f"document.querySelector('#{plot}').scrollIntoView()")
            driver.execute_async_script(SETTLE)
            low, high = driver.execute_script(
                f"return document.querySelector('#{plot} .plot')._fullLayout.yaxis.range"
            )
            assert 0 <= low < high <= 1, (button, plot)


def test_axes_say_which_rounds_they_count(show: Show) -> None:
    driver = show()
    titles = {
        plot: driver.execute_script(
            f"return document.querySelector('#{plot} .plot').layout.xaxis.title.text"
        )
        for plot in ("coordinates", "variance", "events", "raster")
    }
    assert titles["coordinates"] == titles["variance"] == "training round"
    assert titles["events"] == titles["raster"] == "round, warm-up included"
    away = driver.execute_script("return document.querySelector('#staleness .plot').layout.yaxis")
    assert away["title"]["text"] == "share per round of absence"
    assert {"1%", "10%", "100%"} <= set(away["ticktext"])


def test_axis_can_be_changed(show: Show) -> None:
    driver = show()
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    ends = []
    for axis in ("train", "all", "sent"):
        press(driver, f'[data-choice=axis] [data-value="{axis}"]')
        ends.append(
            driver.execute_script(
                "return document.querySelector('#accuracy .plot').data"
                ".find((one) => one.name === 'fedsteer (practical)').x.at(-1)"
            )
        )
    assert ends[:2] == [40, 45]
    assert ends[2] > 1_000_000


def test_intervals_can_be_hidden(show: Show) -> None:
    driver = show()
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    traces = "return document.querySelector('#accuracy .plot').data.length"
    before = driver.execute_script(traces)
    press(driver, "[data-choice=bands] [data-value=off]")
    hidden = driver.execute_script(traces)
    assert hidden < before
    press(driver, "[data-choice=bands] [data-value=on]")
    assert driver.execute_script(traces) == before


@pytest.mark.parametrize("seeds", [2, 3])
def test_two_seeds_have_no_intervals_to_hide(show: Show, tmp_path: Path, seeds: int) -> None:
    make_comparison(tmp_path, ["fedavg"], seeds=seeds, rounds=4)
    driver = show(file=write_page(find_runs(tmp_path), tmp_path / "report.html"))
    (bands,) = driver.find_elements("css selector", "[data-choice=bands]")
    assert bands.is_displayed() == (seeds == 3)


def test_unused_updates_are_listed(show: Show, tmp_path: Path) -> None:
    make_result(tmp_path, "fedavg", 0, {"accuracy": 0.5})
    with closing(RecordWriter(tmp_path)) as writer:
        for number in range(1, 9):
            row = {"round": number, "client": number, "event": "failed", "reason": "<b>offline"}
            writer.append("clients", row)
        writer.append("clients", {"round": 3, "client": 1, "event": "dropped", "reason": "late"})
    driver = show(file=write_page(find_runs(tmp_path), tmp_path / "report.html"))
    rows = driver.find_elements("css selector", "#events tbody tr")
    assert [row.text for row in rows] == [
        "fedavg failed: <b>offline 8 1, 2, 3, 4, 5, 6 and 2 more 1 to 8", "fedavg late 1 1 3"
    ]  # fmt: skip
    assert driver.get_log("browser") == []


def test_only_known_axes_are_offered(show: Show, tmp_path: Path) -> None:
    make_result(tmp_path, "fedavg", 0, None)
    with closing(RecordWriter(tmp_path)) as writer:
        writer.append("rounds", {"round": 1, "accuracy": 0.2})
    driver = show(file=write_page(find_runs(tmp_path), tmp_path / "report.html"))
    buttons = driver.find_elements("css selector", "[data-choice=axis] button")
    offered = [one.get_attribute("data-value") for one in buttons if one.is_displayed()]
    assert offered == ["train", "all"]


def test_phone(show: Show) -> None:
    driver = show(PHONE)
    assert driver.execute_script("return document.scrollingElement.scrollWidth") <= PHONE
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.plot .main-svg')]"
        f".filter((one) => one.getBoundingClientRect().right > {PHONE}).length"
    )
    assert wide == 0
    box = "document.querySelector('#summary .scroll')"
    assert driver.execute_script(f"return {box}.scrollWidth > {box}.clientWidth")


def test_dark_follows_the_system_and_can_be_switched(show: Show) -> None:
    driver = show(dark=True)
    background = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.querySelector('#accuracy .plot').layout.font.color"
    dark, dark_ink = driver.execute_script(background), driver.execute_script(ink)
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    press(driver, "#theme")
    light, light_ink = driver.execute_script(background), driver.execute_script(ink)
    assert dark != light and dark_ink != light_ink
    assert sum(map(int, dark[4:-1].split(", "))) < 150 < sum(map(int, light[4:-1].split(", ")))


def test_labels_are_text(show: Show) -> None:
    driver = show()
    assert driver.title == "In a browser"
    assert driver.execute_script("return document.querySelectorAll('#rules b').length") == 0
    driver.execute_script(
        "const box = document.querySelector('#accuracy .plot');"
        "box.scrollIntoView();"
        "const line = box.data.findIndex((one) => one.name && one.name.includes('script'));"
        "Plotly.Fx.hover(box, [{curveNumber: line, pointNumber: 3}])"
    )
    driver.execute_async_script(SETTLE)
    hover = driver.execute_script("return document.querySelector('.hoverlayer text').textContent")
    assert hover.startswith(EVIL)


def test_nothing_is_asked_of_the_network(show: Show) -> None:
    driver = show()
    asked = driver.execute_script(
        "return performance.getEntriesByType('resource').map((one) => one.name)"
        ".filter((name) => !name.startsWith('data:') && !name.startsWith('blob:'))"
    )
    assert asked == []
    buttons = driver.execute_script(
        "return [...document.querySelectorAll('.modebar-btn')].map((one) => one.dataset.title)"
    )
    assert not [title for title in buttons if "loud" in (title or "")]


def test_table_is_sorted_by_a_click(show: Show) -> None:
    driver = show(scroll=False)
    first = "return document.querySelector('.headline tbody td').textContent"
    assert driver.execute_script(first) == "full participation"
    press(driver, ".headline th:nth-child(2)")
    press(driver, ".headline th:nth-child(2)")
    assert driver.execute_script(first) == "fedavg"


EXPERIMENTS = "[data-choice=experiment] button"
LABELS = "return [...document.querySelectorAll('#rules button')].filter((one) => one.offsetParent)"


def enter(driver: Any, experiment: str) -> None:
    """Choose an experiment with the keyboard."""
    (button,) = (
        one for one in driver.find_elements("css selector", EXPERIMENTS) if one.text == experiment
    )
    button.send_keys("\n")
    driver.execute_async_script(SETTLE)


def rows_shown(driver: Any) -> list[str]:
    found: list[str] = driver.execute_script(
        "return [...document.querySelectorAll('.headline tbody tr')]"
        ".filter((row) => row.offsetParent).map((row) => row.cells[0].textContent)"
    )
    return found


def test_one_experiment_needs_no_selector(show: Show) -> None:
    assert show(scroll=False).find_elements("css selector", EXPERIMENTS) == []


@pytest.mark.parametrize(("width", "dark"), [(DESKTOP, False), (PHONE, True)])
def test_the_experiment_is_chosen(show: Show, several: Path, width: int, dark: bool) -> None:
    driver = show(width, dark, file=several)
    plot = "document.querySelector('#accuracy .plot')"
    last = f"return {plot}.data.find((one) => one.name === 'mifa').x.at(-1)"
    driver.execute_script(f"{plot}.scrollIntoView()")
    assert sorted(names_drawn(driver, "accuracy")) == ["fedavg", "mifa"]
    assert driver.execute_script(last) == 20
    enter(driver, "second")
    driver.execute_script(f"{plot}.scrollIntoView()")
    driver.execute_async_script(SETTLE)
    assert names_drawn(driver, "accuracy") == rows_shown(driver) == ["full participation", "mifa"]
    assert driver.execute_script(last) == 30
    driver.execute_async_script(SCROLL_PAST_EVERYTHING)
    assert driver.execute_script("return document.scrollingElement.scrollWidth") <= width
    pressed = driver.find_elements("css selector", EXPERIMENTS + "[aria-pressed=true]")
    assert [one.text for one in pressed] == ["second"]
    assert driver.get_log("browser") == []


def test_a_rule_stays_off_in_the_other_experiment(show: Show, several: Path) -> None:
    driver = show(file=several)
    assert driver.execute_script(LABELS + ".map((one) => one.title)") == ["mifa", "fedavg"]
    press(driver, rule_button("mifa"))
    enter(driver, "second")
    assert driver.execute_script(LABELS + ".map((one) => one.title)") == [
        "mifa",
        "full participation",
    ]
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    driver.execute_async_script(SETTLE)
    assert names_drawn(driver, "accuracy") == ["full participation"]


def test_a_link_leads_to_an_experiment(show: Show, several: Path) -> None:
    driver = show(file=several, scroll=False)
    assert "#" not in driver.current_url
    enter(driver, "second")
    link = driver.current_url
    load(driver, "about:blank")
    load(driver, link)
    driver.execute_async_script(SETTLE)
    pressed = driver.find_elements("css selector", EXPERIMENTS + "[aria-pressed=true]")
    assert [one.text for one in pressed] == ["second"]
    assert rows_shown(driver) == ["full participation", "mifa"]
    for address in ("first <b>", "no such experiment %"):  # the latter changes nothing
        driver.execute_script("location.hash = encodeURIComponent(arguments[0])", address)
        driver.execute_async_script(SETTLE)
        assert sorted(rows_shown(driver)) == ["fedavg", "mifa"]
    assert driver.get_log("browser") == []


def test_what_an_experiment_lacks_is_hidden(show: Show, several: Path) -> None:
    driver = show(file=several)
    groups = "return document.querySelector('#groups').offsetParent !== null"
    assert not driver.execute_script(groups)
    enter(driver, "second")
    assert driver.execute_script(groups)
    driver.execute_async_script(SCROLL_PAST_EVERYTHING)
    enter(driver, "first <b>")
    assert not driver.execute_script(groups)
    assert driver.get_log("browser") == []


def test_many_experiments_are_in_a_list(show: Show, tmp_path: Path) -> None:
    for place in range(8):
        make_run(tmp_path / str(place), rounds=4 + place, name=f"number {place}")
    driver = show(file=write_page(find_runs(tmp_path), tmp_path / "report.html"))
    (chooser,) = driver.find_elements("css selector", "[data-pick=experiment]")
    chooser.send_keys("number 7")
    driver.execute_async_script(SETTLE)
    driver.execute_script("document.querySelector('#accuracy').scrollIntoView()")
    x = "return document.querySelector('#accuracy .plot').data.at(-1).x.at(-1)"
    wait = waiting(driver)
    wait.until(lambda driver: driver.execute_script(x) == 11)


def test_the_table_fits_a_laptop(show: Show, several: Path) -> None:
    driver = show(1200, scroll=False, file=several)
    box = "document.querySelector('#summary .scroll')"
    assert driver.execute_script(f"return {box}.querySelectorAll('th').length") > 11
    assert driver.execute_script(f"return {box}.scrollWidth <= {box}.clientWidth")
