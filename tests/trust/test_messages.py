"""The exact sentence for each mistake a user can make: what, where, why and what to do.

No traceback, nothing on stdout, and the exit code of the command line's contract.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from helpers.graphs import parse

from nonzero_rewrite import rewrite_model
from nonzero_rewrite.cli import main
from nonzero_rewrite.rules import RULE_NAMES

PARSER = "Error parsing message with type 'onnx.ModelProto': Wire format was corrupt"
NOT_ONNX = f"not an ONNX model, or a truncated one ({PARSER}); export or download it again"
RULES = ", ".join(RULE_NAMES)
NO_PLAN = "write one with --dry-run --plan FILE"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file of each kind of wrong."""
    root = tmp_path_factory.mktemp("messages")
    model = parse("g (float[n] x) => (int64[k, 1] p) { i = NonZero(x) p = Transpose(i) }")
    model.graph.node[0].name = "nz"

    def save(name: str, changed: onnx.ModelProto) -> None:
        (root / name).write_bytes(changed.SerializeToString())

    def copy() -> onnx.ModelProto:
        return onnx.ModelProto.FromString(model.SerializeToString())

    save("m.onnx", model)
    save("patched.onnx", rewrite_model(model).model)
    save("other.onnx", parse("g (float[n] y) => (float[n] z) { z = Abs(y) }"))
    (root / "empty.onnx").write_bytes(b"")
    (root / "text.onnx").write_text("hello, this is no ONNX")
    (root / "folder").mkdir()
    changed = copy()
    del changed.opset_import[:]
    save("no_opset.onnx", changed)
    changed = copy()
    changed.functions.add(name="NonZeroPlugin", domain="other")
    save("clash.onnx", changed)
    changed = copy()
    changed.opset_import[0].version = 11
    save("old.onnx", changed)
    changed = copy()
    changed.graph.node[1].input[0] = changed.graph.node[1].output[0]
    save("ring.onnx", changed)
    changed = copy()
    tensor = changed.graph.initializer.add(name="w", data_type=1, dims=[1], data_location=1)
    tensor.external_data.add(key="location", value="gone.bin")
    save("external.onnx", changed)
    tensor.external_data[0].value = "../gone.bin"
    save("outside.onnx", changed)
    tensor.external_data[0].value = ""
    save("unnamed.onnx", changed)
    tensor.external_data[0].value = "linked.bin"
    save("dangling.onnx", changed)
    tensor.external_data[0].value = "away.bin"
    save("away.onnx", changed)
    (root / "beside.bin").write_bytes(bytes(4))
    tensor.external_data[0].value = "beside.bin"
    save("beside.onnx", changed)
    tensor.external_data.add(key="offset", value="-1")
    save("offset.onnx", changed)
    tensor.external_data[1].value = "77777"
    data = changed.SerializeToString().replace(b"77777", b"\xff" * 5)
    (root / "undecoded.onnx").write_bytes(data)
    changed = copy()
    changed.opset_import.add(domain="ai.onnx", version=13)
    save("two_opsets.onnx", changed)
    changed = copy()
    changed.graph.node.add(op_type="Abs", input=["x"], output=["p"], name="again")
    save("twice.onnx", changed)
    changed = rewrite_model(model).model
    del changed.graph.node[0].input[:]
    save("no_input.onnx", changed)
    (root / "deep.onnx").write_bytes(nested(400))
    if os.name == "posix":
        os.mkfifo(root / "pipe.onnx")
        (root / "link.onnx").symlink_to("m.onnx")
        (root / "linked.bin").symlink_to("/nowhere/else")
        (root.parent / "messages_elsewhere.bin").write_bytes(b"")
        (root / "away.bin").symlink_to("../messages_elsewhere.bin")

    plan = json.loads(
        CliRunner()
        .invoke(main, [str(root / "m.onnx"), "--dry-run", "--json"], catch_exceptions=False)
        .stdout
    )
    plan = {key: plan[key] for key in ("format", "options", "decisions")}

    def save_plan(name: str, **entries: object) -> None:
        changed = json.loads(json.dumps(plan))
        changed["decisions"][0].update(entries)
        (root / name).write_text(json.dumps(changed))

    (root / "broken.json").write_text("{")
    (root / "format.json").write_text('{"format": 9}')
    (root / "deep.json").write_text("[" * 100_000)
    (root / "binary.json").write_bytes(b"\xff\xfe")
    save_plan("unknown.json", id="elsewhere")
    save_plan("outcome.json", outcome="gone")
    save_plan("impossible.json", outcome="removed")
    save_plan("backend.json", backend="opencl")
    save_plan("number.json", max_nonzero="many")
    save_plan("zero.json", max_nonzero=0)
    save_plan("nameless.json", id=3)
    (root / "keyless.json").write_text('{"format": 1}')

    np.savez(root / "y.npz", y=np.ones(3, np.float32))
    np.savez(root / "nothing.npz")
    np.savez(root / "double.npz", x=np.ones(3))
    np.savez(root / "object.npz", x=np.array([{}], dtype=object))
    np.save(root / "single.npy", np.ones(3))
    (root / "damaged.npz").write_bytes(b"PK\x03\x04 damaged")
    return root


