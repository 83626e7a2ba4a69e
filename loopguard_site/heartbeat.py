"""The file that a supervised process touches while it works. Its name is passed on in the environment."""

VARIABLE = "_LOOPGUARD_HEARTBEAT_FILE"
