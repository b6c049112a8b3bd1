"""The entry of the command line: an interruption ends it without a traceback even while its modules are imported."""

from __future__ import annotations

import gc
import sys


def main() -> int:
    """Runs the command that was given and returns its exit status, 130 if it is interrupted."""
    try:
        # Imported late, so that an interruption of the import is caught too.
        from spmdc.cli import main as run

        return run()
    except KeyboardInterrupt:
        return 130
    finally:
        gc.freeze()  # The process ends here; a collection would examine all of its objects.


if __name__ == "__main__":
    sys.exit(main())
