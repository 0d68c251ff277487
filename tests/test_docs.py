"""Every Python block of the README and of docs/ runs as it stands, and the built site holds
together.
"""

import ast
import contextlib
import functools
import importlib.util
import io
import os
import re
import shutil
import subprocess
import sys
import threading
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.contrast import CONTRAST, LEAST

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Each block, and what stands below it as its output.

    Pages that run when the site is built (`run: true`) have none.
    """
    return re.findall(
        r"```python\n(.*?)```\n(?:\n```(?:text)?\n(.*?)```)?", page.read_text(), re.DOTALL
    )


NUMBER = re.compile(r"\d[\d,]*(?:\.\d*)?(?:e[+-]\d+)?")
# of what is left of gradients and of approximations, which other machines round otherwise
ROUNDING = 1e-4


def unit(number: str) -> float:
    """One in the last digit that is shown."""
    mantissa, _, power = number.partition("e")
    return 10.0 ** (int(power or 0) - len(mantissa.partition(".")[2]))


def as_shown(shown: str, printed: str) -> bool:
    """The same words, and the same numbers but for one in their last digit."""
    pairs = [
        (NUMBER.split(" ".join(text.split())), NUMBER.findall(text)) for text in (shown, printed)
    ]
    (words, numbers), (others, found) = pairs
    value = lambda number: float(number.replace(",", ""))
    close = (
        abs(value(a) - value(b)) <= 1.01 * max(unit(a), unit(b))
        or ("e-" in a and value(a) < ROUNDING and value(b) < ROUNDING)
        for a, b in zip(numbers, found, strict=False)
    )
    return words == others and len(numbers) == len(found) and all(close)


QUICK = ("README.md", "index.md", "choosing.md", "plans.md", "reference/influence.md")


@pytest.mark.parametrize("name", ["extending.md", "objectives.md"])
def test_a_part_of_your_own_takes_less_than_forty_lines(name):
    longest = max(
        node.end_lineno - node.lineno + 1
        for code, _ in blocks(ROOT / "docs" / name)
        for node in ast.parse(code).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    )
    assert longest < 40


def run(code: str, name: str, shared: dict) -> str:
    """What a block prints. Data that are not to be had skip what needs them."""
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            exec(compile(code, name, "exec"), shared)
    except FileNotFoundError as error:
        if not str(error).startswith("datasets:"):
            raise
        pytest.skip(str(error))
    return out.getvalue()


# of small samples
@pytest.mark.filterwarnings("ignore:compare:UserWarning", "ignore:cross_validate. auc:UserWarning")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            p, marks=() if str(p).endswith(QUICK) else pytest.mark.slow, id=str(p.relative_to(ROOT))
        )
        for p in PAGES
        if blocks(p)
    ],
)
def test_the_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if "reference" in page.parts or page.name == "gallery.md":
        matplotlib = pytest.importorskip("matplotlib")
        matplotlib.use("agg")
        # a page has more figures than a program should leave open
        monkeypatch.setitem(matplotlib.rcParams, "figure.max_open_warning", 0)
    shared: dict = {}
    for block, shown in blocks(page):
        printed = run(block, page.name, shared)
        assert not shown or as_shown(shown, printed), (
            f"{page.name} shows\n{shown}\nof what prints\n{printed}"
        )


def test_what_pages_show_is_held_against_digits():
    assert as_shown("mean  1.234 ± 3e-12 of 1,000", "mean 1.235 ± 8e-13 of 1,000")
    assert not as_shown("mean 1.234", "mean 1.236") and not as_shown("mean 1.234", "median 1.234")
    assert (
        not as_shown("2e-3", "2e-2")
        and not as_shown("1 2", "1")
        and not as_shown("of 1,000", "of 2,000")
    )


def test_nothing_escapes_by_its_fence():
    """Python is in blocks that are run: no other fence opens with an import of ours."""
    for page in PAGES:
        for fence, body in re.findall(
            r"^```(.*?)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE
        ):
            assert fence == "python" or not re.search(
                r"^(import|from) leaveout", body, re.MULTILINE
            ), (page.name, fence)
            assert fence in ("python", "text", "r", ""), (page.name, fence)


def test_every_public_name_has_an_example():
    """In the reference, or the gallery.

    Below each `:::` a block that uses the name before the next name comes.
    """
    text = "\n".join(
        page.read_text()
        for page in (*(ROOT / "docs" / "reference").glob("*.md"), ROOT / "docs" / "gallery.md")
    )
    package = ROOT / "src" / "leaveout"
    names_of = lambda stub: re.findall(r" as (\w+)", (package / stub).read_text())
    public = {*names_of("__init__.pyi")}
    for namespace in ("bayes", "clinical"):
        public |= {f"{namespace}.{name}" for name in names_of(f"{namespace}.pyi")}
    public |= {"terms.s", "terms.te", "terms.ti"}
    public |= {f"diagnostics.{name}" for name in names_of("diagnostics/__init__.pyi")}
    modules = {"bayes", "clinical", "developer", "diagnostics", "leakage", "sklearn", "survey"}
    modules |= {"terms", "tuning", "validation", "emissions", "losses", "penalties", "datasets"}
    modules |= {"plot"}
    shown = {}
    for names, body in re.findall(
        r"((?:^::: leaveout\.[\w.]+\n+)+)(.*?)(?=^:::|\Z)", text, re.DOTALL | re.MULTILINE
    ):
        example = re.search(r"```python\n(.*?)```", body, re.DOTALL)
        for name in re.findall(r"leaveout\.([\w.]+)", names):
            shown[name] = example is not None
    assert set(shown) >= public - modules, public - modules - set(shown)
    assert all(shown.values()), [name for name, there in shown.items() if not there]


def test_the_first_example_is_short_and_shows_what_it_prints():
    first, shown = blocks(ROOT / "README.md")[0]
    assert shown and len([line for line in first.splitlines() if line.strip()]) <= 10


def test_the_demo_runs(tmp_path):
    from typer.testing import CliRunner

    from leaveout.extensions.cli import app

    result = CliRunner().invoke(app, ["demo", "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert list(tmp_path.glob("*.png"))
    for word in ("Certified", "Exact", "scikit-learn"):
        assert word in result.output


# the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site: that of LEAVEOUT_SITE, where one was built already, else a new one."""
    if built := os.environ.get("LEAVEOUT_SITE"):
        return Path(built)
    needed = ("material", "mkdocstrings", "jupytext", "nbclient", "latex2mathml")
    if any(importlib.util.find_spec(name) is None for name in needed):
        pytest.skip("needs the site's builder: pip install 'leaveout[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "-d", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return folder


class Links(HTMLParser):
    def __init__(self, page: Path):
        super().__init__()
        self.to, self.anchors, self.unnamed = [], set(), []
        self.feed(page.read_text())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.anchors |= {found.get("id"), found.get("name")}
        self.to += [found[key] for key in ("href", "src") if found.get(key)]
        if tag == "img" and not found.get("alt"):
            self.unnamed.append(found.get("src"))


def test_links_between_files_are_alive():
    """As a reader follows them in the repository."""
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+\.md)[)#]", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), (page, target)


