"""The page: it says what the estimate says, it holds all that it needs, and nothing that comes from
data is markup.
"""

import contextlib
import dataclasses
import functools
import io
import json
import re
import shutil
import subprocess
import sys
import warnings
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from sklearn.neighbors import KNeighborsRegressor
from typer.testing import CliRunner

import leaveout as lo
from leaveout.extensions.cli import app
from tests.contrast import CONTRAST, LEAST

pytest.importorskip("matplotlib", reason="needs leaveout[report]")
pytest.importorskip("jinja2", reason="needs leaveout[report]")

N = 120
WILD = "</script><script>alert(1)</script>"


def estimate(label="p", penalty=0.1, column="age"):
    rng = np.random.default_rng(0)
    names = [f"{label}{k}" for k in range(N)]
    X = pd.DataFrame(rng.standard_normal((N, 3)), columns=[column, "b,c", "id"], index=names)
    X["id"] = np.arange(N)
    y = X[column] + rng.standard_normal(N)
    y.iloc[5] = 60
    fit = lo.fit(lo.GLM(X, y, "squared", lo.penalties.Ridge(penalty)))
    return lo.cross_validate(fit, lo.kfold(k=10, rng=3), metric="mse")


@functools.cache
def leaking():
    """Of clusters that are linked by pairs, one of whose rows has a name that is markup."""
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(40), 4)
    names = [f"<i>{k}</i>" for k in range(160)]
    X = pd.DataFrame(
        rng.normal(size=(40, 2))[person] + 0.2 * rng.normal(size=(160, 2)), index=names
    )
    left, right = np.nonzero(np.triu(person[:, None] == person, 1))
    sure = np.where(rng.random(160) < 0.3, 0.4, 0.99)
    linkage = lo.leakage.Linkage.from_pairs((left, right, np.minimum(sure[left], sure[right])), 160)
    return lo.leakage.leakage_report(
        KNeighborsRegressor(1),
        X,
        rng.normal(size=40)[person],
        linkage=linkage,
        scoring="mse",
        answers=("purge", "coarser", "both"),
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Of one estimate, of one with labels that are markup, and of three that are compared."""
    folder = tmp_path_factory.mktemp("pages")
    some = {f"<b>ridge</b> {a:g}": estimate(penalty=a) for a in (0.1, 10.0, 1000.0)}
    made = {
        "one": estimate().report(folder / "one.html"),
        "wild": estimate(label=WILD, column=WILD).report(folder / "wild.html", title=WILD),
        "several": lo.compare(some).report(folder / "several.html"),
        "leakage": leaking().report(folder / "leakage.html"),
    }
    return made


class Reader(HTMLParser):
    """The tags outside pictures, the text outside scripts, what is fetched, the data of a page.

    Of pictures: their tags, and what their marks tell under the pointer, as a table of texts.
    """

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.fetched, self.data, self.levels = [], "", [], {}, []
        self.inside, self.named, self.picture, self.marks = "", "", "", {}
        self.shapes = set()
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        known = dict(attrs)
        if self.picture:
            self.shapes.add(tag)
        else:
            self.tags.append(tag)
        self.inside, self.named = tag, known.get("data-for", "")
        self.fetched += [known[name] for name in ("src", "href", "action", "data") if name in known]
        self.levels += [int(tag[1])] if re.fullmatch("h[1-6]", tag) else []
        if known.get("class") == "picture":
            self.picture = known["id"].removeprefix("picture-")
            self.marks[self.picture] = []
        assert not [name for name in known if name.startswith("on")], known

    def handle_endtag(self, tag):
        self.inside = ""
        if tag == "svg":
            self.picture = ""

    def handle_data(self, data):
        if self.named and self.inside == "script":
            self.data[self.named] = json.loads(data)
        elif self.inside == "title" and self.picture:
            self.marks[self.picture].append(dict(re.findall(r"^(.*?): (.*)$", data, re.MULTILINE)))
        elif self.inside not in ("script", "style"):
            self.text += data


def read(path):
    return Reader(path.read_text(encoding="utf-8"))


def column_of(page, picture, name):
    """The numbers that the marks of a picture tell."""
    return [float(mark[name]) for mark in page.marks[picture]]


def drawn(path):
    """The pictures of a page, which hold more than axes, and every number of which is one."""
    pictures = re.findall(r'role="group".*?(<svg.*?</svg>)', path.read_text(), re.DOTALL)
    for picture in pictures:
        shapes = picture.count("<path") + picture.count("<use")
        assert shapes > 12 and "NaN" not in picture and "nan" not in picture
        assert (
            "<use xlink:href" in picture
            and "metadata" not in picture
            and picture.count("<g id") == 0
        )
    return len(pictures)


def test_it_says_what_the_estimate_says(pages):
    cv, page = estimate(), read(pages["one"])
    low, high = cv.interval()[:2]
    for said in (
        f"{cv.mean:.5g} ± {cv.se:.2g}",
        f"{low:.4g} to {high:.4g}",
        f"{cv.no_update:.5g}",
        "half the squared error",
    ):
        assert said in page.text
    assert (
        "LO102 warning" in page.text and "LO103 warning" in page.text and "row p5 is" in page.text
    )
    assert (
        "lo.kfold(k=10, rng=3)" in page.text
        and "metric=('mse',)" in page.text
        and lo.__version__ in page.text
    )
    assert f"numpy {np.__version__}" in page.text
    assert "1 refit repeated exactly" in page.text and "mse" in page.text


@pytest.mark.parametrize("kind", ["weights", "lasso", "column"])
@pytest.mark.slow_for("lasso")
def test_it_is_done_again_by_the_code_of_the_page(tmp_path, kind):
    """The code of the page runs as it stands, in another process, once the line in it has written
    the data.
    """
    rng = np.random.default_rng(0)
    X, group = rng.standard_normal((60, 4)), np.repeat(np.arange(12), 5)
    if kind == "weights":
        y, more = (
            rng.poisson(2.0, 60),
            {"sample_weight": rng.uniform(1, 3, 60), "offset": rng.standard_normal(60)},
        )
        model = lo.GLM(
            pd.DataFrame(X, columns=list("abcd")),
            y,
            "poisson",
            lo.penalties.Ridge(rng.uniform(1, 3, 4)),
            **more,
        )
    elif kind == "column":
        table = pd.DataFrame(X, columns=list("abcd")).assign(group=group)
        model, group = lo.GLM("a ~ b + c", table, "squared"), "group"
    else:
        y = np.where(X[:, 0] > rng.logistic(size=60), "yes", "no")
        model = lo.GLM(
            X, y, "logistic", lo.penalties.Lasso(4 / 3), intercept=False, class_weight="balanced"
        )
    cv = lo.cross_validate(
        lo.fit(model), lo.groups(group), metric="brier" if kind == "lasso" else None
    )
    page = read(cv.report(tmp_path / "page.html")).text
    code = page[
        page.index("import leaveout as lo\n") : page.index("\n", page.index("print(cv.mean)"))
    ]
    (save,) = re.findall(r"^# (model = .*)", code, re.MULTILINE)
    exec(save.replace("data.npz", str(tmp_path / "data.npz")), {"cv": cv, "np": np})
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    np.testing.assert_allclose(float(done.stdout), cv.mean, rtol=1e-9)


def test_code_that_cannot_run_is_not_shown_as_code(tmp_path):
    """A function in the place of a loss or a measure has no call.

    The page says what the fit was, and loads nothing.
    """
    squares = lambda eta, y: (eta - y) ** 2
    away = lambda y, mean: np.mean(np.abs(y - mean))
    for loss, wanted in (
        (squares, {}),
        (lo.losses.Custom(squares, mean=lambda eta: eta), {"metric": away}),
    ):
        fit = lo.fit(lo.GLM(np.eye(9, 2), np.arange(9.0), loss, lo.penalties.Ridge(1.0)))
        page = read(
            lo.cross_validate(fit, lo.leave_one_out(), **wanted).report(tmp_path / "page.html")
        )
        assert "fit = lo.fit(...)  # GLM (Custom)" in page.text and "np.load" not in page.text


def test_the_table_is_the_estimate_s(pages):
    cv, found = estimate(), read(pages["one"]).data["table-rows"]
    table = pd.DataFrame(found["rows"], columns=found["columns"])
    want = cv.table().sort_values("loss", ascending=False)
    assert table["unit"].tolist() == want["unit"].tolist() and found["numbers"] == [
        False,
        *[True] * 5,
        False,
    ]
    for name in ("loss", "no_update", "error", "refit"):
        np.testing.assert_array_equal(table[name], want[name])
    np.testing.assert_array_equal(table["rise"], want["loss"] - want["no_update"])


def test_losses_that_do_not_exist_are_no_numbers(tmp_path):
    X = np.c_[np.random.default_rng(0).standard_normal((30, 1)), np.arange(30) == 7]
    cv = lo.cross_validate(lo.fit(lo.GLM(X, X[:, 0], "squared")), lo.leave_one_out())
    page = read(cv.report(tmp_path / "lost.html"))
    first = dict(
        zip(page.data["table-rows"]["columns"], page.data["table-rows"]["rows"][0], strict=True)
    )
    assert (
        first["unit"] == 7
        and first["loss"] is None
        and first["error"] is None
        and first["result"] == "undetermined"
    )
    assert (
        "LO304 error" in page.text
        and "NaN" not in (tmp_path / "lost.html").read_text().split("application/json", 1)[1][:9000]
    )


def test_pictures_show_every_row(pages):
    cv, page = estimate(), read(pages["one"])
    units = cv.names()
    told = {mark["row"]: mark for mark in page.marks["against"]}
    assert len(told) == N
    for k in (0, 5, 77):
        mark = told[units[k]]
        assert float(mark["held-out loss"]) == pytest.approx(cv.per_unit().iloc[k], rel=1e-4)
        assert float(mark["no update"]) == pytest.approx(cv.average(cv.baseline)[k], rel=1e-4)
    bars = page.marks["carried"]
    assert bars[0]["row"] == "p5" and float(bars[0]["share of the loss"]) == pytest.approx(
        cv.per_unit().iloc[5] / cv.per_unit().sum(), rel=1e-4
    )
    assert drawn(pages["one"]) == 2 and drawn(pages["several"]) == 2


def test_a_comparison_says_what_compare_says(pages):
    some = {f"<b>ridge</b> {a:g}": estimate(penalty=a) for a in (0.1, 10.0, 1000.0)}
    table, page = lo.compare(some), read(pages["several"])
    assert isinstance(table, pd.DataFrame) and str(table.index[0]) in page.text
    low, high = table.difference.iloc[1] + 1.96 * table.se_difference.iloc[1] * np.array([-1, 1])
    assert f"{table.difference.iloc[1]:.3g} less loss a unit" in page.text
    assert f"95% interval {low:.3g} to {high:.3g}".replace("-", "−") in page.text
    rows = page.data["table-rows"]
    assert rows["columns"] == ["unit", *table.index]
    np.testing.assert_array_equal([row[1] for row in rows["rows"]], some[table.index[0]].per_unit())
    assert page.data["table-models"]["rows"][0][1] == table["mean"].iloc[0]
    np.testing.assert_allclose(column_of(page, "means", "standard error"), table["se"], rtol=1e-4)
    np.testing.assert_allclose(column_of(page, "means", "held-out loss"), table["mean"], rtol=1e-4)
    assert "all models:" in page.text


@pytest.mark.filterwarnings("ignore:compare. ")
def test_rows_without_a_loss_are_told_beside_the_mean(tmp_path):
    whole = estimate()
    less = dataclasses.replace(whole, losses=np.where(whole.plan.refit == 2, np.nan, whole.losses))
    count = np.sum(whole.plan.held & (whole.plan.refit == 2))
    said = f"{count} of 120 held-out losses do not exist, and are not in it"
    assert (
        said in read(less.report(tmp_path / "one.html")).text
        and said not in read(whole.report(tmp_path / "two.html")).text
    )
    text = read(lo.compare({"less": less, "whole": whole}).report(tmp_path / "both.html")).text
    assert (
        "this one lacks none" in text
        and f"this one lacks {count}" in text
        and "Lowest mean" not in text
    )


def test_a_leakage_report_says_what_it_says(pages):
    report, page = leaking(), read(pages["leakage"])
    row, naive = report.table.loc[report.recommended], report.table.loc["naive"]
    assert report.recommended == "both" and naive.score < row.score
    for said in (
        report.verdict,
        f"{row.score:.5g}",
        f"{row.correction_low:.3g} to {row.correction_high:.3g}",
        f"{naive.score:.5g}",
    ):
        assert said in page.text
    assert all(
        answer.assumption in page.text and answer.refusal in page.text
        for answer in report.answers.values()
    )
    assert "scoring='(y − ŷ)²', cv=5, level=0.95, num_draws=20, rng=0" in page.text
    # none are made: none is said to have passed
    assert "Checks" not in page.text and "found anything" not in page.text
    for name, frame in (("answers", report.table), ("rows", report.rows)):
        found = pd.DataFrame(
            page.data[f"table-{name}"]["rows"], columns=page.data[f"table-{name}"]["columns"]
        )
        assert found.iloc[:, 0].tolist() == frame.index.tolist()
        for column in frame.select_dtypes("number"):
            np.testing.assert_array_equal(found[column].astype(float), frame[column])
    cuts = pd.DataFrame(page.marks["cuts"])
    for name, curve in report.curves.items():
        np.testing.assert_allclose(
            cuts[cuts["answer"] == name]["score"].astype(float),
            naive.score + curve.difference,
            rtol=1e-4,
        )
    assert [mark["row"] for mark in page.marks["carried"]] == report.rows.index[:15].tolist()
    beside = pages["leakage"].read_text().split('id="picture-beside"')[1].split("</svg>")[0]
    for name in ("naive", "purge", "coarser", "both"):
        assert f">{name}</text>" in beside
    assert drawn(pages["leakage"]) == 3


def test_a_leakage_report_without_an_answer_is_a_page(tmp_path):
    rng = np.random.default_rng(0)
    linkage = lo.leakage.Linkage.from_pairs(([0], [1], [0.3]), 40)
    report = lo.leakage.leakage_report(
        KNeighborsRegressor(1), rng.normal(size=(40, 2)), rng.normal(size=40), linkage=linkage, groups=np.arange(40) // 2,
        scoring="mse", answers=("naive",),
    )  # fmt: skip
    page = read(report.report(tmp_path / "page.html", title="None & none"))
    assert (
        report.recommended in (None, "naive")
        and report.verdict in page.text
        and "None & none" in page.text
    )
    with pytest.raises(TypeError, match="got LeakageReport"):
        lo.report({"a": report, "b": report}, tmp_path / "both.html")


def test_what_cannot_be_compared_is_no_page(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((40, 2))
    one, two = (
        lo.cross_validate(lo.fit(lo.GLM(X, y, "squared")), lo.leave_one_out())
        for y in (X[:, 0], np.exp(X[:, 0]))
    )
    with pytest.raises(ValueError, match="predict other responses"):
        lo.report({"a": one, "b": two}, tmp_path / "out.html")
    assert not (tmp_path / "out.html").exists()
    with pytest.raises(ValueError, match=r"must end in \.html; got 'out\.pdf'"):
        one.report(tmp_path / "out.pdf")
    with pytest.raises(TypeError, match="report: give an Estimate, or several"):
        lo.report(one.table(), tmp_path / "out.html")
    alone = lo.report({"a": one}, tmp_path / "out.html", notes=["rows & rows"])
    assert "rows & rows" in read(alone).text and "None of the checks" not in read(alone).text


def test_without_the_extra_it_says_which(tmp_path, monkeypatch):
    for name in ("jinja2", "matplotlib"):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, name, None)
            with pytest.raises(ImportError, match=r"pip install 'leaveout\[report\]'"):
                estimate().report(tmp_path / "out.html")


@pytest.mark.slow
def test_joint_losses_and_series(tmp_path):
    x = np.random.default_rng(0).standard_normal(60)
    bare = lo.Objective(lambda theta, w: w @ (x - theta) ** 2, 60)
    joint = read(
        lo.cross_validate(lo.fit(bare, np.zeros(())), lo.kfold(k=6)).report(tmp_path / "joint.html")
    )
    assert len(joint.data["table-rows"]["rows"]) == 6 and "not available" in joint.text
    series = lo.fit(lo.HMM(np.random.default_rng(0).poisson(3.0, 150), lo.emissions.Poisson(), 1))
    page = read(lo.cross_validate(series, lo.leave_one_out()).report(tmp_path / "series.html"))
    assert len(page.marks["order"]) == 150


@pytest.mark.parametrize(
    "kind",
    [
        "days",
        "numbers",
        pytest.param("hours", marks=pytest.mark.slow),
        pytest.param("months", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow_for("numbers")
def test_steps_are_at_their_times(tmp_path, kind):
    """On the axis as dates, in words without a midnight that all of them have."""
    start = {"days": "2001-03-30", "hours": "2001-03-30 22:00+02:00", "months": "2001-03"}.get(kind)
    index = {
        "days": lambda: pd.date_range(start, periods=60, name="day"),
        "hours": lambda: pd.date_range(start, periods=60, freq="h", name="hour"),
        "months": lambda: pd.period_range(start, periods=60, freq="M", name="month"),
        "numbers": lambda: pd.RangeIndex(1, 61),
    }[kind]()
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"dose": rng.standard_normal(60)}, index=index)
    of = lambda a: lo.cross_validate(
        lo.fit(lo.GLM(X, X["dose"] + rng.standard_normal(60), "squared", lo.penalties.Ridge(a))),
        lo.blocks(60, 6),
    )
    one = of(1.0)
    several = {
        "a": one,
        "b": lo.cross_validate(lo.fit(one.fit.objective.under(lo.penalties.Ridge(50.0))), one.plan),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pages = [
            read(one.report(tmp_path / "one.html")),
            read(lo.report(several, tmp_path / "two.html")),
        ]
    want = {
        "days": "2001-03-30",
        "hours": "2001-03-30 22:00:00+02:00",
        "months": "2001-03",
        "numbers": "1",
    }[kind]
    for page in pages:
        rows = [mark["row"] for mark in page.marks["order"]]
        assert want in rows and want in {str(row[0]) for row in page.data["table-rows"]["rows"]}
    text = (tmp_path / "one.html").read_text().split('id="picture-order"')[1].split("</svg>")[0]
    ticks = {
        "days": (">Apr</text>", ">day</text>"),
        "hours": (">12:00</text>", ">hour</text>"),
        "months": (">2003</text>", ">month</text>"),
        "numbers": (">60</text>", ">unit</text>"),
    }[kind]
    assert all(tick in text for tick in ticks), re.findall(">([^<]*)</text>", text)


def test_nothing_is_fetched(pages):
    for path in pages.values():
        page = read(path)
        assert page.fetched and all(url.startswith(("#", "data:")) for url in page.fetched), (
            page.fetched
        )
        assert "default-src 'none'" in path.read_text() and path.stat().st_size < 3e5


def test_what_comes_from_data_is_text(pages):
    page, clean = read(pages["wild"]), read(pages["one"])
    assert page.tags == clean.tags and page.shapes == clean.shapes  # no element more
    assert page.text.count(WILD) >= 3 and page.data["table-rows"]["rows"][0][0].startswith(WILD)
    assert (
        "<b>"
        not in pages["several"]
        .read_text()
        .split("<body>")[1]
        .replace("<b>LO", "")
        .split("<script>")[0]
    )


def test_headings_and_language(pages):
    for path in pages.values():
        page, text = read(path), path.read_text()
        assert page.levels[0] == 1 and page.levels.count(1) == 1 and max(np.diff(page.levels)) <= 1
        assert (
            '<html lang="en">' in text
            and "<main>" in text
            and 'name="viewport"' in text
            and "@media print" in text
        )


def test_from_the_shell(tmp_path):
    rng = np.random.default_rng(0)
    file, page = tmp_path / "patients.csv", tmp_path / "out.html"
    frame = pd.DataFrame(
        {"id": np.arange(40), "age": rng.normal(50, 9, 40).round(1), "visits": rng.poisson(2.0, 40)}
    )
    frame.to_csv(file, index=False)
    run = lambda *words: CliRunner().invoke(app, list(map(str, words)))
    words = (
        "glm",
        file,
        "--target",
        "visits",
        "--features",
        "id,age",
        "--loss",
        "poisson",
        "--l2",
        "1",
    )
    done = run(*words, "--report", page)
    assert (
        done.exit_code == 0 and f"Report: {page}" in done.output and "LO102 warning" in done.output
    ), done.output
    said = read(page)
    assert (
        "LO102" in said.text
        and "How well will this model predict visits for another row?" in said.text
        and "patients.csv: 40 rows" in said.text
        and f"leaveout {' '.join(map(str, words))}" in said.text
    )
    done = run(*words, "--mute", "LO102,LO202", "--report", page)
    assert (
        done.exit_code == 0
        and "checks          none" in done.output
        and "muted           LO102, LO202" in done.output
    )
    assert "Muted: LO102, LO202." in read(page).text
    done = run("compare", *words[1:], "--model", "l2=1", "--model", "l2=10", "--report", page)
    assert (
        done.exit_code == 0 and "l2=1: LO102 warning" in done.output and "l2=10" in read(page).text
    ), done.output
    done = run("compare", *words[1:], "--model", "l2=1", "--model", "l2=10", "--mute", "LO102")
    assert done.exit_code == 0 and "LO102" not in done.output
    for wrong, why in (
        (("--mute", "LO1"), "codes are LO101"),
        (("--report", tmp_path / "out.txt"), "must end in .html"),
    ):
        done = run(*words, *wrong)
        assert done.exit_code == 2 and why in done.output and len(done.output.splitlines()) == 1, (
            done.output
        )
    file.rename(tmp_path / "rows.html")
    done = run("glm", tmp_path / "rows.html", *words[2:], "--report", tmp_path / "rows.html")
    assert done.exit_code == 2 and "it is the file that is read" in done.output


# in a browser


@pytest.fixture(scope="module")
def browser():
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    driver = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    with (
        driver.sync_playwright() as play,
        contextlib.closing(play.chromium.launch(executable_path=found, args=["--no-sandbox"])) as b,
    ):
        yield b


@pytest.fixture
def opened(browser, pages):
    """Open a page; whatever it complains of, or asks for, fails the test."""
    wrong, contexts = [], []

    def at(name, width=1200):
        context = browser.new_context(
            viewport={"width": width, "height": 800}, accept_downloads=True
        )
        contexts.append(context)
        page = context.new_page()
        page.on(
            "console",
            lambda message: (
                wrong.append(message.text) if message.type in ("error", "warning") else None
            ),
        )
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on(
            "request",
            lambda request: wrong.append(request.url) if request.url.startswith("http") else None,
        )
        page.goto(pages[name].as_uri())
        page.wait_for_selector(".picture svg")
        return page

    yield at
    for context in contexts:
        context.close()
    assert not wrong, wrong


def column(page, k):
    return [
        cell.inner_text()
        for cell in page.query_selector_all(f"#table-rows tbody td:nth-child({k})")
    ]


@pytest.mark.parametrize("name", ["one", "wild", "several", "leakage"])
@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.slow_for("1200-one", "1200-several", "1200-wild", "390-several")
def test_it_fits_the_screen(opened, name, width):
    page = opened(name, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert all(
        box["width"] <= width
        for box in (svg.bounding_box() for svg in page.query_selector_all(".picture svg"))
    )
    assert page.query_selector_all("img") == [] and len(column(page, 1)) == 25


def test_rows_are_sorted_by_keyboard(opened):
    page, table = opened("one"), estimate().table()
    button, head = (
        page.locator("#table-rows th button").nth(2),
        page.locator("#table-rows th").nth(2),
    )
    assert button.inner_text() == "no_update" and head.get_attribute("aria-sort") == "none"
    button.focus()
    for way, ascending in (("ascending", True), ("descending", False)):
        page.keyboard.press("Enter")
        want = table.sort_values("no_update", ascending=ascending)["unit"].head(25).tolist()
        assert head.get_attribute("aria-sort") == way and column(page, 1) == want
    page.locator("#table-rows th button").first.click()  # text: p2 before p10
    assert column(page, 1)[:3] == ["p0", "p1", "p2"] and head.get_attribute("aria-sort") == "none"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "loss"


def test_rows_are_searched_and_leafed_through(opened):
    page = opened("one")
    status = page.locator("#table-rows [role=status]")
    assert status.inner_text() == f"Rows 1 to 25 of {N}"
    page.get_by_role("button", name="Next").first.click()
    assert status.inner_text() == f"Rows 26 to 50 of {N}"
    page.locator("#table-rows").get_by_label("Search").fill("P11")
    assert status.inner_text() == f"Rows 1 to 11 of 11 found, of {N}" and set(column(page, 1)) == {
        "p11",
        *(f"p11{k}" for k in range(10)),
    }
    page.locator("#table-rows").get_by_label("Search").fill("no such row")
    assert "No row found" in status.inner_text() and column(page, 1) == []


@pytest.mark.parametrize("name", ["one", "wild"])
def test_the_table_is_downloaded_whole(opened, pages, name, tmp_path):
    page = opened(name)
    with page.expect_download() as waiting:
        page.locator("#table-rows").get_by_role("link", name="Download CSV").click()
    assert waiting.value.suggested_filename == "rows.csv"
    waiting.value.save_as(tmp_path / "rows.csv")
    got = pd.read_csv(io.BytesIO((tmp_path / "rows.csv").read_bytes()))
    data = read(pages[name]).data["table-rows"]
    pd.testing.assert_frame_equal(
        got, pd.DataFrame(data["rows"], columns=data["columns"]), check_exact=True
    )


def test_a_point_tells_its_numbers(opened):
    page, cv = opened("one"), estimate()
    texts = page.locator("#picture-carried use title").all_text_contents()
    assert "row: p5" in texts[0] and f"held-out loss: {cv.per_unit().iloc[5]:.5g}" in texts[0]
    page.locator("#picture-carried").scroll_into_view_if_needed()
    end = page.locator("#picture-carried use:has(title)").first.bounding_box()
    middle = [end["x"] + end["width"] / 2, end["y"] + end["height"] / 2]
    under = page.evaluate("([x, y]) => document.elementFromPoint(x, y).textContent", middle)
    assert "p5" in under


def test_text_can_be_read_and_printed(opened):
    page = opened("one")
    found = page.evaluate(CONTRAST)
    assert len(found) > 50 and min(found)[0] >= LEAST, min(found)
    page.emulate_media(media="print")
    assert (
        not page.locator("nav").is_visible()
        and not page.locator("#table-rows .controls").first.is_visible()
    )
    assert (
        page.evaluate("document.documentElement.scrollWidth") <= 1200 and page.pdf()[:5] == b"%PDF-"
    )


def test_what_a_page_says_itself_is_not_said_twice(tmp_path):
    fits = {
        str(a): lo.fit(lo.GLM(np.eye(9, 2), np.arange(9.0), "squared", lo.penalties.Ridge(a)))
        for a in (1.0, 2.0)
    }
    found = {name: lo.cross_validate(fit, lo.leave_one_out()) for name, fit in fits.items()}
    with pytest.warns(UserWarning, match="fewer than 100") as caught:
        lo.compare(found)
    said = str(next(each.message for each in caught if "fewer than 100" in str(each.message)))
    page = lo.report(found, tmp_path / "page.html", notes=[said, "and this"]).read_text()
    assert page.count(said) == 1 and page.count("and this") == 1
