"""Any object in a child process: messages, start and death of processes, shared memory."""
