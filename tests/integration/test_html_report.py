"""The HTML report: complete, self-contained, and safe against what names may hold."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner
from helpers import wrong_rewrites
from helpers.manifest import MODELS

from nonzero_rewrite import rewrite_model, verify_models
from nonzero_rewrite.cli import main
from nonzero_rewrite.html_report import render_html
from nonzero_rewrite.neighbourhood import MAX_BOXES, Neighbourhood

VOID = {"meta", "br", "path", "rect"}


class _Tags(HTMLParser):
    """Balanced tags, the text between them, and every attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parse(page: str) -> _Tags:
    tags = _Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


@pytest.mark.parametrize(
    "name",
    ["early_exit", "position_ramp", "yolo_score_head", "moe_block", "onnxscript_functions"],
)
def test_the_page_says_everything(name: str, tmp_path: Path) -> None:
    original, patched, page = MODELS / f"{name}.onnx", tmp_path / "p.onnx", tmp_path / "r.html"
    result = rewrite_model(original)
    onnx.save(result.model, patched)
    done = CliRunner().invoke(
        main, ["verify", str(original), str(patched), "--time-budget", "1", "--html", str(page)]
    )
    assert done.exit_code == 0, done.output
    tags = parse(page.read_text("utf-8"))
    text = " ".join(" ".join(tags.text).split())
    assert "equal in" in text
    for value in onnx.load(original).graph.output:
        assert value.name in text
    for decision in result.plan.decisions:
        assert (decision.node if name == "onnxscript_functions" else decision.site.node) in text
    plugins = result.plan.count("plugin")
    if name == "onnxscript_functions":  # not in the main graph before: one picture a node
        plugins = len({decision.node for decision in result.plan.decisions})
    assert text.count("after: served by NonZeroPlugin") == plugins
    assert text.count("after: not needed any more") == result.plan.count("removed")
    assert "onnxruntime" in text
    used = {tag for tag, _, _ in tags.attributes}
    assert not used & {"script", "link", "img", "iframe", "object", "a"}
    assert not any(name in ("src", "href") for _, name, _ in tags.attributes)
    assert not re.search(r"url\(|@import|https?://", page.read_text("utf-8"))


def test_names_cannot_break_the_page() -> None:
    evil = "</title><script>alert('x')</script>\"&\x1b"
    model = onnx.load(MODELS / "keypoints.onnx")
    model.graph.name = model.producer_name = evil + "\x00"
    for node in model.graph.node:
        node.name = evil + node.name
    renamed = {value.name: evil + value.name for value in model.graph.output}
    for node in model.graph.node:
        for position, output in enumerate(node.output):
            node.output[position] = renamed.get(output, output)
    for value in model.graph.output:
        value.name = renamed[value.name]
    patched = rewrite_model(model).model
    page = render_html(verify_models(model, patched, time_budget=1.0), model, patched)
    assert "<script" not in page
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "&lt;script&gt;" in page
    parse(page)


def test_differences_are_shown() -> None:
    original = wrong_rewrites.original()
    patched = rewrite_model(original).model
    for node in patched.graph.node:
        if node.op_type == "Greater":
            node.op_type = "Less"
    result = verify_models(original, patched, time_budget=1.0)
    assert not result.ok
    page = render_html(result, original, patched)
    assert 'class="verdict different"' in page
    assert "Differences (" in page
    without = render_html(result, original, None)  # an engine was compared
    assert "after:" not in without
    assert "<h3>Engine</h3>" in without


def test_what_is_left_is_explained() -> None:
    path = MODELS / "early_exit.onnx"
    patched = rewrite_model(path, rules=frozenset({"plugin"})).model
    page = render_html(verify_models(path, patched, time_budget=1.0), path, patched)
    text = " ".join(parse(page).text)
    assert "NonZero that are left" in text
    assert "after: left as it is" in text


def test_a_node_without_a_name_is_found_again() -> None:
    node = onnx.helper.make_node
    nodes = [node("NonZero", ["x"], ["i"]), node("Transpose", ["i"], ["y"], perm=[1, 0])]
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.BOOL, ["n", 3])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.INT64, ["k", 2])
    opset = onnx.helper.make_opsetid("", 17)
    graph = onnx.helper.make_graph(nodes, "g", [x], [y])
    model = onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)
    before, after = Neighbourhood(model), Neighbourhood(rewrite_model(model).model)
    kind, centres = after.counterparts(before, next(before.nonzeros()))
    assert kind == "served by NonZeroPlugin"
    assert centres == list(after.plugins())


def test_a_picture_stays_small() -> None:
    nodes = [onnx.helper.make_node("NonZero", ["x"], ["i"], name="nz")]
    nodes += [onnx.helper.make_node("Abs", ["i"], [f"o{k}"], name=f"abs{k}") for k in range(200)]
    graph = onnx.helper.make_graph(nodes, "g", [], [])
    hood = Neighbourhood(onnx.helper.make_model(graph))
    (site,) = hood.nonzeros()
    svg = hood.svg([site], "t")
    assert svg.count("<rect") == MAX_BOXES
    assert "far" in svg
