"""From evidence to a verdict, and from a verdict to a decision. Pure: no I/O, no clock, no threads.

Enters: recognisers of text (``signatures``), the search for the root cause (``diagnose``), retry rules
(``decide``). May import: ``rankfall.model`` only; ``decide`` knows neither ``signatures`` nor ``diagnose``.
So a finished run can be diagnosed again, and the rules are tested by properties.
"""
