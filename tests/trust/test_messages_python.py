"""The exact sentence for what only a Python caller, a Polygraphy user or a bad moment can meet.

What a command line alone can provoke is in test_messages.py.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon as gs
import pytest
from click.testing import CliRunner
from google.protobuf.message import EncodeError
from helpers.dying import dies
from helpers.fake_runtime import FakeCuda, make_fake_runtime
from helpers.graphs import parse
from helpers.messages import Case, Row, exact_test
from nonzero_plugin import _tensorrt, execute
from nonzero_plugin.errors import EngineBuildError, TensorRTUnavailableError

from nonzero_rewrite import Options, batch, doctor, input_values, inputs, load, rewrite_model, write
from nonzero_rewrite.cli import main
from nonzero_rewrite.densities import inputs_of_density
from nonzero_rewrite.file_task import FileTask, rewrite_file
from nonzero_rewrite.graphsurgeon import rewrite_graph
from nonzero_rewrite.load import load_model
from nonzero_rewrite.rules import RULE_NAMES
from nonzero_rewrite.runtime import ModelSource, OrtRunner, RunError
from nonzero_rewrite.verify_engine import verify_engine

POLYGRAPHY = "nonzero_rewrite.polygraphy_ext"


def model(path: Path, external: bool = False) -> Path:
    """``m.onnx`` in a folder, with its weight in ``w.bin`` if asked."""
    made = parse("g (float[n] x) => (int64[1, k] i, float[n] y) { i = NonZero(x) y = Add(x, w) }")
    weight = onnx.numpy_helper.from_array(np.ones(1, np.float32), "w")
    if external:
        (path / "w.bin").write_bytes(weight.raw_data)
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="w.bin")
    made.graph.initializer.append(weight)
    (path / "m.onnx").write_bytes(made.SerializeToString())
    return path / "m.onnx"


def said_by(case: Case, *arguments: str) -> None:
    """What a command says on stderr, line by line."""
    case.patch.chdir(case.path)
    done = CliRunner().invoke(main, arguments)
    assert isinstance(done.exception, SystemExit | None), done.exception
    case.said += done.stderr.splitlines()


# -- files that change, and disks that refuse ---------------------------------------------------


def raises(error: BaseException) -> Any:
    def refuse(*_: object, **__: object) -> Any:
        raise error

    return refuse


def writing(patch: Any = None, external: bool = False, how: str = "copy", **settings: Any) -> Any:
    """``write_model`` into another folder, after ``patch(case, source)``."""

    def provoke(case: Case) -> None:
        source = load_model(model(case.path, external))
        (case.path / "out").mkdir()
        if patch:
            patch(case, source)
        out = case.path / "out" / "o.onnx"
        write.write_model(source.model, source, out, external_data=how, **settings)

    return provoke


def weights_elsewhere(change: Any) -> Any:
    """As if the file were large, so that its weights were left in it; then it changes."""

    def provoke(case: Case) -> None:
        case.patch.setattr(load, "LARGE_FILE_BYTES", 0)
        case.patch.setattr("nonzero_rewrite.wire.LARGE_TENSOR_BYTES", 0, raising=False)
        path = model(case.path)
        source = load_model(path)
        change(path)
        with write._unchanged(source):
            pass

    return provoke


def too_large(case: Case) -> None:
    with (case.path / "big.onnx").open("wb") as file:
        file.truncate(1 << 31)
    load_model(case.path / "big.onnx")


def reading(error: Exception) -> Any:
    def provoke(case: Case) -> None:
        path = model(case.path)
        case.patch.setattr(Path, "open", raises(error))
        load_model(path)

    return provoke


def a_file_for_a_folder(case: Case) -> None:
    (case.path / "out").write_bytes(b"")
    result = rewrite_file(FileTask(model(case.path), case.path / "out" / "o.onnx"))
    case.said.append(result.error)


def data_folder_is_a_file(case: Case) -> None:
    path = model(case.path, external=True)
    (case.path / "sub").mkdir()
    (case.path / "w.bin").rename(case.path / "sub" / "w.bin")
    made = onnx.load(path, load_external_data=False)
    made.graph.initializer[0].external_data[0].value = "sub/w.bin"
    path.write_bytes(made.SerializeToString())
    (case.path / "out").mkdir()
    (case.path / "out" / "sub").write_bytes(b"")
    source = load_model(path)
    write.write_model(source.model, source, case.path / "out" / "o.onnx")


def other_data(case: Case, _: Any) -> None:
    (case.path / "out" / "w.bin").write_bytes(b"theirs")


def unreadable_data(case: Case, source: Any) -> None:
    other_data(case, source)
    case.patch.setattr(write.filecmp, "cmp", raises(PermissionError(13, "Permission denied")))


FILES: list[Row] = [
    (
        "FOLDER/big.onnx: 2147483648 bytes in one file are more than protobuf's limit of 2 GiB; "
        "save the model with external data",
        too_large,
    ),
    (
        "FOLDER/m.onnx: too large for this machine's memory; save it with external data",
        reading(MemoryError()),
    ),
    (
        "FOLDER/m.onnx: cannot be read: Permission denied; check its permissions",
        reading(PermissionError(13, "Permission denied")),
    ),
    (
        "FOLDER/m.onnx: cannot be read: No such file or directory; check it",
        weights_elsewhere(Path.unlink),
    ),
    (
        "FOLDER/m.onnx: has changed since it was read; run the command again",
        weights_elsewhere(lambda path: path.write_bytes(path.read_bytes() + b"\0\0")),
    ),
    (
        "FOLDER/none: cannot be read: No such file or directory; check it",
        lambda case: write.copy_file(case.path / "none", case.path / "o"),
    ),
    (
        "FOLDER/out: cannot be made: File exists; choose another folder",
        a_file_for_a_folder,
    ),
    (
        "FOLDER/out/sub: cannot be made: File exists; choose another place",
        data_folder_is_a_file,
    ),
    (
        "FOLDER/out/w.bin: another data file of that name is already there; choose another folder "
        "for the output",
        writing(other_data, external=True),
    ),
    (
        "FOLDER/out/w.bin: is there already and cannot be read: Permission denied; choose another "
        "folder for the output",
        writing(unreadable_data, external=True),
    ),
    (
        "FOLDER/out/w.bin: cannot be linked to FOLDER/w.bin: Invalid cross-device link; hard links "
        "need one file system: use --external-data copy",
        writing(
            lambda case, _: case.patch.setattr(
                write.os, "link", raises(OSError(18, "Invalid cross-device link"))
            ),
            external=True,
            how="link",
        ),
    ),
    (
        "FOLDER/out/o.onnx: no relative path leads to the data files in FOLDER; use "
        "--external-data copy",
        writing(
            lambda case, _: case.patch.setattr(write.os.path, "relpath", raises(ValueError())),
            external=True,
            how="relative",
        ),
    ),
    (
        "FOLDER/out/o.onnx: the model is over 2 GiB; save it with external data first",
        writing(lambda case, _: case.patch.setattr(write, "MAX_PROTOBUF_BYTES", 10)),
    ),
    (
        "FOLDER/out/o.onnx: the model cannot be serialized (too big); a model of 2 GiB or more "
        "must keep its weights in external data",
        writing(
            lambda case, _: case.patch.setattr(
                write, "with_weights", raises(EncodeError("too big"))
            )
        ),
    ),
    (
        "FOLDER/o: cannot be written: No space left on device; choose another place or make room",
        lambda case: (
            case.patch.setattr(write.os, "fsync", raises(OSError(28, "No space left on device"))),
            write.write_text(case.path / "o", "text"),
        ),
    ),
    (
        "FOLDER/o: cannot be written: its folder FOLDER is read-only; choose another place",
        lambda case: (
            case.patch.setattr(write.os, "access", lambda *_: False),
            write.check_outputs([case.path / "o"]),
        ),
    ),
    (
        "FOLDER/" + "y" * 300 + ": cannot be written: File name too long; choose another",
        lambda case: write.check_outputs([case.path / ("y" * 300)]),
    ),
]

# -- settings -----------------------------------------------------------------------------------


def nested_in_memory(_: Case) -> None:
    made = parse("g (float[n] x) => (int64[1, k] i) { i = NonZero(x) }")
    graph = made.graph
    for _level in range(100):
        node = graph.node.add(op_type="If", output=["r"])
        attribute = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH)
        graph = attribute.g
    rewrite_model(made)


def two_tensors(_: Case) -> None:
    first, second = gs.Variable("x", np.float32, [3]), gs.Variable("x", np.float32, [3])
    y, z = gs.Variable("y"), gs.Variable("z")
    nodes = [
        gs.Node("Abs", inputs=[first], outputs=[y]),
        gs.Node("Abs", inputs=[second], outputs=[z]),
    ]
    rewrite_graph(gs.Graph(nodes, inputs=[first], outputs=[y, z]))


def refuses_utf8(name: bytes) -> Any:
    """Whatever holds the text: a node, a value, a function."""

    def provoke(_: Case) -> None:
        made = parse(
            "g (float[n] x) => (int64[1, k] i) { value_i = local.function_it(x) i = NonZero(x) }",
            tail='<domain: "local", opset_import: ["": 17]> function_it (a) => (b) { b = Abs(a) }',
        )
        data = made.SerializeToString().replace(name, b"\xff" * len(name))
        rewrite_model(onnx.ModelProto.FromString(data))

    return provoke


NOT_UTF8 = (
    "a name in the model is not UTF-8 text, so the file is damaged or its exporter is; export or "
    "download it again"
)


def no_ort(case: Case) -> None:
    made = parse("g (float[n] x) => (float[n] y) { y = Abs(x) }")
    source = ModelSource.of(made, label="model", folder=None)
    case.without("onnxruntime")
    OrtRunner(source)


def notes_of(**facts: Any) -> Any:
    state = {"tries": 7, "first_error": "", "out_of_time": False, "edge_failures": [], **facts}
    return lambda case: case.said.extend(inputs._notes(SimpleNamespace(**state), any_case=False))


def does_not_run(case: Case) -> None:
    case.patch.setattr(inputs, "open_runner", raises(RunError("it is odd")))
    inputs.make_inputs(parse("g (float[n] x) => (float[n] y) { y = Abs(x) }"))


def another_engine(case: Case) -> None:
    case.patch.setattr(execute, "Cuda", FakeCuda)
    (case.path / "m.engine").write_bytes(b"engine")
    other = parse("g (float[n] other) => (float[n] y) { y = Abs(other) }")
    onnx.save(other, case.path / "m.onnx")
    engine = execute.Engine(case.path / "m.engine", make_fake_runtime())
    verify_engine(case.path / "m.onnx", engine, time_budget=0.1)


SETTINGS: list[Row] = [
    (
        f"unknown rule 'magic'; the rules are: {', '.join(RULE_NAMES)}",
        lambda _: Options(rules=frozenset({"magic"})),
    ),
    (
        "only is the text 'nz'; give a tuple of names: ('nz',)",
        lambda _: Options(only="nz"),  # type: ignore[arg-type]
    ),
    ("density 2 is not between 0 and 1", lambda _: inputs_of_density(Path("m.onnx"), (2,))),
    (
        "its graphs lie in each other deeper than the 33 that protobuf reads; build it without so "
        "many nested If or Loop",
        nested_in_memory,
    ),
    (
        "two tensors of the graph are called 'x', so an export would join them; rename one",
        two_tensors,
    ),
    (NOT_UTF8, refuses_utf8(b"value_i")),
    (NOT_UTF8, refuses_utf8(b"function_it")),
    (
        "a model with BFLOAT16 or FLOAT8 inputs needs ml_dtypes; pip install ml_dtypes",
        lambda case: (case.without("ml_dtypes"), input_values._ml_dtypes()),
    ),
    (
        "verification needs onnxruntime, which cannot be imported; pip install onnxruntime (import "
        "of onnxruntime halted; None in sys.modules)",
        no_ort,
    ),
    (
        "the original does not run on any of 7 searched inputs (it is odd); give inputs that fit "
        "with --inputs",
        notes_of(first_error="it is odd"),
    ),
    ("the search for inputs ended by its time budget after 7 tries", notes_of(out_of_time=True)),
    (
        "the original does not run with height = 0 (refused)",
        notes_of(edge_failures=["height = 0 (refused)"]),
    ),
    (
        "model: does not run: it is odd",
        does_not_run,
    ),
    (
        "the engine is not of this model: inputs ['x'] are only on one side; compare it with the "
        "model it was built from",
        another_engine,
    ),
]

# -- commands whose work fails ------------------------------------------------------------------


def worker_dies(case: Case) -> None:
    case.patch.setattr(batch, "rewrite_file", dies)
    case.patch.chdir(case.path)
    (result,) = batch.rewrite_files([FileTask(Path("dies.onnx"), Path("o.onnx"))])
    case.said.append(result.error)


def worker_has_a_bug(case: Case) -> None:
    case.patch.setattr(batch, "rewrite_file", dies)
    case.patch.chdir(case.path)
    (result,) = batch.rewrite_files([FileTask(Path("bug.onnx"), Path("o.onnx"))])
    case.said.append(result.error)


def parity(outcome: str, reason: str = "") -> Any:
    from nonzero_rewrite.verification import Outcome, Verification

    def provoke(case: Case) -> None:
        model(case.path)
        result = Verification("m.onnx", "o.onnx", Outcome(outcome), reason, (), 0, 0.0, 0.0)
        case.patch.setattr("nonzero_rewrite.cli.rewrite._verify", lambda *_: result)
        said_by(case, "m.onnx", "-o", "o.onnx", "--verify")

    return provoke


def no_engine(case: Case) -> None:
    model(case.path)
    error = EngineBuildError("o.onnx: TensorRT could not")
    case.patch.setattr("nonzero_plugin.engine.build_engine", raises(error))
    said_by(case, "m.onnx", "-o", "o.onnx", "--build", "e")


def build_warns(*options: str) -> Any:
    def provoke(case: Case) -> None:
        result = SimpleNamespace(
            engine=Path("e"), engine_bytes=9, flavour="tensorrt", version="10.9.0", seconds=1.0,
            profiles=(), compute_capabilities=(), plugin_nodes=(), sidecar=Path("e.json"),
            notes=("assumed a lot",), warnings=("it is late",),
        )  # fmt: skip
        case.patch.setattr("nonzero_plugin.engine.build_engine", lambda *_: result)
        model(case.path)
        said_by(case, "build", "m.onnx", *options)

    return provoke


def runs(*options: str, truncated: bool = False) -> Any:
    def provoke(case: Case) -> None:
        runtime = make_fake_runtime()
        case.patch.setattr(execute, "Cuda", FakeCuda)
        case.patch.setattr(execute, "choose_runtime", lambda path, trt: runtime)
        case.patch.setattr("nonzero_plugin.promise.any_promise_broken", lambda: truncated)
        (case.path / "m.engine").write_bytes(b"engine")
        np.savez(case.path / "x.npz", x=np.ones((8, 8), np.float32))
        said_by(case, "run", "m.engine", *options)

    return provoke


def full_device(case: Case) -> None:
    model(case.path)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "nonzero_rewrite", "scan", "m.onnx"],
            cwd=case.path, stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    case.said += done.stderr.splitlines()


COMMANDS: list[Row] = [
    (
        "dies.onnx: the process working on it died (out of memory, or a crash in a native "
        "library); run this model alone to see more",
        worker_dies,
    ),
    (
        "bug.onnx: unexpected ZeroDivisionError: a bug; run this model alone to see more",
        worker_has_a_bug,
    ),
    (
        "Error: the patched model differs from the original; it was written for inspection",
        parity("different"),
    ),
    ("Error: the models cannot be compared: it is odd", parity("not comparable", "it is odd")),
    (
        "Error: rewritten, but no engine was built: o.onnx: TensorRT could not",
        no_engine,
    ),
    (
        "Note: unpatched: each NonZero is served where it stands; the Transpose behind it stays a "
        "layer of its own, equal masks are not shared, and there is no count (rewrite the model "
        "for those)",
        build_warns("--unpatched"),
    ),
    ("Note: assumed a lot", build_warns()),
    ("TensorRT warns: it is late", build_warns()),
    ("Error: the engine has inputs 'x'; give --inputs FILE.npz", runs()),
    (
        "Note: max_nonzero cut a result short: more elements were non-zero; build with a larger "
        "--set-max-nonzero",
        runs("--inputs", "x.npz", truncated=True),
    ),
    *(
        [
            (
                "Error: the output cannot be written: No space left on device; make room, or send "
                "it elsewhere",
                full_device,
            )
        ]
        if Path("/dev/full").exists()
        else []
    ),
]

# -- doctor ---------------------------------------------------------------------------------------

FITS: dict[str, Any] = {
    "tensorrt": {"flavour": "tensorrt_rtx", "version": "1.7.1", "gpu_supported": None},
    "cuda": {},
    "backends": {},
    "target": None,
}
NEED = {"registered": False, "why": "no plugin of that name", "plugin": ["P", "1", "theirs"]}
MADE = {"tensorrt": {"flavour": "tensorrt", "version": "10.9.0"}}


def sick(**parts: Any) -> Any:
    """What ``doctor`` calls a problem where its probes found ``parts``."""

    def provoke(case: Case) -> None:
        case.said += doctor._problems({**FITS, **parts})
        assert len(case.said) == 1

    return provoke


def target(**facts: Any) -> Any:
    return sick(target={"path": "m.engine", "needs": [], **facts})


def looks_at(name: str) -> Any:
    def provoke(case: Case) -> None:
        case.patch.chdir(case.path)
        (case.path / "folder").mkdir()
        (case.path / "text.onnx").write_text("hello")
        facts = doctor._target_facts(Path(name), {})
        case.said += doctor._problems({**FITS, "target": facts})
        assert doctor._target_lines(facts) == case.said

    return provoke


def unreadable(case: Case) -> None:
    (case.path / "m.engine").write_bytes(b"engine")
    case.patch.setattr(Path, "read_bytes", raises(PermissionError(13, "Permission denied")))
    case.said.append(doctor._target_facts(case.path / "m.engine", {})["error"])


def child(code: str) -> Any:
    """What becomes of a probe whose process does this."""

    def provoke(case: Case) -> None:
        (case.path / "broken.py").write_text(f"def probe():\n    {code}\n")
        real = subprocess.run

        def run(command: list[str], **rest: Any) -> Any:
            text = command[2].replace("nonzero_rewrite import doctor_probes", "broken import probe")
            text = text.replace("probe as p", "probe").replace(
                "getattr(p, sys.argv[2])(*sys.argv[3:])", "probe()"
            )
            return real([*command[:2], text, json.dumps([str(case.path), *sys.path])], **rest)

        case.patch.setattr(doctor, "_TIMEOUT", 5)
        case.patch.setattr(doctor.subprocess, "run", run)
        case.said.append(doctor._in_child("probe")["error"])

    return provoke


DOCTOR: list[Row] = [
    ("engines cannot be built or run: no TensorRT", sick(tensorrt={"error": "no TensorRT"})),
    ("engines cannot be run: no driver", sick(cuda={"error": "no driver"})),
    (
        "this GPU is not supported: too old",
        sick(tensorrt={**FITS["tensorrt"], "gpu_supported": False, "gpu_verdict": "too old"}),
    ),
    ("the default backend is not available: no NVRTC", sick(backends={"cuda_python": "no NVRTC"})),
    (
        "m.engine needs plugin P, version 1, namespace 'theirs': no plugin of that name",
        target(needs=[NEED]),
    ),
    (
        "m.engine still holds 2 ONNX NonZero, which TensorRT for RTX does not build: rewrite it, "
        "or build with --unpatched",
        target(nonzero_left=2),
    ),
    (
        "m.engine was built by tensorrt 10.9.0, loaded is tensorrt_rtx 1.7.1: choose with --trt "
        "tensorrt",
        target(sidecar=MADE),
    ),
    (
        "m.engine is not the engine its sidecar describes: build it again, or remove the .json "
        "beside it",
        target(sidecar_fits=False),
    ),
    ("none.onnx: there is no such file; check the path", looks_at("none.onnx")),
    ("folder: is no file; name a model or an engine", looks_at("folder")),
    (
        "text.onnx: not an ONNX model, or a truncated one (Error parsing message with type "
        "'onnx.ModelProto': Wire format was corrupt); export or download it again",
        looks_at("text.onnx"),
    ),
    ("FOLDER/m.engine: cannot be read: Permission denied; check the path", unreadable),
    (
        "the process ended with 1, saying: so tired",
        child("import sys; sys.exit('so tired')"),
    ),
    ("unexpected answer [1]", child("return [1]")),
    ("no answer within 5 s", child("import time; time.sleep(60)")),
]

# -- Polygraphy -----------------------------------------------------------------------------------


def polygraphy_says(provoke: Any) -> Any:
    """Polygraphy's logger, heard; its errors end with an exception of its own."""

    def heard(case: Case) -> None:
        from polygraphy.exception import PolygraphyException
        from polygraphy.logger import G_LOGGER

        case.patch.setattr(G_LOGGER, "warning", case.said.append)
        case.patch.setattr(G_LOGGER, "error", case.said.append)
        try:
            provoke(case)
        except PolygraphyException as error:
            case.said.append(str(error))

    return heard


