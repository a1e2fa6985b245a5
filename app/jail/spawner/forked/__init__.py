"""Processes that are forked from a template: a Python program that has imported what they need, and served nobody."""
