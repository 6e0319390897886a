"""The cpu backend: compiled loops over packed words, one pass, nothing unpacked, all experts at once, over threads.

From a plan to kernels, in the order of imports:

    axes, operands, tables   runs as tables of addresses; addresses add up over axes, so there is one for n, one for k
    routes, network          which operations bring the digits of codes to their places in vectors
    forms                    the kinds of kernels, and jobs, which give them their numbers
    blocks, panels, singles  jobs for vectors, for vectors in act-order, for elements one by one
    jobs                     a plan's moves as jobs
    text_vectors, text_elements, source   the text of a form's kernel; `layoutdsl plan --emit cpu` prints it

What kernels call: memory, tiles, arithmetic, vectors, digits, nibbles, doubles, rules, recoding. One run: turns, calls,
prepared, machine, kernels, inputs, checks, run; backend is what the rest of the package sees.
"""