def nested(levels: int) -> bytes:
    """Ifs in each other, written without the help of protobuf, which refuses to."""

    def field(number: int, data: bytes) -> bytes:
        size, length = b"", len(data)
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + data

    inner = b""
    for _ in range(levels):
        attribute = field(1, b"then_branch") + field(6, inner) + b"\xa0\x01\x05"
        inner = field(1, field(4, b"If") + field(5, attribute)) + field(2, b"b")
    return field(7, inner)


REWRITE = {
    "deep.onnx -o o": "deep.onnx: its graphs lie in each other deeper than protobuf reads (100 "
    "messages, about 32 graphs); export it without so many nested If or Loop",
    "two_opsets.onnx -o o": "two_opsets.onnx: the model imports 2 versions of the ONNX operators "
    "(13, 17), so its nodes have no one meaning; export it again",
    "twice.onnx -o o": "twice.onnx: value 'p' in the main graph is made by two nodes, "
    "'Transpose#1' and 'again', so no runtime can run the model; export it again",
    "offset.onnx -o o": "offset.onnx: tensor 'w' has external data with offset '-1', which is no "
    "size; export the model again",
    "undecoded.onnx -o o": "undecoded.onnx: what it says of its external data is not UTF-8 text, "
    "so the file is damaged; export or download it again",
    "beside.onnx -o beside.bin": "beside.bin: is the name of the model's data file 'beside.bin'; "
    "choose another output",
    "m.onnx -o o --plan nameless.json": "nameless.json: decisions[0] has no id; remove it, or make "
    "the plan again from the model",
    "m.onnx -o o --plan keyless.json": "keyless.json: 'options' is missing or not an object; mend "
    f"it, or {NO_PLAN}",
    "m.onnx -O .": "m.onnx would be written to m.onnx, which is one of the models; choose another "
    "folder",
    "m.onnx -o o --build o": "o: is named for two outputs of this command; choose another for one",
    "m.onnx -o o --build m.onnx": "m.onnx: is an input of this command; choose another output",
    "none.onnx -o o": "none.onnx: there is no such file; check the path",
    "folder -o o": "folder: is a folder, not a model; name a file in it, or use --output-dir for "
    "all",
    "empty.onnx -o o": "empty.onnx: the file holds no ONNX graph; if it is ONNX text or a .pb of "
    "another framework, convert it first",
    "text.onnx -o o": f"text.onnx: {NOT_ONNX}",
    "no_opset.onnx -o o": "no_opset.onnx: the model imports no version of the ONNX operators, so "
    "its nodes have no meaning; export it again",
    "clash.onnx -o o": "clash.onnx: the model has a function 'other::NonZeroPlugin'; TensorRT's "
    "parser matches functions by name alone and would mistake it for ours: rename that function",
    "ring.onnx -o o": "ring.onnx: node 'Transpose#1' in the main graph waits for its own result, "
    "so no runtime can run the model; export it again",
    "old.onnx -o o --max-nonzero 5": "old.onnx: a cap on num_nonzero needs opset 12 or newer, the "
    "model imports 11: convert the model or rewrite it with --no-function",
    "external.onnx -o o": "external.onnx: external data file 'gone.bin' is missing; put it beside "
    "the model in .",
    "outside.onnx -o o": "outside.onnx: external data file '../gone.bin' lies outside the model's "
    "folder, which onnx and onnxruntime refuse as well; save the model again beside its data",
    "unnamed.onnx -o o": "unnamed.onnx: tensor 'w' has external data without a file name; export "
    "the model again",
    "m.onnx -o folder": "folder: is a folder; name a file in it",
    "m.onnx -o no/o": "no/o: cannot be written: its folder no does not exist; make it, or choose "
    "another one",
    "m.onnx -o m.onnx": "m.onnx: is the input itself; choose another output, or say --in-place",
    "m.onnx --dry-run --plan m.onnx": "m.onnx: is an input of this command; choose another output",
    "m.onnx -o o --only nope": "m.onnx: no NonZero is called 'nope'; `nonzero-rewrite scan` lists "
    "their names",
    "m.onnx -o o --skip nope": "m.onnx: no NonZero is called 'nope'; `nonzero-rewrite scan` lists "
    "their names",
    "m.onnx -o o --max-nonzero nope=3": "m.onnx: no NonZero is called 'nope'; `nonzero-rewrite "
    "scan` lists their names",
    "m.onnx -o o --max-nonzero 0": "max_nonzero 0 is outside 1 to 2147483647",
    "m.onnx -o o --plan gone.json": "gone.json: the plan cannot be read: No such file or "
    f"directory; {NO_PLAN}",
    "m.onnx -o o --plan broken.json": "broken.json: not JSON (Expecting property name enclosed in "
    f"double quotes: line 1 column 2 (char 1)); mend it, or {NO_PLAN}",
    "m.onnx -o o --plan binary.json": "binary.json: not a rewrite plan, which is UTF-8 text; "
    f"{NO_PLAN}",
    "m.onnx -o o --plan format.json": f"format.json: not a rewrite plan of format 1; {NO_PLAN}",
    "m.onnx -o o --plan deep.json": f"deep.json: not a rewrite plan; {NO_PLAN}",
    "m.onnx -o o --plan unknown.json": "m.onnx: the plan names the NonZero 'elsewhere', which the "
    "model does not have; make the plan again from this model",
    "m.onnx -o o --plan outcome.json": "outcome.json: site 'i': outcome 'gone' is unknown; choose "
    "one of plugin, removed, left",
    "m.onnx -o o --plan impossible.json": "m.onnx: the plan wants NonZero 'nz' to be removed, but "
    "it is plugin: NonZeroPlugin 'nz', [num_nonzero, rank]",
    "m.onnx -o o --plan backend.json": "backend.json: backend 'opencl' is unknown; choose one of "
    "cuda_python, cupy, torch",
    "m.onnx -o o --plan number.json": "number.json: 'max_nonzero' is 'many'; it must be null or a "
    "whole number",
    "m.onnx -o o --plan zero.json": "zero.json: max_nonzero 0 is outside 1 to 2147483647",
    "m.onnx -o o --verify --inputs gone.npz": "gone.npz: cannot be read: No such file or "
    "directory; check the path",
    "m.onnx -o o --verify --inputs single.npy": "single.npy: is a single array; save with "
    "numpy.savez",
    "m.onnx -o o --verify --inputs damaged.npz": "damaged.npz: is damaged (File is not a zip "
    "file); save it again",
    "m.onnx -o o --verify --inputs object.npz": "object.npz: is no .npz file of plain arrays "
    "(Object arrays cannot be loaded when allow_pickle=False); strings must be saved with a fixed "
    "width (dtype 'U')",
    "folder -O out": "folder: no .onnx file in this folder; name the models, or the folder that "
    "holds them",
    "m.onnx folder/../m.onnx -O out": "m.onnx and folder/../m.onnx would both be written to "
    "out/m.onnx; name a folder that holds both",
}
POSIX = {
    "dangling.onnx -o o": "dangling.onnx: external data file 'linked.bin' is missing; put it "
    "beside the model in .",
    "away.onnx -o o": "away.onnx: external data file 'away.bin' is a link that leaves the model's "
    "folder; put the file itself there",
    "link.onnx --in-place": "link.onnx: is a link to {root}/m.onnx; name that file to replace it "
    "in place",
    "m.onnx -o link.onnx": "link.onnx: is the input itself; choose another output, or say "
    "--in-place",
    "pipe.onnx -o o": "pipe.onnx: is a device or a pipe, not a file; save the model first",
    "m.onnx -o pipe.onnx": "pipe.onnx: is a device or a pipe, which a file would take the place "
    "of; name a file",
}
OTHERS = {
    "restore no_input.onnx -o o": "no_input.onnx: node 'nz' (NonZeroPlugin) has 0 inputs and 2 "
    "outputs instead of one and two, so this tool did not write it; rewrite the original model "
    "again",
    "run gone.engine": "gone.engine: cannot be read: No such file or directory; check the path",
    "run gone.engine --cuda-graph": "gone.engine: cannot be read: No such file or directory; "
    "check the path",
    "verify m.onnx gone.engine": "gone.engine: cannot be read: No such file or directory; check "
    "the path",
    "build none.onnx": "none.onnx: there is no such file; check the path",
    "build patched.onnx -o no/e": "no/e: cannot be written: its folder no does not exist; make it, "
    "or choose another one",
    "build patched.onnx -o patched.onnx": "patched.onnx: is an input of this command; choose "
    "another output",
    "build patched.onnx --timing-cache patched.onnx": "patched.onnx: is an input of this command; "
    "choose another output",
    "build patched.onnx -o o --profile nope": "profile part 'nope' is not NAME=MIN:OPT:MAX or "
    "NAME=SHAPE",
    "build patched.onnx -o o --profile x=1:2": "profile part 'x=1:2' has 2 shapes; give 1 or 3",
    "build patched.onnx -o o --profile x=8:4:2": "profile part 'x=8:4:2': 8:4:2 is not in the "
    "order minimum, optimum, maximum",
    "scan none.onnx": "none.onnx: there is no such file; check the path",
    "scan folder": REWRITE["folder -O out"],
    "scan text.onnx": f"text.onnx: {NOT_ONNX}",
    "scan no_opset.onnx": REWRITE["no_opset.onnx -o o"],
    "restore none.onnx -o o": "none.onnx: there is no such file; check the path",
    "restore text.onnx -o o": f"text.onnx: {NOT_ONNX}",
    "restore patched.onnx -o patched.onnx": "patched.onnx: is the input itself; choose another "
    "output, or say --in-place",
    "restore ring.onnx -o o": REWRITE["ring.onnx -o o"],
    "verify none.onnx patched.onnx": "none.onnx: cannot be read: No such file or directory; check "
    "the path",
    "verify m.onnx none.onnx": "none.onnx: cannot be read: No such file or directory; check the "
    "path",
    "verify text.onnx m.onnx": f"text.onnx: {NOT_ONNX}",
    "verify m.onnx patched.onnx --inputs y.npz": "inputs: 'y' is no input of the model; its "
    "inputs are 'x'",
    "verify m.onnx patched.onnx --inputs nothing.npz": "inputs: no value for 'x'; give arrays "
    "named after the graph inputs, or i0, i1, ... in their order",
    "verify m.onnx patched.onnx --inputs double.npz": "m.onnx: does not run on the given inputs: "
    "2 : INVALID_ARGUMENT : Unexpected input data type. Actual: (tensor(double)) , expected: "
    "(tensor(float)); check their shapes and types against the model's inputs",
    "verify m.onnx patched.onnx --junit m.onnx": "m.onnx: is an input of this command; choose "
    "another output",
    "run gone.engine -o gone.engine/x": "gone.engine/x: cannot be written: its folder gone.engine "
    "does not exist; make it, or choose another one",
}
USAGE = {
    "m.onnx": "say where the patched model goes: -o OUT (or --in-place, --dry-run)",
    "m.onnx other.onnx -o o": "several models need a folder for the results: -O OUTDIR",
    "m.onnx -o o --in-place": "give -o or --in-place, not both",
    "m.onnx --dry-run --verify": "--dry-run writes no model that --verify or --build could use",
    "m.onnx -o o --inputs y.npz": "--inputs are for --verify",
    "m.onnx -o o --rules nope": f"Invalid value: there is no rule 'nope'; the rules are: {RULES}",
    "m.onnx -o o --no-rule nope": f"Invalid value: there is no rule 'nope'; the rules are: {RULES}",
    "m.onnx -o o --max-nonzero x": "Invalid value for '--max-nonzero': 'x' is neither N nor "
    "NODE=N with a whole number N",
    "m.onnx -o o --backend opencl": "Invalid value for '--backend': 'opencl' is not one of "
    "'cuda_python', 'cupy', 'torch'.",
    "m.onnx -O out -o x": "-o works on one model; do without --output-dir",
    "verify m.onnx patched.onnx --json other.onnx": "--json took a model for its FILE; write it "
    "after the models",
    "m.onnx -o o --profile x=1": "--profile is for --build, which is not given",
    "m.onnx -o o --fp16": "--fp16 is for --build, which is not given",
    "build m.onnx --workspace lots": "Invalid value for '--workspace': 'lots' is not a size such "
    "as 512M or 4G",
    "build m.onnx --set-max-nonzero x": "--set-max-nonzero 'x' is not N or NODE=N",
}


