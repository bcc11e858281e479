"""`python -m fedsteer`."""

import sys

from fedsteer.cli import main

if __name__ == "__main__":
    sys.exit(main())