@pytest.mark.slow
def test_links_are_alive_and_pictures_have_words(site):
    pages = {page: Links(page) for page in site.rglob("*.html") if page.name != "404.html"}
    for page, links in pages.items():
        assert not links.unnamed, (page, links.unnamed)
        for link in links.to:
            if link.startswith(("http:", "https:", "mailto:", "data:")):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            assert target.exists(), (page, link)
            assert not anchor or target not in pages or anchor in pages[target].anchors, (
                page,
                link,
            )


@pytest.fixture(scope="module")
def served(site):
    """The site's address on this machine, and a browser."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with (
        driver.sync_playwright() as play,
        contextlib.closing(
            play.chromium.launch(executable_path=found, args=["--no-sandbox"])
        ) as browser,
    ):
        yield f"http://127.0.0.1:{server.server_port}/", browser
    server.shutdown()
    server.server_close()


# what a screen reader or a keyboard would miss: skipped headings, header cells and dialogs without
# words, parts that scroll but take no keys
STRUCTURE = """() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const titles = all(".md-content :is(h1, h2, h3, h4, h5, h6)").map((title) => +title.tagName[1]);
  const missed = titles.filter((level, place) => level > (place ? titles[place - 1] : 0) + 1);
  if (titles.filter((level) => level === 1).length !== 1) missed.push("one h1");
  const unnamed = all("[role=dialog]:not([aria-label])");
  unnamed.push(...all("th").filter((cell) => !cell.textContent.trim()));
  const scrolls = (part) => part.scrollWidth > part.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(part).overflowX);
  const keyless = all(".md-content *").filter((part) => part.clientWidth && part.tabIndex < 0);
  unnamed.push(...keyless.filter(scrolls));
  return [...missed, ...unnamed.map((part) => part.outerHTML.slice(0, 80))];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_pages_fit_the_screen_and_fetch_nothing_elsewhere(site, served, width, scheme):
    address, browser = served
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on(
        "console", lambda message: wrong.append(message.text) if message.type == "error" else None
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((address, "data:")) else wrong.append(request.url)
        ),
    )
    for file in sorted(site.rglob("*.html")):
        name = str(file.relative_to(site))
        page.goto(address + name)
        page.wait_for_selector(".md-content")
        over = page.evaluate("document.documentElement.scrollWidth") - width
        assert over <= 0, (name, over)
        colours = page.evaluate("document.body.getAttribute('data-md-color-scheme')")
        assert colours == {"light": "default", "dark": "slate"}[scheme], name
        unseen = page.evaluate(
            "[...document.images].filter(each => each.complete && !each.naturalWidth).map(each => each.src)"
        )
        assert not wrong and not unseen, (name, wrong, unseen)
        outputs = page.evaluate(
            "[...document.querySelectorAll('.output')].map(each => each.innerText)"
        )
        assert all(each.strip() and "site-packages" not in each for each in outputs), (
            name,
            outputs,
        )
        missed = page.evaluate(STRUCTURE)
        assert not missed or name == "404.html", (name, missed)
        texts = page.evaluate(CONTRAST)
        assert texts and min(texts)[0] >= LEAST, (name, min(texts))
    context.close()


