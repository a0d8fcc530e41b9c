"""The report's tables and page, from results that are written by the evaluation itself."""

from __future__ import annotations

import csv
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from hcl.errors import HCLError
from hcl.report import report, tables
from hcl.report.page import table_html
from hcl.report.results import method_label
from tests.support.made_runs import make_benchmark, studies, write_result

ANSWERS = {
    "adam": [[(2, s) for s in range(6)], [(2, s) for s in range(4)]],
    "mtl": [[], []],
    "hcl-fr": [[(2, 0)], [(2, 0)]],
    "hcl-fr-ta": [[(2, 0), (2, 1)], [(2, 0)]],
    "curl": [[(2, 0), (2, 6)], [(2, 0)]],
}
GRID = report.Grid(benchmarks=("toy",), methods=tuple(ANSWERS))


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    for method, wrong in ANSWERS.items():
        write_result(folder, make_benchmark(), method, wrong)
    return folder


def build(written: Path, out: Path) -> str:
    results = report.read_results(written / "metrics", written / "scores", GRID)
    return report.write_report(out, results, *studies())


@pytest.fixture(scope="module")
def built(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report"
    (out.parent / "printed.txt").write_text(build(written, out))
    return out


def test_headline_marks_the_best_and_leaves_the_upper_bound_out(written: Path) -> None:
    results = report.read_results(written / "metrics", written / "scores", GRID)["toy"]
    table = tables.headline(results)
    best = {row.method: [cell.best for cell in row.cells] for row in table.rows}
    assert best["hcl-fr"] == [True, True, True]
    assert best["mtl"] == [False, False, False]
    assert not any(best["adam"])
    (hcl,) = [row for row in table.rows if row.method == "hcl-fr"]
    # Of task 1's four samples one is wrong in the end: 75, 100, 100, and 25 points over τ − 1 = 2.
    assert [cell.mean for cell in hcl.cells] == [
        pytest.approx(91.6667),
        pytest.approx(12.5),
        pytest.approx(91.6667),
    ]


def test_forgetting_is_best_where_it_is_lowest(written: Path) -> None:
    grid = report.Grid(benchmarks=("toy",), methods=("adam", "hcl-fr"))
    results = report.read_results(written / "metrics", written / "scores", grid)["toy"]
    by_method = {row.method: row.cells[1] for row in tables.headline(results).rows}
    assert by_method["adam"].mean > by_method["hcl-fr"].mean
    assert (by_method["adam"].best, by_method["hcl-fr"].best) == (False, True)


def test_markdown_table(built: Path) -> None:
    text = (built / "tables.md").read_text()
    assert "| method | average accuracy | forgetting | overall accuracy | changes found |" in text
    assert "| HCL-FR | **91.67 ± 0.00** | **12.50 ± 0.00** | **91.67 ± 0.00** |  |" in text
    assert re.search(r"\| HCL-FR \(TA\) \| .* \| 2/2, 1 false \|\n", text)
    assert re.search(r"\| CURL \| .* \| – \|  \|\n", text)
    headline, by_task = text.split("Final accuracy on each task")
    for table, columns in ((headline, 5), (by_task, 4)):  # changes are no matter of single tasks
        rows = [line for line in table.splitlines() if line.startswith("|")]
        assert {row.count("|") - 1 for row in rows} == {columns}
    assert "The paper has no results for this benchmark" in text


def test_tidy_csv_has_every_number(built: Path) -> None:
    with open(built / "tables.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    changes = {r["metric"]: r["mean"] for r in rows if r["metric"].startswith("changes_")}
    assert changes == {
        "changes_true": "2.0000",
        "changes_found": "2.0000",
        "changes_false": "1.0000",
        "changes_misnamed": "0.0000",
    }
    assert {r["seeds"] for r in rows} == {"2"}
    assert len(rows) == len(ANSWERS) * (3 + 3) + len(changes)  # three metrics, three tasks
    (row,) = [r for r in rows if r["method"] == "adam" and r["metric"] == "task_1"]
    # Seed 0 and seed 1 both miss the whole of task 1; of task 2, seed 0 alone.
    assert (row["mean"], row["std"], row["paper_mean"]) == ("0.0000", "0.0000", "")
    (row,) = [r for r in rows if r["method"] == "adam" and r["metric"] == "task_2"]
    assert (row["mean"], row["std"]) == ("50.0000", "50.0000")
    (row,) = [r for r in rows if r["method"] == "curl" and r["metric"] == "overall_accuracy"]
    assert (row["mean"], row["best"]) == ("", "0")


def test_seeds_csv_has_a_row_a_run(built: Path) -> None:
    with open(built / "seeds.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(ANSWERS) * 2
    first, second = (row for row in rows if row["method"] == "adam")
    assert (first["benchmark"], first["seed"], second["seed"]) == ("toy", "0", "1")
    # Both miss the whole of task 1; of task 2, seed 0 alone.
    assert [row["task_1"] for row in (first, second)] == ["0.0000", "0.0000"]
    assert [row["task_2"] for row in (first, second)] == ["0.0000", "100.0000"]
    assert first["changes_found"] == ""
    detected = [row for row in rows if row["method"] == "hcl-fr-ta"]
    assert [row["changes_found"] for row in detected] == ["2", "2"]
    assert list(first)[-3:] == ["task_1", "task_2", "task_3"]


def test_latex_table(built: Path) -> None:
    text = (built / "tables.tex").read_text()
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 2
    assert "HCL-FR & {\\boldmath$91.67${\\scriptsize$\\,\\pm\\,0.00$}}" in text
    body = [line for line in text.splitlines() if line.endswith("\\\\")]
    assert [line.count("&") for line in body] == [4] * 6 + [3] * 6  # changes found, and tasks
    assert body[0].endswith("overall accuracy & changes found \\\\")
    assert next(line for line in body if "2/2, 1 false" in line).startswith("HCL-FR (TA) &")


@pytest.mark.slow
def test_a_page_without_a_view_of_the_latent_space_says_why(written: Path, tmp_path: Path) -> None:
    note = "<code>save_model: true</code> in <code>benchmarks.toy.training</code>"
    for methods, said in ((("adam", "curl"), True), (("adam", "hcl-fr"), False)):
        grid = report.Grid(benchmarks=("toy",), methods=methods)
        results = report.read_results(written / "metrics", written / "scores", grid)
        report.write_report(tmp_path / "report", results)
        assert (note in (tmp_path / "report/index.html").read_text()) == said


def test_the_headline_that_is_printed(built: Path) -> None:
    printed = (built.parent / "printed.txt").read_text()
    assert re.search(r"HCL-FR +91\.67 ± 0\.00\* +12\.50 ± 0\.00\* +91\.67 ± 0\.00\*\n", printed)
    assert re.search(r"CURL .* –\n", printed)


def test_the_printed_headline_has_the_changes_that_were_found(written: Path, built: Path) -> None:
    printed = (built.parent / "printed.txt").read_text()
    assert "overall accuracy  changes found\n" in printed
    # Of the verdicts at batches 12, 27 and 30, the last stands within a task.
    assert re.search(r"HCL-FR \(TA\) .*  2/2, 1 false\n", printed)
    assert printed.count(" false\n") == 1
    grid = report.Grid(benchmarks=("toy",), methods=("adam", "hcl-fr"))
    told = report.read_results(written / "metrics", written / "scores", grid)["toy"]
    assert "changes" not in tables.plain(tables.headline(told))


def test_the_trace_of_hcl_plus_is_that_of_its_own_test(tmp_path: Path) -> None:
    methods = ("hcl-fr-ta", "hcl-plus-ta")
    for method in methods:
        write_result(tmp_path, make_benchmark(), method, [[], []])
    grid = report.Grid(benchmarks=("toy",), methods=methods)
    results = report.read_results(tmp_path / "metrics", tmp_path / "scores", grid)["toy"]
    flow, plus = (report._trace_view(result) for result in results)
    assert (flow.label, flow.threshold) == (report.STATISTIC_LABELS["log_px"], 5.0)
    assert (plus.label, plus.threshold) == (report.STATISTIC_LABELS["mean_shift"], 3.0)
    assert plus.found == [12, 27]
    assert plus.false == [30]


def test_changes_are_means_over_seeds() -> None:
    assert str(tables.Changes(4, 11 / 3, 1 / 3, 0.0)) == "3.67/4, 0.33 false"
    assert str(tables.Changes(12, 12.0, 0.0, 0.0)) == "12/12, 0 false"
    assert str(tables.Changes(4, 4.0, 0.0, 0.5)) == "4/4, 0 false, 0.5 misnamed"


def test_the_paper_stands_beside_the_same_benchmark(tmp_path: Path) -> None:
    benchmark = make_benchmark("svhn-mnist", order=(0, 1), epochs=90)
    for method in ("er", "ncm"):
        write_result(tmp_path, benchmark, method, [[(1, 0)]])
    # The paper's tasks have ten classes, ours two: not the same.
    grid = report.Grid(benchmarks=("svhn-mnist",), methods=("er", "ncm"))
    results = report.read_results(tmp_path / "metrics", tmp_path / "scores", grid)["svhn-mnist"]
    assert tables.headline(results).paper is None
    for result in results:
        result.about["classes_per_task"] = 10
    table = tables.headline(results)
    assert table.paper is not None
    er, ncm = table.rows
    assert er.cells[0].mean == pytest.approx(87.5)
    assert er.cells[0].paper == 85.295
    assert er.cells[0].gap == pytest.approx(2.205)
    assert ncm.cells[0].paper is None
    text = tables.markdown(table)
    assert "| method | average accuracy | paper | gap | forgetting |" in text
    assert re.search(r"\| ER \| \*\*87\.50\*\* \| 85\.(29|30) \| \+2\.2[01] \|", text)
    html = table_html(table, "caption")
    assert '<td class="good">+2.2' in html
    assert '<td class="bad">+0.17</td>' in html  # forgetting: 25 against 24.83
    assert "Table S2" in report._paper_note(table)


class Reader(HTMLParser):
    """Collects tags, and checks that they nest."""

    VOID = frozenset({"meta", "link", "br", "img", "path", "use", "rect", "image"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text())
    assert not reader.open
    return reader


def test_page_is_whole_and_needs_nothing_from_outside(built: Path) -> None:
    reader = read(built / "index.html")
    assert not [tag for tag, _ in reader.tags if tag in ("script", "iframe", "object")]
    for tag, attributes in reader.tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, name, value)
        assert "url(" not in (attributes.get("style") or "").replace("url(#", "")
    assert "@import" not in (built / "index.html").read_text()


def test_page_can_be_read_without_seeing(built: Path) -> None:
    reader = read(built / "index.html")
    assert ("html", {"lang": "en"}) in reader.tags
    drawings = [attributes for tag, attributes in reader.tags if tag == "svg"]
    assert len(drawings) >= 5
    assert all(a.get("role") == "img" and a.get("aria-label") for a in drawings)
    heads = [attributes for tag, attributes in reader.tags if tag == "th"]
    assert heads
    assert all(a.get("scope") in ("col", "row", "colgroup") for a in heads)
    assert len([tag for tag, _ in reader.tags if tag == "table"]) == len(
        [tag for tag, _ in reader.tags if tag == "caption"]
    )
    ids = [attributes["id"] for _, attributes in reader.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = {(a.get("href") or "")[1:] for tag, a in reader.tags if tag == "a"}
    assert targets
    assert targets <= set(ids)


def test_page_shows_every_part(built: Path) -> None:
    text = (built / "index.html").read_text()
    for heading in (
        "Accuracy by task",
        "Average accuracy, forgetting and overall accuracy",
        "The accuracy matrix",
        "Task changes",
        "The latent space",
        "Two moons",
        "toy flow",
        "What was run",
    ):
        assert heading in text, heading
    assert "pictures seen by lite0.in1k" in text
    assert "12" * 32 in text  # the digest of the weights
    assert "method.detection.threshold" in text
    # Over two seeds: 4 of 4 changes; batch 30 after batch 27 in the same segment is false.
    found = re.search(r"HCL-FR \(TA\)</th>(?:<td>[^<]*</td>){6}</tr>", text)
    assert found
    cells = re.findall(r"<td>([^<]*)</td>", found[0])
    assert cells == ["4 of 4", "0", "2", "0", "1.50 ± 0.00", "–"]
    assert "changes at batches 13, 25, found at 13, 28, false at 31." in text
    assert "−77.70" in text


def test_figures_are_files_too(built: Path) -> None:
    names = {p.relative_to(built / "figures").as_posix() for p in built.rglob("figures/**/*.png")}
    assert {
        "toy/accuracy-by-task-paper.png",
        "toy/metrics.png",
        "toy/accuracy-matrix.png",
        "toy/accuracy-over-time.png",
        "toy/trace-hcl-fr-ta.png",
        "toy/latent-space.png",
        "two-moons.png",
        "toy-losses.png",
    } == names
    for name in names:
        assert (built / "figures" / name).with_suffix(".svg").exists()


@pytest.mark.slow
def test_the_same_results_give_the_same_bytes(written: Path, built: Path, tmp_path: Path) -> None:
    build(written, tmp_path / "again")
    files = [path for path in built.rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        twin = tmp_path / "again" / path.relative_to(built)
        assert path.read_bytes() == twin.read_bytes(), path


def test_a_result_outside_the_grid_is_not_read(written: Path) -> None:
    grid = report.Grid(benchmarks=("toy",), methods=("mtl",))
    results = report.read_results(written / "metrics", written / "scores", grid)
    assert [result.method for result in results["toy"]] == ["mtl"]


def test_a_missing_result_is_named_with_the_command_that_makes_it(written: Path) -> None:
    grid = report.Grid(benchmarks=("toy",), methods=("mtl", "er"))
    message = r"er\.json: no such result; make it with `dvc repro evaluate@toy-er`"
    with pytest.raises(HCLError, match=message):
        report.read_results(written / "metrics", written / "scores", grid)


def test_scores_of_different_streams_are_not_mixed(tmp_path: Path) -> None:
    write_result(tmp_path, make_benchmark(), "mtl", [[]])
    write_result(tmp_path, make_benchmark(epochs=4), "er", [[]])
    grid = report.Grid(benchmarks=("toy",), methods=("mtl", "er"))
    with pytest.raises(HCLError, match="different streams"):
        report.read_results(tmp_path / "metrics", tmp_path / "scores", grid)


def test_a_table_cut_short_is_refused(tmp_path: Path) -> None:
    write_result(tmp_path, make_benchmark(), "mtl", [[]])
    path = tmp_path / "scores/toy/mtl/accuracy.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    grid = report.Grid(benchmarks=("toy",), methods=("mtl",))
    with pytest.raises(HCLError, match=r"accuracy\.csv: not every accuracy is there"):
        report.read_results(tmp_path / "metrics", tmp_path / "scores", grid)


@pytest.mark.parametrize(
    ("method", "label"),
    [
        ("hcl-fr", "HCL-FR"),
        ("hcl-gr-ta", "HCL-GR (TA)"),
        ("mine", "mine"),
        ("mine-ta", "mine (TA)"),
    ],
)
def test_labels_are_the_paper_s(method: str, label: str) -> None:
    assert method_label(method) == label


@pytest.mark.parametrize(
    ("value", "signed", "text"),
    [(None, False, "–"), (-0.001, False, "0.00"), (-1.5, False, "−1.50"), (2.345, True, "+2.35")],
)
def test_numbers(value: float | None, signed: bool, text: str) -> None:
    assert tables.number(value, signed) in (text, text.replace("2.35", "2.34"))
