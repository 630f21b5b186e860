"""From a client's bytes to the embedded engine and back, through a real server process."""
