"""Sessions per GB and per core: what scripts/bench --capacity measures, keeps and draws. README: bench/README.md."""
