"""What is asked: annotations become specifications, a model shows its dtype and device."""
