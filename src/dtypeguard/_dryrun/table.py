class DryTable: pass
