class DryTable:
    pass
