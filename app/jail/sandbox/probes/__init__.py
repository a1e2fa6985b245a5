"""What a sandbox is worth: a program that tries inside it what it forbids, and what starts it and reads its report.

`attempts` is that program: it runs alone in the sandbox, with the standard library only.
"""
