def prove(plan, specs=()):
    pass