def wrong_cap(_: Case) -> None:
    from nonzero_rewrite.polygraphy_ext import NonZeroRewriteArgs

    NonZeroRewriteArgs().parse_impl(SimpleNamespace(nonzero_max=["many"]))


def no_onnx(_: Case) -> None:
    from nonzero_rewrite import polygraphy_ext as ext

    class Engine:
        is_onnx = is_tf = staticmethod(lambda: False)
        __str__ = staticmethod(lambda: "engine")

    args = ext.NonZeroTrtRunnerArgs()
    args.arg_groups = {ext.ModelArgs: SimpleNamespace(model_type=Engine())}
    args.add_to_script_impl(None)


def flavour_missing(name: str, call: str) -> Any:
    def provoke(case: Case) -> None:
        import importlib.util

        from nonzero_rewrite import polygraphy_ext as ext

        case.patch.setattr("nonzero_rewrite.polygraphy_gate.polygraphy_flavour", lambda: name)
        case.patch.setattr(
            "nonzero_plugin.register", raises(TensorRTUnavailableError("no TensorRT"))
        )
        case.patch.setattr(importlib.util, "find_spec", lambda name: None)
        getattr(ext, call)()

    return provoke


def old_polygraphy(case: Case) -> None:
    import polygraphy

    from nonzero_rewrite.polygraphy_gate import polygraphy_flavour

    case.patch.setenv(_tensorrt.ENV_RTX, "1")
    case.patch.setattr(polygraphy, "__version__", "0.49.26")
    polygraphy_flavour()


