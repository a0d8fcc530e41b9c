"""The report as one HTML page: no scripts, no requests, light and dark, on a phone and on paper."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Literal

from hcl.records.scores import Result
from hcl.report import catalogue
from hcl.report.figures import DARK, css_name
from hcl.report.tables import Cell, Table, compared, number, title_of


@dataclass(frozen=True)
class Picture:
    """A drawing for the page and where its files lie."""

    svg: str
    caption: str = ""
    wide: bool = False


_DARK_VARIABLES = "".join(f"{css_name(light)}:{dark};" for light, dark in DARK.items())

CSS = f"""
:root{{color-scheme:light dark;--page:#fff;--ink:#1d2329;--muted:#59636e;--rule:#d5dae0;
--soft:#f4f6f8;--accent:#00639c;--good:#00704f;--bad:#a84300}}
@media screen and (prefers-color-scheme:dark){{:root{{--page:#15191e;--ink:#e8ecf0;--muted:#9aa5b1;
--rule:#3a424b;--soft:#1d2329;--accent:#6cbcf0;--good:#4fd0a6;--bad:#f39a5c;{_DARK_VARIABLES}}}}}
*{{box-sizing:border-box}}
html{{-webkit-text-size-adjust:100%;scroll-behavior:smooth}}
body{{margin:0;background:var(--page);color:var(--ink);
font:1rem/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif}}
main,header,footer{{max-width:70rem;margin:0 auto;padding:0 1.25rem}}
header{{padding-top:2.5rem}}
h1{{font-size:clamp(1.6rem,4vw,2.3rem);line-height:1.15;margin:0 0 .5rem;letter-spacing:-.015em}}
h2{{font-size:1.5rem;margin:3.2rem 0 .4rem;padding-top:1rem;border-top:2px solid var(--ink);
letter-spacing:-.01em}}
h3{{font-size:1.1rem;margin:2.4rem 0 .3rem}}
p{{max-width:46rem;margin:.4rem 0 .9rem}}
.lede,.note,figcaption{{color:var(--muted)}}
.note,figcaption{{font-size:.875rem;line-height:1.45}}
a{{color:var(--accent)}}
nav ul{{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;margin:1rem 0 0;padding:0}}
.scroll{{position:relative;overflow-x:auto;max-width:100%;-webkit-overflow-scrolling:touch}}
table{{border-collapse:collapse;margin:.8rem 0;font-size:.9rem;font-variant-numeric:tabular-nums}}
caption{{text-align:left;color:var(--muted);font-size:.875rem;padding-bottom:.4rem}}
th,td{{padding:.34rem .8rem;text-align:right;white-space:nowrap;
border-bottom:1px solid var(--rule)}}
thead th{{border-bottom:1.5px solid var(--ink);vertical-align:bottom;font-weight:600}}
thead th[scope=colgroup]{{text-align:center;border-bottom:1px solid var(--rule)}}
tbody th,thead th:first-child{{text-align:left;font-weight:600}}
tbody th,thead tr:first-child th:first-child{{position:sticky;left:0;background:var(--page)}}
tbody tr:hover td,tbody tr:hover th{{background:var(--soft)}}
tbody tr.first-agnostic>*{{border-top:1.5px solid var(--muted)}}
td small{{color:var(--muted);font-size:.8em}}
th small{{color:var(--muted);font-weight:400}}
td.best{{font-weight:700}}
td.best::before{{content:"▸\\00a0";color:var(--accent);font-weight:400}}
td.paper{{color:var(--muted)}}
td.left,th.left{{text-align:left;white-space:normal}}
.good{{color:var(--good)}}.bad{{color:var(--bad)}}
figure{{margin:.8rem 0 1.6rem}}
figure svg{{display:block;max-width:100%;height:auto}}
figure svg text{{font-family:inherit!important}}
.wide svg{{min-width:34rem;max-width:52rem;width:100%}}
.panels{{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(19.5rem,100%),1fr));
gap:1.1rem 1.4rem;margin:.8rem 0 .6rem}}
.panels figure{{margin:0}}
.panels svg{{width:100%;max-width:24rem}}
.panels.small{{grid-template-columns:repeat(auto-fill,minmax(min(15rem,100%),1fr))}}
.panels.large{{grid-template-columns:repeat(auto-fill,minmax(min(27rem,100%),1fr))}}
.panels.large svg{{max-width:36rem}}
details{{margin:.5rem 0}}
summary{{cursor:pointer;color:var(--accent)}}
pre,code{{font:.85em/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}}
pre{{background:var(--soft);padding:.8rem 1rem;overflow-x:auto;border-radius:.3rem}}
.hash{{word-break:break-all;white-space:normal}}
.chips{{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.2rem 0 .6rem;font-size:.875rem}}
.chips span{{white-space:nowrap}}
.dot{{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.35em}}
footer{{color:var(--muted);font-size:.875rem;padding-top:2rem;padding-bottom:3rem}}
.hidden{{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}}
@media (max-width:40rem){{th,td{{padding:.3rem .5rem}}table{{font-size:.82rem}}
thead th{{white-space:normal}}td small{{display:block}}
main,header,footer{{padding-left:1rem;padding-right:1rem}}}}
@media print{{@page{{margin:1.6cm}}body{{font-size:9.5pt}}nav{{display:none}}
details::details-content{{content-visibility:visible;block-size:auto}}
main,header,footer{{max-width:none;padding:0}}section+section h2{{break-before:page}}
h2,h3,caption,thead{{break-after:avoid}}figure,tr,.panels figure{{break-inside:avoid}}
.dot{{print-color-adjust:exact;-webkit-print-color-adjust:exact}}.scroll{{overflow:visible}}
.wide svg{{min-width:0;max-width:100%}}.panels{{grid-template-columns:repeat(3,1fr)}}
.panels.large{{grid-template-columns:repeat(2,1fr)}}
table{{font-size:8pt}}th,td{{padding:.2rem .4rem}}a{{color:inherit;text-decoration:none}}
tbody th,thead th{{position:static!important}}}}
"""


def page(title: str, lede: str, sections: Sequence[tuple[str, str, str]], footer: str) -> str:
    """The whole document.

    Args:
        title: of the page.
        lede: HTML under the title.
        sections: (anchor, heading, HTML) of each; an anchor is a ``slug``.
        footer: HTML at the end.
    """
    links = "".join(f'<li><a href="#{a}">{escape(h)}</a></li>' for a, h, _ in sections)
    body = "".join(
        f'<section aria-labelledby="{a}"><h2 id="{a}">{escape(h)}</h2>\n{text}</section>\n'
        for a, h, text in sections
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{escape(title)}</title>
<style>{CSS}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<div class="lede">{lede}</div>
<nav aria-label="Sections"><ul>{links}</ul></nav>
</header>
<main>
{body}</main>
<footer>{footer}</footer>
</body>
</html>
"""


# Tables -------------------------------------------------------------------------------------------


def table_html(table: Table, caption: str) -> str:
    """Ours; with the paper's figure and the gap in points where the paper has the metric."""
    beside = compared(table)
    above, below = _th("method", rowspan=2 if any(beside) else 1), ""
    tasks = table.tasks or [""] * len(beside)
    for column, task, compare in zip(table.columns, tasks, beside, strict=True):
        metric = catalogue.METRICS.get(column)
        arrow = "" if metric is None else " ↓" if metric.lower_is_better else " ↑"
        title = escape(title_of(column)) + f'<span aria-hidden="true">{arrow}</span>'
        title += f"<br><small>{escape(task)}</small>" if task else ""
        kind = 'scope="colgroup" colspan="3"' if compare else 'scope="col"'
        above += f"<th {kind}>{title}</th>"
        below += _th("ours") + (_th("paper") + _th("gap") if compare else "")
    head = f"<tr>{above}</tr>" + (f"<tr>{below}</tr>" if any(beside) else "")
    body, agnostic_before = "", False
    for row in table.rows:
        first = row.task_agnostic and not agnostic_before
        agnostic_before = row.task_agnostic
        body += '<tr class="first-agnostic">' if first else "<tr>"
        body += f'<th scope="row">{escape(row.label)}</th>'
        body += "".join(map(_cells, table.columns, row.cells, beside))
        body += "</tr>\n"
    return _wrap(caption, head, body)


def _cells(column: str, cell: Cell, compare: bool) -> str:
    spread = f" <small>± {number(cell.std)}</small>" if cell.std is not None else ""
    best = ' class="best"' if cell.best else ""
    said = '<span class="hidden">best: </span>' if cell.best else ""
    html = f"<td{best}>{said}{number(cell.mean)}{spread}</td>"
    if compare:
        paper_spread = f" <small>± {number(cell.paper_std)}</small>" if cell.paper_std else ""
        html += f'<td class="paper">{number(cell.paper)}{paper_spread}</td>'
        html += f"<td{_verdict(column, cell.gap)}>{number(cell.gap, signed=True)}</td>"
    return html


def _verdict(column: str, gap: float | None) -> str:
    if gap is None or abs(gap) < 0.005:
        return ""
    better = gap < 0 if catalogue.METRICS[column].lower_is_better else gap > 0
    return ' class="good"' if better else ' class="bad"'


def simple_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts; the first column names the row."""
    head = "<tr>" + "".join(_th(text) for text in header) + "</tr>"
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f"<td>{escape(text)}</td>" for text in others)
        + "</tr>\n"
        for first, *others in rows
    )
    return _wrap(caption, head, body)


def texts_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of sentences, which may break into lines; the first column names the row."""
    head = "<tr>" + "".join(f'<th scope="col" class="left">{escape(t)}</th>' for t in header)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>'
        + "".join(f'<td class="left">{escape(text)}</td>' for text in others)
        + "</tr>\n"
        for first, *others in rows
    )
    return _wrap(caption, f"{head}</tr>", body)


def facts_table(caption: str, rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, both texts; long values may break anywhere."""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="left hash">{escape(value)}</td></tr>\n'
        for name, value in rows
    )
    return _wrap(caption, "", body)


def _th(text: str, rowspan: int = 1) -> str:
    span = f' rowspan="{rowspan}"' if rowspan > 1 else ""
    return f'<th scope="col"{span}>{escape(text)}</th>'


def _wrap(caption: str, head: str, body: str) -> str:
    head = f"<thead>{head}</thead>\n" if head else ""
    # A region that scrolls must be reachable from the keyboard.
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption>\n{head}<tbody>{body}</tbody></table></div>\n"
    )


# Figures and facts --------------------------------------------------------------------------------


def figure_html(picture: Picture) -> str:
    """One figure with its caption; a wide one scrolls inside its box on a narrow screen."""
    caption = f"<figcaption>{picture.caption}</figcaption>" if picture.caption else ""
    if picture.wide:
        box = '<div class="scroll wide" role="region" tabindex="0" aria-label="Figure">'
        return f"<figure>{box}{picture.svg}</div>{caption}</figure>\n"
    return f"<figure>{picture.svg}{caption}</figure>\n"


def panels_html(
    pictures: Sequence[Picture], caption: str, size: Literal["small", "medium", "large"] = "medium"
) -> str:
    """Many figures side by side, as many as fit: four small, three medium or two large."""
    return (
        f'<div class="panels {size}">'
        + "".join(figure_html(picture) for picture in pictures)
        + f'</div>\n<p class="note">{caption}</p>\n'
    )


def task_key(colours: Sequence[str], names: Sequence[str]) -> str:
    """Which colour is which task."""
    return (
        '<div class="chips">'
        + "".join(
            f'<span><i class="dot" style="background:var({css_name(c)},{c})"></i>{escape(n)}</span>'
            for c, n in zip(colours, names, strict=True)
        )
        + "</div>\n"
    )


def metrics_table() -> str:
    """What each number of the headline counts, in a sentence."""
    rows = [[m.label, m.sentence] for m in catalogue.METRICS.values()]
    return texts_table("The three metrics", ["metric", "what it counts"], rows)


def methods_table(results: Sequence[Result]) -> str:
    """What each method is, whose it is, and when to take it."""
    rows = []
    for result in results:
        said = catalogue.entry(result.method)
        text = said.sentence
        if result.task_agnostic and catalogue.TASK_AGNOSTIC not in text:
            text += ("; " if text else "") + catalogue.TASK_AGNOSTIC
        rows.append([said.label, text, said.origin, said.take_it])
    header = ["method", "what it is", "whose it is", "take it …"]
    return texts_table("The methods of this page", header, rows)


def settings_rows(settings: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted keys and their values; what is not set is left out."""
    rows: list[tuple[str, str]] = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            rows += settings_rows(value, f"{name}.")
        elif value is not None and value != [] and value != "":
            rows.append((name, value if isinstance(value, str) else json.dumps(value)))
    return rows
