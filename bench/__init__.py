"""Speed and memory beside plain tools. ``make bench`` runs all parts and prints one table; no test looks at a clock."""
