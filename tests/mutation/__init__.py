"""Every shipped spec changed in every small way, and what tells the change.

    document    the text of a spec as a tree that knows where everything stands; edits of it
    strings     small changes of what stands in a spec's strings: orders, splits, expressions, codes, values
    mutators    small changes of a spec, numbered
    files       tensors as a format's public definition has them, drawn and read by code that knows no spec
    decoded     a spec held against these files
    listed      conversions, plans and configurations that it is held against, from other tests and configs.yaml
    killers     what tells a changed spec from the right one
    same        the proof that a changed spec means what the right one means
    workplace   a copy of the shipped specs in which one is changed
    score       a mutant's verdict
"""
