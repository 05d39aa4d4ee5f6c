"""Why a request failed, as the code is told: `code: text`. A closed set."""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    EGRESS_DENIED = "egress_denied"  # the operator's rules: mode, ports, methods, names
    HOST_NOT_PUBLIC = "host_not_public"  # no public address behind the name, or no such name: never told apart
    DNS_ERROR = "dns_error"
    DNS_TIMEOUT = "dns_timeout"
    CONNECT_ERROR = "connect_error"
    CONNECT_TIMEOUT = "connect_timeout"
    TLS_ERROR = "tls_error"
    TIMEOUT = "timeout"
    RESPONSE_TOO_LARGE = "response_too_large"
    REQUEST_TOO_LARGE = "request_too_large"
    PROTOCOL_ERROR = "protocol_error"
    INVALID_URL = "invalid_url"
    INVALID_HEADER = "invalid_header"
    REDIRECT_DENIED = "redirect_denied"
    TOO_MANY_REDIRECTS = "too_many_redirects"
    BUDGET_EXCEEDED = "budget_exceeded"
    INTERNAL_ERROR = "internal_error"


class Refused(Exception):
    """This request is not made, or not brought to its end. `why` is what the operator may know beyond `text`."""

    def __init__(self, code: Code, text: str, why: str = "") -> None:
        self.code = code
        self.text = text
        self.why = why or text
        super().__init__(f"{code}: {text}")


NOT_PUBLIC = "this host has no public address"
"""One text for an internal name, for one that resolves to something internal, and for one that does not exist."""


def not_public(why: str) -> Refused:
    return Refused(Code.HOST_NOT_PUBLIC, NOT_PUBLIC, why)
