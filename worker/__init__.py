"""From the queue to the jail. Knows no hooks and no sessions: a job's body is bytes to it."""