def call(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str, str]:
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    done = CliRunner().invoke(main, text.split())
    assert isinstance(done.exception, SystemExit), f"a traceback: {done.exception!r}"
    assert sorted(path.name for path in folder.iterdir()) in (before, sorted([*before, "o"]))
    (folder / "o").unlink(missing_ok=True)
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("text", [*REWRITE, *OTHERS])
def test_a_mistake_is_one_sentence(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, said = call(text, folder, monkeypatch)
    assert said == f"Error: {(REWRITE | OTHERS)[text]}\n"
    assert (code, out) == (1, "")


@pytest.mark.parametrize("text", USAGE)
def test_a_wrong_command_line_is_one_sentence_below_its_usage(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, said = call(text, folder, monkeypatch)
    assert said.splitlines()[-1] == f"Error: {USAGE[text]}"
    assert said.startswith("Usage: ")
    assert (code, out) == (2, "")


RTX = {
    "build text.onnx": f"text.onnx: {NOT_ONNX}",
    "build empty.onnx": "empty.onnx: the file holds no ONNX graph; export or download it again",
    "build patched.onnx -o o --profile y=3": "patched.onnx: the network has no input 'y'; its "
    "inputs are 'x'",
    "build patched.onnx -o o --profile x=1x2": "patched.onnx: profile gives input 'x' rank 2; the "
    "network has rank 1",
    "build patched.onnx -o o --set-max-nonzero nope=3": "patched.onnx: the model has no "
    "NonZeroPlugin node 'nope'; it has 'nz'",
    "build patched.onnx -o o --set-max-nonzero 0": "patched.onnx: max_nonzero 0 is outside 1 to "
    "2147483647",
}


@pytest.mark.rtx
@pytest.mark.parametrize("text", RTX)
def test_a_mistake_in_a_build_is_one_sentence(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, said = call(f"{text} --trt tensorrt_rtx", folder, monkeypatch)
    assert said == f"Error: {RTX[text]}\n"
    assert (code, out) == (1, "")


@pytest.mark.skipif(os.name != "posix", reason="pipes and links as POSIX has them")
@pytest.mark.parametrize("text", POSIX)
def test_what_is_no_file_is_one_sentence(
    text: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, said = call(text, folder, monkeypatch)
    sentence = POSIX[text].replace("{root}", str(folder))
    assert said == f"Error: {sentence}\n"
    assert (code, out) == (1, "")


def all_sentences() -> list[str]:
    return [text for table in (REWRITE, POSIX, OTHERS, USAGE, RTX) for text in table.values()]


def test_each_says_where_and_what_to_do() -> None:
    """The table itself: a file or a name of the user's is in each, and a way out in most."""
    for text, sentence in (REWRITE | OTHERS).items():
        words = text.replace("=", " ").split()
        names = [word for word in words if not word.startswith("-")]
        assert any(word in sentence for word in [*names, "inputs: "]), sentence
        assert sentence[-1] != "." or sentence.endswith(" in .")
    way_out = [s for s in (REWRITE | OTHERS).values() if ";" in s or ": rename" in s]
    assert len(way_out) > 0.85 * len(REWRITE | OTHERS)