@pytest.mark.slow
def test_the_first_page_opens_with_its_code(served):
    """All of the first block is on the first screen of a laptop, and the sections of the menu are
    folded.
    """
    address, browser = served
    page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
    page.goto(address + "index.html")
    code = page.locator(".md-content pre").first
    assert code.evaluate("each => each.querySelector('code').scrollWidth <= each.clientWidth")
    box = code.bounding_box()
    assert box["y"] > 0 and box["y"] + box["height"] <= 800, box
    sections = page.locator(".md-nav--primary > .md-nav__list > .md-nav__item--nested")
    inside = page.locator(".md-nav--primary .md-nav__link", has_text="Grouped data")
    assert sections.count() >= 5 and inside.count() == 1 and not inside.is_visible()
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_picture_fits_a_phone_and_the_colours(served, scheme):
    address, browser = served
    page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
    page.goto(address + "index.html")
    shown = [each for each in page.locator(".hero img").all() if each.is_visible()]
    assert len(shown) == 1
    assert (
        shown[0]
        .evaluate("each => each.currentSrc")
        .endswith({"light": "hero-phone.png", "dark": "hero-phone-dark.png"}[scheme])
    )
    assert shown[0].bounding_box()["width"] > 340
    page.close()


@pytest.fixture(scope="module")
def search_page(served):
    """The site's address, and its first page with the index of its search loaded."""
    address, browser = served
    page = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    page.goto(address + "index.html")
    page.keyboard.press("/")
    page.keyboard.type("leave")
    page.wait_for_selector(".md-search-result__link", timeout=120_000)
    page.keyboard.press("Escape")
    yield address, page
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("BCa", "choosing.html#bca-intervals"),
        ("LOOCV", "choosing.html#what-to-leave-out"),
        ("PRESS", "coming-from.html"),
        ("PSIS", "bayes.html"),
        ("WAIC", "choosing.html#which-model"),
        ("XGBoost", "failures.html"),
        ("Gaussian process", "fields.html#points-gaussian-processes"),
        ("calibration", "choosing.html#calibration"),
        ("clustered standard errors", "few-clusters.html"),
        ("concordance", "regression.html#concordance"),
        ("conditional random field", "labels.html"),
        ("confidence interval", "choosing.html#confidence-intervals-for-the-mean-loss"),
        ("conformal", "regression.html#how-wide-is-a-prediction"),
        ("covariate shift", "target.html"),
        ("data leakage", "leakage.html"),
        ("fixed effects", "regression.html#effects-of-many-levels"),
        ("hat matrix", "regression.html#influence-measures-leverage-cooks-distance-dfbetas"),
        ("jackknife+", "regression.html#how-wide-is-a-prediction"),
        ("mgcv NCV", "smooth.html"),
        ("model comparison", "choosing.html#which-model"),
        ("multilevel", "mixed.html"),
        ("nested cross-validation", "choosing.html#nested-cross-validation"),
        ("optimism bootstrap", "validation.html"),
        ("overfitting", "tuning.html"),
        ("random forest", "failures.html"),
        ("rms validate", "reference/clinical.html#leaveout.clinical.validate"),
        ("save", "report.html#save-a-result"),
        ("spatial cross-validation", "fields.html"),
        ("when not to use", "failures.html"),
        ("wild bootstrap", "few-clusters.html#crv3-cr2-or-the-wild-bootstrap"),
        *(
            (
                splitter,
                "choosing.html#in-place-of-a-plan-a-number-kfold-groupkfold-timeseriessplit",
            )
            for splitter in ("GroupKFold", "TimeSeriesSplit")
        ),
    ],
)
def test_the_search_finds_what_readers_call_it(search_page, words, place):
    """Among the headings of the first three pages found."""
    address, page = search_page
    page.keyboard.press("/")
    page.wait_for_function("document.activeElement.name == 'query'")
    page.locator("[name=query]").fill("")
    page.keyboard.type(words)
    answers = ""
    while not answers or answers != page.locator(".md-search-result").inner_text():
        answers = page.locator(".md-search-result").inner_text()
        page.wait_for_timeout(1000)  # a query of several words is answered anew after each
    found = [
        re.sub(r"[?][^#]*", "", link.get_attribute("href")).removeprefix(address)
        for item in page.locator(".md-search-result__item").all()[:3]
        for link in item.locator("a.md-search-result__link").all()
    ]
    page.keyboard.press("Escape")
    assert place in found


