"""Complains and dies before it has read anything."""

import sys

sys.exit("cannot start:\x1b[31m no licence")
