"""Which muster this is. The build writes the number of CMakeLists.txt here."""
__version__ = "0.2.0"
