"""The gateway's own error responses, in the format of OpenAI's API."""

from __future__ import annotations

import json

MODEL = "%[var(txn.model),json(utf8s)]"


def _error(message: str, kind: str, code: str) -> str:
    """Return an error in the format of OpenAI's API; ``message`` may contain HAProxy variables."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    return json.dumps(body) + "\n"


ANSWERS = {
    "400.json": _error(
        "The request is not valid HTTP, or its body did not arrive in time.", "invalid_request_error", "bad_request"
    ),
    "400-model.json": _error(
        "The gateway found no model name in the request. Put `model` before the messages and pictures in the body, or "
        "use /models/NAME/v1/... instead of /v1/...",
        "invalid_request_error",
        "model_missing",
    ),
    "400-named.json": _error(
        f"The servers of `{MODEL}` have other models too. The body must name it as `model`, before messages and "
        "pictures, also with /models/NAME/v1/...",
        "invalid_request_error",
        "model_missing",
    ),
    "400-response.json": _error(
        "The body of /v1/responses must be plain JSON that the gateway can read completely, without request_id: "
        "other clients have stored responses on this server.",
        "invalid_request_error",
        "response_ambiguous",
    ),
    "400-strict.json": _error(
        "This key may use only some names of this server. The body must be plain JSON that the gateway can read "
        "completely, and must name `model` once.",
        "invalid_request_error",
        "model_ambiguous",
    ),
    "401.json": _error("The key is missing or unknown.", "invalid_request_error", "invalid_api_key"),
    "404.json": _error(
        f"The model `{MODEL}` does not exist here. This key may use: %[var(txn.known)]",
        "invalid_request_error",
        "model_not_found",
    ),
    "404-path.json": _error(
        "The gateway does not serve %[method,json(utf8s)] %[path,json(utf8s)].", "invalid_request_error", "unknown_url"
    ),
    "404-response.json": _error(
        "The gateway knows no server that stored this response.", "invalid_request_error", "response_not_found"
    ),
    "408.json": _error("The request did not arrive in time.", "invalid_request_error", "request_timeout"),
    "413.json": _error("The request is larger than the gateway allows.", "invalid_request_error", "request_too_large"),
    "413-length.json": _error(
        "A request of this size needs the header Content-Length.", "invalid_request_error", "length_required"
    ),
    "431.json": _error("The request's headers are too large.", "invalid_request_error", "headers_too_large"),
    "429-rate.json": _error("This key has used its requests for this minute.", "requests", "rate_limit_exceeded"),
    "429-key.json": _error("Too many requests of this key are running or waiting.", "requests", "overloaded"),
    "429-queue.json": _error(
        f"Too many requests of this key for `{MODEL}` are running or waiting.", "requests", "overloaded"
    ),
    "500.json": _error("The gateway failed.", "server_error", "internal_error"),
    "503.json": _error("No server is free, or all are down. Try again.", "server_error", "service_unavailable"),
    "504.json": _error("The server did not answer in time.", "server_error", "timeout"),
}
