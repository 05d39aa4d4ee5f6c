"""The HTTP broker: a process of its own that makes the requests of sandboxes.

It reads what strangers wrote, code on one side and servers on the other, so it is kept apart from
whatever holds a connection to the queue: no secret, no environment, no descriptor but one socket, a
uid of its own where it is started as root. One per worker process; invocations share nothing in it
but the process.

    frames      what is said on the socket
    process     this side: start it, ask it, start it again
    host        what answers a sandbox's `http` calls: live, denied, or from a recording
    recording   the file of requests and answers
    main        the other side: its start, its lockdown, its loop
    account     one invocation's budgets and connections
    door        where a socket is opened, and to judged numbers only
    names       a name's addresses
"""
