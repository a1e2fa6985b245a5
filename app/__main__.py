"""`python -m app` is the command `trunkline`."""

from app.cli import main

raise SystemExit(main())
