"""Host any object in a child process: starting and ending it, messages, shared memory."""
