"""Documents of node health that controller, agent, runs and the command line exchange.

They lie here and not in ``rankfall.nodes`` because runs write and read them too. Annotations may be written
by anybody who may change Nodes: what is out of bounds is refused with a reason. May import:
``rankfall.model`` only.
"""
