"""No sentence without a row: what the source can say is compared with what the tables hold."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest
from helpers import sentences
from helpers.sentences import Sentence


def table(name: str) -> list[str]:
    """The sentences of a module of tests beside this one."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: list[str] = module.all_sentences()
    return found


TABLES = ("test_messages", "test_messages_plugin", "test_messages_python")
HELD = [text for name in TABLES for text in table(name)]
SAID = list(sentences.sentences())


@pytest.mark.parametrize("sentence", SAID, ids=str)
def test_every_sentence_has_a_row(sentence: Sentence) -> None:
    assert any(sentence.is_held_by(text) for text in HELD), (
        f"no row of the tables holds this one, so nobody has provoked it: {sentence}"
    )


def test_the_source_is_read_as_a_whole() -> None:
    files = {sentence.file for sentence in SAID}
    for name in ("load.py", "write.py", "cli/rewrite.py", "doctor.py", "polygraphy_ext.py"):
        assert f"nonzero_rewrite/{name}" in files
    for name in ("fields.py", "builder.py", "diagnose.py", "places.py", "backends/torch.py"):
        assert f"plugin/nonzero_plugin/{name}" in files
    assert len(SAID) > 200


@pytest.mark.parametrize(
    ("code", "texts"),
    [
        ('raise ContractError(f"{a} is odd")', ["\0 is odd"]),
        ('raise ContractError("odd" if x else f"even {y!r}")', ["even \0", "odd"]),
        ('error = EngineBuildError(f"{a}: no " + (b or "more"), phase="x")', ["\0: no \0"]),
        ('raise click.UsageError(f"say {NAME}")', ["say it all"]),
        ('raise OurError(f"it is {NAME!r}")', ["it is 'it all'"]),
        ('self.fail("not so", param, ctx)', ["not so"]),
        ('click.echo(f"Note: {a}", err=True)', ["Note: \0"]),
        ('click.echo(f"Result: {a}")', []),
        ('logger.warning("node %r: %s", a, b)', ["node \0: \0"]),
        ('log.info("compiled %s", a)', []),
        ('print(f"Error: {a}", file=sys.stderr)', ["Error: \0"]),
        ('emit("note", text="so it is")', ["so it is"]),
        ('raise ValueError("a fault of this package")', []),
    ],
)
def test_the_reader_would_see_it(code: str, texts: list[str]) -> None:
    tree = ast.parse(f"NAME = 'it all'\n{code}")
    errors = {"ContractError", "EngineBuildError", "OurError", "UsageError"}
    found = sentences.said_in(tree, errors, prose=False)
    constants = sentences.constants_of([tree])
    assert sorted(t for _, node in found for t in sentences.texts(node, constants)) == texts