def left_alone(_: Case) -> None:
    from nonzero_rewrite.polygraphy_loaders import RewriteNonZero

    RewriteNonZero(parse("g (float s) => (int64[r, k] i) { i = NonZero(s) }"))()


def script(name: str, **settings: str) -> Any:
    """One of the scripts for Polygraphy, loaded as Polygraphy does."""

    def provoke(case: Case) -> None:
        for key, value in settings.items():
            case.patch.setenv(key, value.replace("FOLDER", str(case.path)))
        case.patch.setattr(sys, "argv", ["polygraphy"])
        module = importlib.import_module(f"nonzero_rewrite.scripts.{name}")
        list(module.load_data())

    return provoke


def wrong_profile(case: Case) -> None:
    case.patch.setenv("NONZERO_PROFILE", "x")
    case.patch.setattr(_tensorrt, "wants_rtx", lambda: False)
    case.patch.setattr("nonzero_plugin.register", lambda flavour: None)
    import_anew(case, "nonzero_rewrite.scripts.trt_config").load_config(None, object())


def import_anew(case: Case, name: str) -> Any:
    case.patch.delitem(sys.modules, name, raising=False)
    try:
        return importlib.import_module(name)
    finally:
        sys.modules.pop(name, None)


def rtx_before_script(case: Case) -> None:
    case.patch.setenv(_tensorrt.ENV_RTX, "1")
    case.patch.setattr(_tensorrt, "prepare_rtx_libraries", lambda: Path("LINKS"))
    case.patch.setattr(_tensorrt, "_finds_unversioned_name", lambda folder: False)
    import_anew(case, "nonzero_rewrite.scripts.trt_config")


