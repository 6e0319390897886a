"""Findings in spec files: text, schema, what must hold inside each, the proof at every size to try, and the rules.

A rule is one file of `lint/rules`, named by its code and its name; its docstring is its page (`layoutdsl rule CODE`).
"""
