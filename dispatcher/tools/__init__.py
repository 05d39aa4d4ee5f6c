"""What answers `tools.NAME(...)`: one Host per way of having tools, and one that puts them together.

    Functions    Python callables of the embedding program, sync or async
    AppTools     the Python tools of an app, each call in a sandbox of its own
    HttpTool     the operations of an OpenAPI schema, as HTTP requests
    McpTools     the tools of an MCP server
    Toolbox      several of these as one
    Canned       answers from a script, for cases (dispatcher.canned)

Theory. A Host has `names`, the tools that code finds, and `call`, which is used from several threads
at once. `base.Tools` holds what they have in common: the arguments are decoded, the value becomes
`{"result": value}`, a failure `{"error": text}` and not ok, and nothing a tool does ever raises into
the pool. A kind of tools is then one method, `answer(name, arguments)`.

All of this runs on the dispatcher's side, with its rights: an HTTP tool may reach the private network
that its operator put into its base URL, code in a sandbox may not.

McpTools needs the extra `hookpool[mcp]`.
"""

from dispatcher.tools.app import AppTools
from dispatcher.tools.base import Toolbox, ToolFailed, Tools
from dispatcher.tools.functions import Functions
from dispatcher.tools.mcp import McpTools
from dispatcher.tools.openapi import HttpTool

__all__ = ["AppTools", "Functions", "HttpTool", "McpTools", "ToolFailed", "Toolbox", "Tools"]
