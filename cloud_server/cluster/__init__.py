"""Many verifiers behind gateways: one service, and nothing lost when a process dies."""
