"""`python -m crosscut`: the command line, where its script is not on the PATH."""

from __future__ import annotations

from crosscut.cli.commands import main

if __name__ == "__main__":
    main()
