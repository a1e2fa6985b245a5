"""Recipes, without I/O: tools that are made of calls of other tools. What they are, whether they can work, and what a
run of one does next. No toolsets and no sessions, which are above."""
