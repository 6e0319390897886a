"""One rule per file, `ld203_pad_without_reason.py`: the file's name is its code and name, the docstring its page.

The first line of the docstring says what the rule finds; "Why is this bad", "Example" and "Use instead" follow. A rule
has one of two functions, or none where the reader, the schema or the proofs find it:

    check(subject: Subject) -> Iterator[Found]    looks at a valid spec, its text and its layouts
    check_tree(tree: Tree) -> Iterator[Found]     needs no more than the text, so it runs on invalid specs too

Where others raise a code under further names, `ALSO` lists them. `EXPLAINS` lists codes of the proofs' findings that
have the same cause, and stay silent where the rule is reported.
"""
