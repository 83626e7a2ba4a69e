"""``python -m loopguard_client`` is the command ``loopguard``."""

import sys

from loopguard_client.command_line import main

if __name__ == "__main__":
    sys.exit(main())
