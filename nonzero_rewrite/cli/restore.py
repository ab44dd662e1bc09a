"""``nonzero-rewrite restore``: make a patched file plain ONNX again."""

from __future__ import annotations

from pathlib import Path

import click

from nonzero_rewrite.cli import user_errors


@click.command("restore")
@click.argument("patched", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    metavar="OUT",
    help="The plain model.",
)
@click.option(
    "--external-data",
    type=click.Choice(["copy", "link", "relative"]),
    default="copy",
    show_default=True,
    help="What becomes of external data files when OUT lies in another folder.",
)
@user_errors
def command(*, patched: Path, output: Path, external_data: str) -> None:
    """Turn every NonZeroPlugin node of PATCHED into NonZero and Transpose, and write it to OUT.

    OUT equals the original in onnxruntime. A Where that took the place of a masked write stays, it
    is plain ONNX already.
    """
    from nonzero_rewrite.load import about, load_model
    from nonzero_rewrite.restore import is_patched, restore_model
    from nonzero_rewrite.write import check_target, write_model

    source = load_model(patched)
    check_target(output, source)
    with about(patched):
        changed = is_patched(source.model)
        restored = restore_model(source.model)
    write_model(source.model, source, output, changed=changed, external_data=external_data)
    what = f"{restored} NonZeroPlugin became NonZero" if restored else "No NonZeroPlugin found"
    click.echo(f"{what}: {output}")
