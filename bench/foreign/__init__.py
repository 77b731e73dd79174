"""A TrainJob with nothing of Rankfall inside that falls: what torchrun, ``kubectl describe`` and ``rankfall why`` say of it."""
