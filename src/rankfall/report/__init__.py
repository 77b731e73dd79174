"""Words for people: verdicts, tables and hostile text, for a terminal. Reads documents of ``model`` only; opens nothing, decides nothing."""
