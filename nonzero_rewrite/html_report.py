"""A Verification as one HTML file: nothing is loaded from elsewhere, no scripts, all escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path

import onnx

from nonzero_rewrite.api import scan_model
from nonzero_rewrite.errors import NonZeroRewriteError
from nonzero_rewrite.load import load_model
from nonzero_rewrite.neighbourhood import Neighbourhood, safe
from nonzero_rewrite.verification import Selection, Verification
from nonzero_rewrite.verify_report import selected_text
from nonzero_rewrite.versions import loaded_versions

MAX_PICTURES = 60
MAX_ROWS = 300


def render_html(
    result: Verification,
    original: str | Path | onnx.ModelProto,
    patched: str | Path | onnx.ModelProto | None,
) -> str:
    """The report's text.

    Args:
        result: of ``verify_models`` or ``verify_engine``.
        original: the original model; weights in other files are not read.
        patched: the patched model, or None where an engine was compared: there is then no picture
            of what became of a NonZero.

    Raises:
        ModelLoadError: a model cannot be read.
    """
    left = _model(original)
    right = None if patched is None else _model(patched)
    verdict = result.outcome.value
    body = [
        "<header>",
        f"<h1>{safe(Path(result.patched).name)} against {safe(Path(result.original).name)}</h1>",
        f'<p><span class="verdict {verdict.replace(" ", "-")}">{safe(verdict)}</span> '
        f"{safe(_basis(result))}</p>",
        f"<p>{safe(result.reason)}</p>" if result.reason else "",
        "</header>",
        *_models(result, left, right),
        *_differences(result),
        *_outputs(result),
        *_selected(result),
        *_sites(left, right),
        *_left_alone(right if right is not None else left),
        *_cases(result),
        *_versions(result),
    ]
    title = safe(f"{Path(result.patched).name}: {verdict}")
    style = (files("nonzero_rewrite") / "report.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in body if part)
        + "\n</body>\n</html>\n"
    )


def _model(model: str | Path | onnx.ModelProto) -> onnx.ModelProto:
    return model if isinstance(model, onnx.ModelProto) else load_model(model).model


def _basis(result: Verification) -> str:
    compared = sum(case.compared for case in result.cases)
    exact = (
        f"floats within rtol {result.rtol:g}, atol {result.atol:g}, indices exactly"
        if result.rtol or result.atol
        else "bit by bit"
    )
    return f"in {compared} cases, compared {exact}, seed {result.seed}"


def _models(
    result: Verification, left: onnx.ModelProto, right: onnx.ModelProto | None
) -> Iterable[str]:
    yield "<h2>Models</h2>"
    yield '<div class="pair">'
    yield _card("Original", result.original, left)
    if right is not None:
        yield _card("Patched", result.patched, right)
    else:
        yield (f'<div class="card"><h3>Engine</h3><p class="mono">{safe(result.patched)}</p></div>')
    yield "</div>"


def _card(heading: str, label: str, model: onnx.ModelProto) -> str:
    graph = model.graph
    types = [node.op_type for node in graph.node]
    producer = f"{model.producer_name} {model.producer_version}".strip()
    facts = {
        "file": label,
        "graph": graph.name,
        "exported by": producer,
        "IR version": str(model.ir_version),
        "opsets": ", ".join(f"{o.domain or 'ai.onnx'} {o.version}" for o in model.opset_import),
        "nodes": f"{len(types)} in the main graph",
        "NonZero": str(types.count("NonZero")),
        "NonZeroPlugin": str(types.count("NonZeroPlugin")),
        "inputs": ", ".join(map(_value, graph.input)),
        "outputs": ", ".join(map(_value, graph.output)),
    }
    rows = "".join(f"<dt>{k}</dt><dd>{safe(v)}</dd>" for k, v in facts.items() if v)
    return f'<div class="card"><h3>{heading}</h3><dl>{rows}</dl></div>'


def _value(value: onnx.ValueInfoProto) -> str:
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type"):
        return value.name
    dims = ", ".join(
        d.dim_param or (str(d.dim_value) if d.HasField("dim_value") else "?")
        for d in kind.shape.dim
    )
    return f"{value.name} {onnx.TensorProto.DataType.Name(kind.elem_type).lower()}[{dims}]"


def _differences(result: Verification) -> Iterable[str]:
    if not result.differences:
        return
    yield f"<h2>Differences ({len(result.differences)})</h2>"
    for difference in result.differences[:MAX_ROWS]:
        where = f"NonZero {difference.node}" if difference.node else difference.tensor
        case = f" in case {difference.case}" if difference.case else ""
        yield (
            f'<div class="diff"><strong class="mono">{safe(where or "model")}</strong>'
            f"{safe(case)}<br>{safe(difference.text)}</div>"
        )


def _outputs(result: Verification) -> Iterable[str]:
    if not result.outputs:
        return
    yield "<h2>Parity of each output</h2>"
    rows = []
    for output in result.outputs:
        note = "differs between two runs of the original" if output.unstable else output.difference
        mark = '<span class="ok">equal</span>' if output.ok else '<span class="different">no</span>'
        rows.append([_code(output.name), mark, f"{output.equal} of {output.cases}", safe(note)])
    yield _table(("output", "parity", "equal cases", "first difference"), rows)


def _selected(result: Verification) -> Iterable[str]:
    if not result.coverage:
        return
    by_node: dict[str, list[Selection]] = {}
    for selection in result.selected:
        by_node.setdefault(selection.node, []).append(selection)
    yield "<h2>How many items each NonZero selects</h2>"
    rows = []
    for cover in result.coverage:
        chosen = by_node.get(cover.node, [])
        marks = ["yes" if flag else "-" for flag in (cover.none, cover.some, cover.all)]
        counts = safe(selected_text(chosen, 12)) + (f" ({safe(cover.note)})" if cover.note else "")
        rows.append([_code(cover.node), *marks, counts])
    yield _table(("NonZero", "none", "some", "all", "selected of items, by case"), rows)
    for label in result.unobserved:
        yield f"<p>{_code(label)} is in a subgraph or function: compared through the outputs.</p>"


def _sites(left: onnx.ModelProto, right: onnx.ModelProto | None) -> Iterable[str]:
    before = Neighbourhood(left)
    after = None if right is None else Neighbourhood(right)
    sites = list(before.nonzeros())
    shown = set()
    parts = []
    for number in sites[:MAX_PICTURES]:
        node = before.nodes[number]
        figures = [_figure("before", before.svg([number], f"{node.label} before"))]
        if after is not None:
            kind, centres = after.counterparts(before, number)
            shown.update(centres)
            picture = after.svg(centres, f"{node.label} after") if centres else ""
            figures.append(_figure(f"after: {kind}", picture))
        parts.append(_section(node.label, node.path, figures))
    drawn = len(parts)
    if after is not None:
        new = [number for number in after.plugins() if number not in shown]
        for number in new[: max(MAX_PICTURES - drawn, 0)]:
            node = after.nodes[number]  # the original has it in a model-local function
            picture = after.svg([number], f"{node.label} after")
            figures = [
                _figure("before: in a model-local function", ""),
                _figure("after: served by NonZeroPlugin", picture),
            ]
            parts.append(_section(node.label, node.path, figures))
    if not parts:
        return
    yield "<h2>Each NonZero, before and after</h2>"
    yield (
        '<p class="soft">What feeds it is above, what uses it below; constants are left out. '
        "Dotted ends go on outside the picture.</p>"
    )
    yield from parts
    if len(sites) > drawn:
        yield f"<p>{len(sites) - drawn} more NonZero are not drawn.</p>"


def _section(label: str, path: str, figures: Sequence[str]) -> str:
    where = f" in {path}" if path else ""
    return (
        f'<section class="site"><h3>{_code(label)}{safe(where)}</h3>'
        f'<div class="pair">{"".join(figures)}</div></section>'
    )


def _figure(caption: str, svg: str) -> str:
    return f"<figure>{svg}<figcaption>{safe(caption)}</figcaption></figure>"


def _left_alone(model: onnx.ModelProto) -> Iterable[str]:
    """Reasons, as a scan of the patched model gives them."""
    try:
        scan = scan_model(model)
    except NonZeroRewriteError as err:
        yield f"<p>{safe(str(err))}</p>"
        return
    if scan.plan.decisions:
        yield "<h2>NonZero that are left</h2>"
        rows = [
            [
                _code(decision.site.id),
                safe(decision.site.graph or "main graph"),
                safe(
                    decision.summary
                    if decision.outcome == "left"
                    else "left by choice: the rules of this version would rewrite it"
                ),
            ]
            for decision in scan.plan.decisions[:MAX_ROWS]
        ]
        yield _table(("NonZero", "where", "why"), rows)
    if scan.blockers:
        yield "<h2>Other operators in the way of TensorRT</h2>"
        rows = [
            [safe(blocker.op_type), _code(blocker.node), safe(blocker.reason)]
            for blocker in scan.blockers[:MAX_ROWS]
        ]
        yield _table(("operator", "node", "why"), rows)


def _cases(result: Verification) -> Iterable[str]:
    if not result.cases:
        return
    yield "<h2>Cases</h2>"
    rows = [
        [
            safe(case.name),
            safe(case.origin),
            safe("; ".join(f"{name} {shape}" for name, shape in case.shapes)),
            "yes" if case.compared else "no",
            safe(case.note),
        ]
        for case in result.cases[:MAX_ROWS]
    ]
    yield _table(("case", "origin", "input shapes", "compared", "note"), rows)
    for note in result.notes:
        yield f"<p>{safe(note)}</p>"


def _versions(result: Verification) -> Iterable[str]:
    yield "<h2>Versions</h2>"
    versions = [f"{name} {version}" for name, version in loaded_versions().items()]
    yield f"<p>{safe(', '.join(versions))}</p>"
    if result.runtimes:
        yield f"<p>Run in {safe(' and '.join(result.runtimes))}, {result.seconds:.1f} s.</p>"


def _code(text: str) -> str:
    return f"<code>{safe(text)}</code>"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Headers are text; cells are HTML already."""
    head = "".join(f'<th scope="col">{safe(text)}</th>' for text in headers)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'
