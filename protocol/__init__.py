"""What both ends must agree on: messages, epochs, the two state machines, the decoding rules.

Pure by contract: no clock, no sockets, no global randomness. Time and randomness are arguments.
"""
