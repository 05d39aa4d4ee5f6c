"""The pool over HTTP, for backends that are not Python: `hookpool serve`.

    POST /v1/invocations      one hook of one session  -> the Verdict, as `hookpool run --json` prints it
    POST /v1/turns            one turn of an app       -> the Turn
    GET, DELETE /v1/sessions/ID
    GET /healthz /readyz /openapi.json /docs

Theory of operation. The gateway adds nothing to what a Dispatcher does but a door. A request passes
the edge (`edge`: whose key, how many and how fast, how large and how slow a body), becomes one of the
models of `bodies`, is run by one coroutine of `work`, and leaves as what that gave. Whatever the
user's code did is a 200 and a Verdict; every other answer is a problem (`problems`, RFC 9457).
The table of operations (`work.OPERATIONS`) is what is routed and what the OpenAPI document says.

Starlette and uvicorn, not FastAPI: bodies are read by our own strict JSON reader and answers are the
very bytes of the command line, so of FastAPI only the OpenAPI document would be used, and
pydantic writes its schemas already.

A client that goes away cancels what it asked for. Counts and rates are of this process: two gateways
behind one address admit twice as much. What is asked with an Idempotency-Key is answered once (`once`).
"""
