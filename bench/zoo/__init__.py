"""Real launchers of training jobs, real faults in one of their ranks, and what `rankfall why` says of the text that they leave."""
