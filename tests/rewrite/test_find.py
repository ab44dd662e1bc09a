"""What a scan says of each NonZero: its mask, where that comes from, who takes the indices."""

from __future__ import annotations

import pytest
from helpers.graphs import parse

from nonzero_rewrite.find import Site, find_sites


def site(text: str, opset: int = 17) -> Site:
    (found,) = find_sites(parse(text, opset=opset))
    return found


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("g (float[n,4] x) => (int64[p,q] i) { i = NonZero(x) }", "FLOAT[n, 4]"),
        ("g (bool[?,4] x) => (int64[p,q] i) { i = NonZero(x) }", "BOOL[?, 4]"),
        ("g (float x) => (int64[p,q] i) { i = NonZero(x) }", "FLOAT[]"),
        (
            "g (float[n] x, int64[r] d) => (int64[p,q] i) { m = Reshape(x, d) i = NonZero(m) }",
            "FLOAT of unknown rank",
        ),
        (
            "g (float[a] x, float[b] w) => (int64[p,q] i) { c = Concat <axis = 0> (x, w) "
            "i = NonZero(c) }",
            "FLOAT[?]",  # a symbol that inference made up is none of the model's
        ),
    ],
)
def test_the_mask_in_words(text: str, mask: str) -> None:
    assert site(text).mask == mask


@pytest.mark.parametrize(
    ("body", "origin"),
    [
        ("i = NonZero(x)", ("input",)),
        ("i = NonZero(w)", ("initializer",)),
        ("m = Greater(x, w) i = NonZero(m)", ("Greater", "input")),
        ("a = Neg(w) b = Abs(a) i = NonZero(b)", ("Abs", "Neg", "initializer")),
        (
            "a = Neg(x) b = Abs(a) c = Sqrt(b) d = Floor(c) e = Ceil(d) i = NonZero(e)",
            ("Ceil", "Floor", "Sqrt", "Abs"),
        ),
    ],
)
def test_where_the_mask_comes_from(body: str, origin: tuple[str, ...]) -> None:
    text = f"g (float[4] x) => (int64[p,q] i) <float[4] w = {{1, 2, 3, 4}}> {{ {body} }}"
    assert site(text).mask_from == origin


@pytest.mark.parametrize(
    ("body", "consumers", "transposed"),
    [
        ("i = NonZero(x) y = Neg(i)", ("Neg",), False),
        ("i = NonZero(x) t = Transpose(i) y = Neg(t) z = Neg(t)", ("Neg",), True),
        ("i = NonZero(x) t = Transpose(i) y = Neg(t) z = Abs(i)", ("Abs", "Neg"), False),
        ("y = NonZero(x)", ("output",), False),
        ("i = NonZero(x) y = Transpose(i)", ("output",), True),
        (
            "i = NonZero(x) y = If (c) <then_branch = a () => (int64[r,s] o) { o = Neg(i) }, "
            "else_branch = b () => (int64[r,s] o2) { o2 = Abs(i) }>",
            ("nested graph",),
            False,
        ),
        ("i = NonZero(x) y = Neg(x)", (), False),
    ],
)
def test_who_takes_the_indices(body: str, consumers: tuple[str, ...], transposed: bool) -> None:
    kind = "float[n,4]" if body.endswith("Neg(x)") else "int64[p,q]"
    found = site(f"g (float[n,4] x, bool c) => ({kind} y) {{ {body} }}")
    assert (found.consumers, found.transposed) == (consumers, transposed)


@pytest.mark.parametrize(
    ("metadata", "doc", "trace"),
    [
        ({}, "", None),
        ({}, "\n  \n  model.py(3): forward\nmodel.py(9): call\n", "model.py(3): forward"),
        ({}, "  \n ", None),
        ({"namespace": "net/head"}, "doc", "net/head"),
        ({"pkg.torch.onnx.stack_trace": "File a\n\n  File b  \n"}, "doc", "File b"),
        ({"namespace": "n", "pkg.torch.export.graph_module.stack_trace": "x\ny"}, "doc", "y"),
        ({"namespace": "n", "pkg.torch.onnx.name_scopes": "['', 'head']"}, "doc", "['', 'head']"),
        ({"namespace": ""}, "doc", "doc"),
    ],
)
def test_what_the_exporter_said_of_it(
    metadata: dict[str, str], doc: str, trace: str | None
) -> None:
    model = parse("g (float[n] x) => (int64[p,q] i) { i = NonZero(x) }")
    node = model.graph.node[0]
    node.doc_string = doc
    for key, value in metadata.items():
        node.metadata_props.add(key=key, value=value)
    assert find_sites(model)[0].trace == trace


def test_each_has_a_name_of_its_own() -> None:
    text = """g (float[n] x, bool c) => (int64[p,q] y, int64[p,q] z) {
        y = If (c) <then_branch = a () => (int64[r,s] o) { o = NonZero(x) },
                    else_branch = b () => (int64[r,s] o) { o = NonZero(x) }>
        z = If (c) <then_branch = a () => (int64[r,s] o) { o = NonZero(x) },
                    else_branch = b () => (int64[r,s] o2) { [nz] o2 = NonZero(x) }> }"""
    model = parse(text)
    for node in model.graph.node:
        node.name = "same"
    found = find_sites(model)
    assert [each.id for each in found] == [
        "If 'same'/then_branch: o",
        "If 'same'/else_branch: o",
        "If 'same'/then_branch: o (2)",
        "If 'same'/else_branch: o2",
    ]
    assert [each.node for each in found] == ["NonZero#0", "NonZero#0", "NonZero#0", "nz"]
