"""Processes that are forks of a template: which commands can be, how a template is made, and when it is used."""
