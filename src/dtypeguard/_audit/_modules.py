"""DG5: modules, their buffers and attributes."""
