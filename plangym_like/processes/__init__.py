"""Child processes that host any object: starting and ending them, messages, shared memory."""
