"""What may be fetched from a registry."""

from dataclasses import replace

import pytest

from mcp_sandbox.core.sandbox import SandboxSpec
from mcp_sandbox.service.templates import new_record, spec_for
from mcp_sandbox.store.identity import new_sandbox_id
from mcp_sandbox.store.record import Owner


@pytest.mark.parametrize(("image", "may_be_fetched"), [("ours", True), (None, True), ("evil.example/secret", False)])
def test_cr05_only_an_image_that_the_operator_named_may_be_fetched(image: str | None, may_be_fetched: bool) -> None:
    template = SandboxSpec(id=new_sandbox_id(), image="ours")
    record = new_record(template, Owner(principal="me", project=""), "memory")
    assert spec_for(template, replace(record, image=image)).fetch_image is may_be_fetched
