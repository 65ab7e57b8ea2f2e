"""The command line and the Textual screen."""
