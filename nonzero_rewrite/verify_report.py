"""Formats a Verification: a short account for a terminal, and JUnit XML for CI."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, TypeVar
from xml.etree import ElementTree

from nonzero_rewrite.verification import Outcome, Selection, Verification

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

MAX_DIFFERENCES_SHOWN = 5
MAX_ROWS = 24
"""Rows of a table; the JSON report has all."""
_Item = TypeVar("_Item")
_WORDS = {
    Outcome.EQUAL: "[green]equal[/green]",
    Outcome.DIFFERENT: "[red]DIFFERENT[/red]",
    Outcome.NOT_COMPARABLE: "[yellow]not comparable[/yellow]",
}


def render_verification(result: Verification, console: Console) -> None:
    """Print what was compared, on what, and what came of it; plain ASCII, a screen at most."""
    console.print(f"Parity: {_WORDS[result.outcome]} - {_basis(result)}", highlight=False)
    if result.reason:
        console.print(f"  {safe(result.reason, console)}", highlight=False)
    _print_outputs(result, console)
    _print_masks(result, console)
    for difference in result.differences[1:MAX_DIFFERENCES_SHOWN]:
        where = f"{difference.tensor} ({difference.case}): " if difference.tensor else ""
        console.print(f"  {safe(where + difference.text, console)}", highlight=False)
    if len(result.differences) > MAX_DIFFERENCES_SHOWN:
        more = len(result.differences) - MAX_DIFFERENCES_SHOWN
        console.print(f"  {more} more differences are in the JSON report", highlight=False)
    for label in result.unobserved:
        text = f"  NonZero {label}: inside a subgraph or function, compared through the outputs"
        console.print(safe(text, console), highlight=False)
    for note in result.notes:
        console.print(f"  note: {safe(note, console)}", highlight=False)


def safe(text: str, console: Console) -> str:
    """``text`` from a model as this terminal can show it: no markup, no control characters."""
    from rich.markup import escape

    visible = "".join(c if c.isprintable() else "?" for c in text)
    encoding = console.encoding
    return escape(visible.encode(encoding, "backslashreplace").decode(encoding))


def _basis(result: Verification) -> str:
    compared = sum(case.compared for case in result.cases)
    if result.rtol or result.atol:
        exactness = f"floats within rtol {result.rtol:g}, atol {result.atol:g}"
    else:
        exactness = "bit-exact"
    return f"{' and '.join(result.runtimes) or 'nothing ran'}, {compared} cases, {exactness}"


def _print_outputs(result: Verification, console: Console) -> None:
    if not result.outputs:
        return
    table = _table("output", "equal in", "first difference")
    wrong = [output for output in result.outputs if output.unstable or not output.ok]
    right = [output for output in result.outputs if output.ok and not output.unstable]
    # What is wrong must not be among the rows left out.
    for output in wrong[:MAX_ROWS]:
        note = "differs between two runs of the original" if output.unstable else output.difference
        cells = output.name, f"{output.equal} of {output.cases} cases", note
        table.add_row(*(safe(cell, console) for cell in cells))
    for group in _groups(right, len(result.outputs), key=lambda output: output.cases):
        cells = _name(group, group[0].name), f"{group[0].equal} of {group[0].cases} cases", ""
        table.add_row(*(safe(cell, console) for cell in cells))
    console.print(table)
    _print_rest(len(wrong), "outputs differ, which", console)


def _print_masks(result: Verification, console: Console) -> None:
    if not result.coverage:
        return
    table = _table("NonZero", "none", "some", "all", "selected (searched and given cases)")
    searched = {case.name for case in result.cases if case.origin != "edge"}
    groups = _groups(
        result.coverage,
        len(result.coverage),
        key=lambda cover: (cover.none, cover.some, cover.all, cover.note),
    )
    for group in groups[:MAX_ROWS]:
        cover = group[0]
        rows = [s for s in result.selected if s.node == cover.node and s.case in searched]
        marks = ("yes" if flag else "-" for flag in (cover.none, cover.some, cover.all))
        selected = selected_text(rows) if len(group) == 1 else ""
        cells = _name(group, cover.node), *marks, cover.note or selected
        table.add_row(*(safe(cell, console) for cell in cells))
    console.print(table)
    _print_rest(sum(map(len, groups[MAX_ROWS:])) + MAX_ROWS, "NonZero", console)


def _groups(
    items: Sequence[_Item], total: int, key: Callable[[_Item], Hashable]
) -> list[list[_Item]]:
    """Each by itself or, where ``total`` is more than fits, those of one ``key`` together."""
    groups: dict[Hashable, list[_Item]] = {}
    for number, item in enumerate(items):
        groups.setdefault(key(item) if total > MAX_ROWS else number, []).append(item)
    return list(groups.values())


def _name(group: Sequence[object], first: str) -> str:
    return first if len(group) == 1 else f"{first} and {len(group) - 1} more"


def _print_rest(count: int, what: str, console: Console) -> None:
    if count > MAX_ROWS:
        console.print(f"  {count - MAX_ROWS} more {what} are in the JSON report", highlight=False)


def selected_text(rows: list[Selection], limit: int = 5) -> str:
    """``12/54, 0/54, 54/54``: selected of items in each case, with the patched count if other."""
    texts = []
    for row in rows:
        text = f"{row.selected}/{row.items}"
        if row.over_promise:
            text += f" (capped to {row.patched})"
        elif row.patched is not None and row.patched != row.selected:
            text += f" (patched {row.patched})"
        texts.append(text)
    return ", ".join(dict.fromkeys(texts[:limit])) + (", ..." if len(texts) > limit else "")


def junit_xml(result: Verification) -> str:
    """JUnit XML: one test case for the interface, each graph output and each NonZero."""
    suite = ElementTree.Element(
        "testsuite", name="nonzero-rewrite verify", time=f"{result.seconds}"
    )
    failures = errors = 0
    interface = [d.text for d in result.differences if not d.case]
    failures += _test_case(suite, "model", "interface", "; ".join(interface))
    for output in result.outputs:
        failures += _test_case(suite, "output", output.name, output.difference)
    for cover in result.coverage:
        texts = [f"{d.case}: {d.text}" for d in result.differences if d.node == cover.node]
        rows = [s for s in result.selected if s.node == cover.node]
        out = cover.note or f"selected {selected_text(rows, len(rows))}"
        failures += _test_case(suite, "NonZero", cover.node, "; ".join(texts), out)
    if result.outcome is Outcome.NOT_COMPARABLE:
        case = ElementTree.SubElement(suite, "testcase", classname="model", name="comparison")
        ElementTree.SubElement(case, "error", message=_xml_safe(result.reason))
        errors = 1
    suite.set("tests", str(len(suite)))
    suite.set("failures", str(failures))
    suite.set("errors", str(errors))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _test_case(
    suite: ElementTree.Element, kind: str, name: str, failure: str, out: str = ""
) -> int:
    case = ElementTree.SubElement(suite, "testcase", classname=kind, name=_xml_safe(name))
    if failure:
        ElementTree.SubElement(case, "failure", message=_xml_safe(failure))
    if out:
        ElementTree.SubElement(case, "system-out").text = _xml_safe(out)
    return int(bool(failure))


def _xml_safe(text: str) -> str:
    """``text`` without the control characters XML cannot hold; names in models may have them."""
    return "".join(
        c if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff") else "?" for c in text
    )


def _table(*headers: str) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2), header_style="bold")
    for position, header in enumerate(headers):
        table.add_column(
            header, overflow="fold", no_wrap=position in (1, 2, 3) and len(headers) > 3
        )
    return table
