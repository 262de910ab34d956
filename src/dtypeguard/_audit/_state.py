"""DG6: state that is loaded, and the default dtype."""
