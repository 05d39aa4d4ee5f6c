"""Which HTTP requests code may make: the whole decision, pure and frozen. Nothing here opens a socket.

    codes       why a request failed: a closed set
    ranges      the table of addresses, each row with its source
    urls        a URL taken apart, once; its parts go to the connection, never its text
    policy      what the operator allows: ports, names, addresses; how much
    requests    headers and bodies; what a redirect makes of a request
    bodies      compressed bytes to text, bounded

`sandbox.outlet` is the process that acts on it.
"""
