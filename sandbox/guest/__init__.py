"""What runs inside the sandbox: the fork server, and in each of its children one invocation."""
