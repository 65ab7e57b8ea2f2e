"""What the repository needs beside sgtop: real SGLang servers for tests, benches, the demo. Standard library only."""
