"""What pytest and hypothesis load wherever they run: neither imports torch before a test asks for it."""
