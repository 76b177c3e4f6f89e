"""Rules without I/O, by subject. Every layer may import them; they import only the standard library and msgspec."""
