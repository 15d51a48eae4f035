"""Studies and timings whose tables stand in the documents; each is one command."""
