"""Target models: what the engine asks of one, and the backends. Nothing is imported here."""
