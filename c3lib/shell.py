"""What all ``c3`` commands share: how errors end, the options that several take, and how an answer is printed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from c3lib.errors import C3Error
from c3lib.terminal import to_json

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
NodeName = Annotated[str, typer.Option("--node", metavar="NAME", help="A node; c3 nodes lists them.")]
SuiteName = Annotated[str, typer.Option("--suite", metavar="NAME", help="A suite; c3 suite lists them.")]
Kind = Annotated[str, typer.Option("--collective", metavar="KIND", help="all-gather or all-to-all.")]
Size = Annotated[
    str, typer.Option("--size", help="Total, such as 896MiB: gathered output, or what one rank sends in an all-to-all.")
]
Strategies = Annotated[
    list[str] | None, typer.Option("--strategy", metavar="NAME", help="A strategy; again for more. Default: all.")
]


class Group(typer.core.TyperGroup):
    """Turns what a user can cause into one line on stderr and an exit status that is not 0."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except C3Error as error:
            typer.echo(f"c3: {error}", err=True)
            raise typer.Exit(2) from None
        except KeyboardInterrupt:
            typer.echo("c3: interrupted", err=True)
            raise typer.Exit(130) from None
        except BrokenPipeError:
            raise  # typer ends without a word: whoever read the output has had enough
        except OSError as error:
            what = "output cannot be written"
            if error.filename is not None:  # a file's, so not what is printed
                what = f"{error.filename}: cannot be used"
            else:
                sys.stdout = None  # what could not be written is not tried again at exit
            typer.echo(f"c3: {what}: {error.strerror or error}", err=True)
            raise typer.Exit(2) from None


def show(content: Any, text: str, json: bool) -> None:
    """Print the content as JSON, or the text."""
    typer.echo(to_json(content) if json else text)
