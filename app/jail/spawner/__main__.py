"""Runs the spawner on the socket whose descriptor is the only argument.

Run as a file with `python -I -S`, so the project's root is not on sys.path yet.
"""

import os.path
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from app.jail.spawner._server import serve

if __name__ == "__main__":
    serve(int(sys.argv[1]))
