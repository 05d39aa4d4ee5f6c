"""The OpenAPI document is kept: requests made from it, good and bad, get only answers that it knows, and no 5xx."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.checks import load_all_checks
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi import checks as by_document

from dispatcher.gateway import openapi
from tests.gateway.conftest import Served

load_all_checks()

OPERATIONS = [
    found.ok() for found in schemathesis.openapi.from_dict(openapi.document(secured=True)).get_all_operations()
]

BEYOND = {by_document.positive_data_acceptance}
"""A schema cannot say which arguments a hook takes, nor which apps are loaded."""


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.label)
@given(data=st.data())
@settings(
    max_examples=12,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@seed(20260130)
def test_no_request_gets_an_answer_that_the_document_does_not_know(
    operation: schemathesis.APIOperation, data: st.DataObject, served: Served
) -> None:
    case = data.draw(st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode]))
    case.call_and_validate(
        base_url=served.url,
        headers={"Authorization": f"Bearer {served.blue.secret}"},
        excluded_checks=list(BEYOND),
    )


def test_what_it_gives_as_an_example_works(served: Served) -> None:
    """The control: not everything is refused."""
    for path, methods in openapi.document(secured=True)["paths"].items():
        for method, operation in methods.items():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                answer = served.blue(method.upper(), path, content["example"])
                assert (answer.status, answer.json["status"]) == (200, "ok"), answer.text