def wrong_script(case: Case) -> None:
    case.patch.setattr(sys, "argv", ["scripts", "nope"])
    with pytest.raises(SystemExit, match="2"):
        import_anew(case, "nonzero_rewrite.scripts.__main__")


POLYGRAPHY_ROWS: list[Row] = [
    ("--nonzero-max: 'many' is neither N nor NODE:N", polygraphy_says(wrong_cap)),
    (
        "--trt-nonzero rewrites ONNX models, and this is of type engine; --trt takes a patched "
        "model or an engine and finds the plugin by itself",
        polygraphy_says(no_onnx),
    ),
    (
        "NonZeroPlugin is not registered: no TensorRT",
        polygraphy_says(flavour_missing("tensorrt", "_register")),
    ),
    (
        "tensorrt is not installed: install TensorRT",
        polygraphy_says(flavour_missing("tensorrt", "_warn_of_missing_tensorrt")),
    ),
    (
        "tensorrt_rtx is not installed: pip install 'nonzero-rewrite[rtx]'",
        polygraphy_says(flavour_missing("tensorrt_rtx", "_warn_of_missing_tensorrt")),
    ),
    (
        "Polygraphy 0.49.26 cannot drive TensorRT for RTX (POLYGRAPHY_USE_TENSORRT_RTX is set); "
        "pip install 'polygraphy>=0.50.3'",
        old_polygraphy,
    ),
    (
        "NonZero 'i' is left: its input is a scalar, where ONNX and onnxruntime disagree about the "
        "result",
        polygraphy_says(left_alone),
    ),
    (
        "name the model that needs inputs: NONZERO_MODEL=model.onnx",
        polygraphy_says(script("data_loader")),
    ),
    (
        "NONZERO_DENSITIES and NONZERO_SEED take numbers: could not convert string to float: 'x'",
        polygraphy_says(script("data_loader", NONZERO_DENSITIES="x")),
    ),
    (
        "FOLDER/none.onnx: cannot be read: No such file or directory; check the path",
        polygraphy_says(script("data_loader", NONZERO_MODEL="FOLDER/none.onnx")),
    ),
    (
        "TensorRT for RTX was loaded from a wheel that lacks a library name which its parser "
        "opens; start this command with LD_LIBRARY_PATH=LINKS",
        polygraphy_says(rtx_before_script),
    ),
    (
        "NONZERO_PROFILE: profile part 'x' is not NAME=MIN:OPT:MAX or NAME=SHAPE",
        polygraphy_says(wrong_profile),
    ),
    (
        "usage: python -m nonzero_rewrite.scripts {data_loader,trt_config,rtx_libraries}",
        wrong_script,
    ),
]

ROWS = [*FILES, *SETTINGS, *COMMANDS, *DOCTOR, *POLYGRAPHY_ROWS]


def all_sentences() -> list[str]:
    return [sentence for sentence, _ in ROWS]


test_each_says_exactly_this = exact_test(ROWS)
