"""Runs the spawner on the socket whose descriptor is the only argument.

Started as a file under `python -I -S`, so the project's root is not on the path yet.
"""

import os.path
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from app.spawner.server import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