@pytest.mark.slow
def test_the_site_is_gone_through_by_keys(served):
    """The first Tab is the way past the menus, the next ones reach them, a slash the search, whose
    first answer Enter opens.
    """
    address, browser = served
    page = browser.new_page(viewport={"width": 1366, "height": 900}, color_scheme="light")
    page.goto(address + "index.html")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.md-skip')")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash")
    reached = set()
    page.goto(address + "choosing.html")
    for _ in range(90):  # the menu has some sixty entries
        page.keyboard.press("Tab")
        reached |= set(
            page.evaluate(
                "[document.activeElement.tagName, document.activeElement.getAttribute('name')]"
            )
        )
        if "SUMMARY" in reached:
            break
    assert {"A", "query", "SUMMARY"} <= reached, reached  # links, the search, the tree of choices
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.parentElement.open")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("/")
    page.wait_for_function("document.activeElement.name == 'query'")
    page.keyboard.type("separation")
    page.wait_for_selector(".md-search-result__link")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/validation.html*")
    page.close()


@pytest.mark.slow
def test_a_reader_may_choose_the_colours(served):
    address, browser = served
    page = browser.new_page(viewport={"width": 1366, "height": 900}, color_scheme="light")
    page.goto(address + "index.html")
    page.click("label[for=__palette_1]:visible")
    page.wait_for_selector("body[data-md-color-scheme=slate]")
    page.goto(address + "choosing.html")
    page.wait_for_selector("body[data-md-color-scheme=slate]")  # it is remembered
    page.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_calls_on_one_page(tmp_path, monkeypatch):
    """Every call of README's table runs, on data of its names."""
    import numpy as np
    import pandas as pd
    import statsmodels.formula.api as smf
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    import leaveout as lo

    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(240, 2)), columns=["age", "dose"])
    table = table.assign(site=np.arange(240) % 24, y=table.age + rng.normal(size=240))
    table["ill"] = (table.y > 0) * 1.0
    X, y = table[["age", "dose"]].to_numpy(), table.ill.to_numpy()
    fits = [
        lo.fit(lo.GLM(f"ill ~ age {sign} dose", table, "logistic", lo.penalties.Ridge(0.1)))
        for sign in "+*"
    ]
    estimates = [lo.cross_validate(each, lo.leave_one_out(), metric="auc") for each in fits]
    given = {
        **{"lo": lo, "GridSearchCV": GridSearchCV, "table": table, "X": X, "y": y},
        **{"fit": fits[0], "cv": estimates[0], "cv_large": estimates[1], "X_new": table[:40]},
        "other": lo.fit(lo.GLM("y ~ age + dose", table, "squared")),
        "counts": rng.poisson(np.where(np.arange(240) // 40 % 2, 2, 9)),
        "model": LogisticRegression(tol=1e-9).fit(X, y),
        "result": smf.ols("y ~ age + dose", table).fit(),
    }
    page = (ROOT / "README.md").read_text().split("## The calls, on one page")[1]
    calls = re.findall("`([^`]+)`", page.split("\n## ")[0])
    assert len(calls) > 30
    for call in calls:
        eval(call, dict(given))
