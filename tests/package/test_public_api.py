"""The public names: there, documented, typed for programs outside of this repository."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "python.md").read_text("utf-8")
PACKAGES = ("nonzero_rewrite", "nonzero_plugin")


@pytest.mark.parametrize("package", PACKAGES)
def test_each_public_name_is_there_and_has_a_text(package: str) -> None:
    module = importlib.import_module(package)
    assert list(module.__all__) == sorted(module.__all__)
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__module__.partition(".")[0] in PACKAGES
            assert len(inspect.getdoc(value) or "") > 20, name
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


@pytest.mark.parametrize("package", PACKAGES)
def test_the_page_lists_each_public_name_and_no_other(package: str) -> None:
    table = PAGE.split(f"\n| `{package}` | |\n")[1].split("\n\n")[0]
    cells = [line.split(" | ")[0] for line in table.splitlines()[1:]]
    listed = {re.split(r"\W", name)[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    assert listed == set(importlib.import_module(package).__all__)


@pytest.mark.parametrize("name", ["rewrite_model", "verify_models", "build_engine"])
def test_the_page_names_parameters_that_exist(name: str) -> None:
    value = getattr(importlib.import_module("nonzero_rewrite"), name)
    (text,) = re.findall(rf"`{name}\(([^`]*)\)`", PAGE.split("## All public names")[1])
    parameters = re.findall(r"(\w+)(?==|,|$)", text.replace("None", "").replace("...", ""))
    assert parameters and set(parameters) <= inspect.signature(value).parameters.keys()


CONSUMER = """
from pathlib import Path

import numpy as np
import nonzero_plugin
import nonzero_rewrite
from nonzero_plugin import NonZeroConfig, NonZeroPluginError
from nonzero_plugin.engine import BuildOptions
from nonzero_rewrite import (
    Decision, NonZeroRewriteError, Options, RewritePlan, RewriteResult, Site, build_engine,
    restore_model, rewrite_model, scan_model, verify_models,
)


def use(model: Path) -> list[str]:
    try:
        result: RewriteResult = rewrite_model(model, Options(backend="torch", max_nonzero=7))
    except (NonZeroRewriteError, NonZeroPluginError) as err:
        return [str(err)]
    plan: RewritePlan = result.plan
    first: Decision = plan.decisions[0]
    sites: tuple[Site, ...] = scan_model(str(model)).sites
    verification = verify_models(model, result.model, inputs=[{"x": np.zeros((2, 3))}])
    ok: bool = verification.ok
    count: int = restore_model(result.model)
    seconds: float = build_engine(model, model.with_suffix(".engine"), BuildOptions()).seconds
    config = NonZeroConfig(perm=(1, 0))
    trt = nonzero_plugin.register()
    return [first.outcome, sites[0].id, plan.to_json(), nonzero_rewrite.__version__,
            f"{ok} {count} {seconds} {config.backend} {trt}"]
"""
MISTAKES = {
    "rewrite_model(3)": "arg-type",
    "rewrite_model('m', backnd='torch')": "call-arg",
    "rewrite_model('m', max_nonzero='x')": "arg-type",
    "restore_model('model.onnx')": "arg-type",
    "scan_model('model.onnx').nothing": "attr-defined",
    "verify_models('a', 'b').ok + 'x'": "operator",
    "Options(backend=7)": "arg-type",
    "NonZeroConfig(max_nonzero='x')": "arg-type",
}


@pytest.mark.slow
def test_a_program_elsewhere_type_checks(tmp_path: Path) -> None:
    """Against the installed package, with its own settings, outside of the checkout."""
    mistakes = CONSUMER.lstrip("\n").count("\n") + 2
    text = CONSUMER.lstrip("\n") + "".join(f"\n{mistake}" for mistake in MISTAKES)
    (tmp_path / "consumer.py").write_text(text, encoding="utf-8")
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = True\n", encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "consumer.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    found = re.findall(r"^consumer\.py:(\d+): error: .*\[([\w-]+)\]$", done.stdout, re.MULTILINE)
    expected = [(str(mistakes + n), code) for n, code in enumerate(MISTAKES.values())]
    assert found == expected, done.stdout + done.stderr
    assert "import-untyped" not in done.stdout
