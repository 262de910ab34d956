"""DG3, DG4: autocast with GradScaler, and optimizers, in an audit."""
