"""``python -m c3lib`` is ``c3``."""

from c3lib.cli import main

if __name__ == "__main__":
    main()
