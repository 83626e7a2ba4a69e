"""``python -m loopguard_site``: the command line, for child processes."""

from loopguard_site.command_line import main

main()
