"""cargo and go, where the host has them in a place that sandboxes see."""

from mcp_sandbox.core.provider import Sandbox
from tests.packages.driving import bring, need, said

__all__: list[str] = []


async def test_cargo_builds_a_project_without_dependencies(host: Sandbox) -> None:
    await need(host, "cargo", "--version")
    await bring(
        host,
        {
            "Cargo.toml": b'[package]\nname = "greet"\nversion = "0.1.0"\nedition = "2021"\n',
            "src/main.rs": b'fn main() { println!("good day from rust"); }\n',
        },
    )
    await said(host, "cargo build --offline --quiet")
    assert await said(host, "target/debug/greet") == "good day from rust\n"


async def test_go_builds_a_project_without_dependencies(host: Sandbox) -> None:
    await need(host, "go", "version")
    await bring(
        host,
        {
            "go.mod": b"module example.org/greet\n",
            "main.go": b'package main\n\nfunc main() { println("good day from go") }\n',
        },
    )
    await said(host, "go build -o greet .")
    assert await said(host, "./greet 2>&1") == "good day from go\n"
