"""DG7: ranks that disagree."""
