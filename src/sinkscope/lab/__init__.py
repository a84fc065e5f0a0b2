"""The laboratory: small trainings, minutes each, in which attention sinks are made and unmade."""
