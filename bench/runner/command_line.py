"""The common part of the runner's command lines."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

USAGE_ERROR = 64  # EX_USAGE, like the C++ programs


class Parser(argparse.ArgumentParser):
    """Shows help with an example; reports refused arguments in one line."""

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(prog=prog, description=description, epilog=f"example:\n  {example}",
                         formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        print(f"{self.prog}: {message}; {self.prog} --help lists the flags", file=sys.stderr)
        sys.exit(USAGE_ERROR)
