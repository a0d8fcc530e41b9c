"""The tables of docs/streams.md, from the CSVs beside this file.

    python docs/streams/page.py

`benchmarks/beyond.py` writes the CSVs, a line for each run. A cell is the mean over seeds and, with
more than one, the standard deviation; a row says how many where they are not three.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path

from hcl.evaluate.metrics import mean_and_std
from hcl.files import replacing
from hcl.report.catalogue import label

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "streams.md"
USUAL_SEEDS = 3  # said once, above the tables
ORDER = (
    *("ncm", "slda", "ranpac", "hcl-plus", "hcl-plus-shared", "hcl-plus-mixed", "hcl-plus-ta"),
    *("hcl-fr-labelled", "hcl-fr", "hcl-fr-mixed", "hcl-fr-auto"),
    *("hcl-gr-labelled", "hcl-gr", "hcl-gr-mixed", "hcl-gr-auto"),
)

Row = dict[str, str]


def read(benchmark: str, folder: Path = HERE) -> list[Row]:
    """The runs of a benchmark."""
    with (folder / f"{benchmark}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(rows: Sequence[Row], column: str) -> str:
    """``96.2±0.3``, over seeds."""
    mean, std = mean_and_std([float(row[column]) for row in rows])
    return f"{mean:.1f}" + (f"±{std:.1f}" if len(rows) > 1 else "")


def changes(rows: Sequence[Row]) -> str:
    """How many changes were found, and false alarms, as means over seeds."""
    told = [row for row in rows if row.get("true")]
    if not told:
        return ""
    found, true, false = (
        f"{round(sum(float(row[name]) for row in told) / len(told), 2):g}"
        for name in ("found", "true", "false")
    )
    return f"{found}/{true}" + (f", {false} false" if false != "0" else "")


def name_of(method: str, rows: Sequence[Row]) -> str:
    """The method's label, with its number of seeds where it is not the usual one."""
    seeds = len({row["seed"] for row in rows})
    plural = "" if seeds == 1 else "s"
    return label(method) + ("" if seeds == USUAL_SEEDS else f", {seeds} seed{plural}")


def columns_of(rows: Sequence[Row]) -> dict[str, str]:
    """A method's cells: by share of labels where these differ, else by metric."""
    if rows[0]["labelled"] != "1":
        shares = dict.fromkeys(row["labelled"] for row in rows)
        return {
            f"{100 * float(share):g} %": ", ".join(
                number([row for row in rows if row["labelled"] == share], column)
                for column in ("average", "overall")
            )
            for share in shares
        }
    metrics = ("final", "incremental") if rows[0]["incremental"] else ("average", "overall")
    return {**{m: number(rows, m) for m in metrics}, "changes": changes(rows)}


def table(benchmark: str, folder: Path = HERE) -> str:
    """The table of a benchmark, in Markdown; a column that would be empty is left out."""
    runs = read(benchmark, folder)
    methods = sorted({row["method"] for row in runs}, key=ORDER.index)
    by_method = {m: [row for row in runs if row["method"] == m] for m in methods}
    cells = {name_of(m, rows): columns_of(rows) for m, rows in by_method.items()}
    titles = dict.fromkeys(title for found in cells.values() for title in found)
    shown = [title for title in titles if any(found.get(title) for found in cells.values())]
    lines = ["| method | " + " | ".join(shown) + " |", "| --- " * (len(shown) + 1) + "|"]
    for name, found in cells.items():
        lines.append(f"| {name} | " + " | ".join(found.get(t, "") for t in shown) + " |")
    return "\n".join(re.sub(r"\|\s+(?=\|)", "|", line) for line in lines)


def with_tables(page: str, folder: Path = HERE) -> str:
    """The page with the table of each benchmark that it marks."""
    return re.sub(
        r"(<!-- runs: (\S+) -->\n).*?(<!-- end -->)",
        lambda mark: mark[1] + table(mark[2], folder) + "\n" + mark[3],
        page,
        flags=re.DOTALL,
    )


def main() -> None:
    page = with_tables(PAGE.read_text(encoding="utf-8"))
    with replacing(PAGE) as partial:
        partial.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
