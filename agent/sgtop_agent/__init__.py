"""sgtop's agent: runs inside an SGLang scheduler process. Standard library only, Python 3.10 grammar."""

__version__ = "0.1.0"
