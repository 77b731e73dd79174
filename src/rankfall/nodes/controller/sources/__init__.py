"""Sources of observations: watches, Loki lines, metric exporters.

A source moves its position only after the loop has processed or stored its data. A missing answer never means "no
fault".
"""
