"""What all command lines of the runner have in common."""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

USAGE_ERROR = 64  # EX_USAGE, as the C++ programs


class Parser(argparse.ArgumentParser):
    """Help with an example; what is refused is one line."""

    def __init__(self, prog: str, description: str, example: str) -> None:
        super().__init__(prog=prog, description=description, epilog=f"example:\n  {example}",
                         formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Ends the process."""
        print(f"{self.prog}: {message}; {self.prog} --help lists the flags", file=sys.stderr)
        sys.exit(USAGE_ERROR)
