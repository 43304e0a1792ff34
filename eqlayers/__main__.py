"""`python -m eqlayers` is the command `eqlayers`."""

import sys

from eqlayers.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
