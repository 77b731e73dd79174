"""The logs of pods: what is lost when the connection is cut, and what following them costs, beside other tools on the same pods."""
