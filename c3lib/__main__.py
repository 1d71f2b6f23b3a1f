"""``c3`` and ``python -m c3lib``: a thin start, so that Ctrl-C while the command line still loads is one line too."""

import sys


def main() -> None:
    """Entry point of ``c3``."""
    try:
        from c3lib.cli import app
    except KeyboardInterrupt:
        print("c3: interrupted", file=sys.stderr)
        sys.exit(130)
    app(prog_name="c3")


if __name__ == "__main__":
    main()
