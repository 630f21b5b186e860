"""What `expose_port` does."""

from mcp_sandbox.tools.call import Answer, Call

__all__ = ["expose_port"]


async def expose_port(call: Call) -> Answer:
    """Expose a port, or close it."""
    arguments = call.arguments
    port: int = arguments["port"]
    sandbox: str = arguments.get("sandbox", "")
    if arguments["close"]:
        closed = await call.services.ports.close(port, sandbox=sandbox)
        return Answer(
            text=f"Closed {closed.url}: port {port} of {closed.sandbox} is not exposed any more.",
            structured={"url": closed.url, "port": port, "sandbox": closed.sandbox},
        )
    exposure = await call.services.ports.expose(
        port,
        sandbox=sandbox,
        host_port=arguments.get("host_port", 0),
        wait_s=min(arguments["wait_s"], call.window_s),
    )
    exposed = exposure.exposed
    answers = (
        f"A server answers at {exposure.server} inside."
        if exposure.server
        else f"Nothing listens on port {port} inside, after {exposure.waited_s:.1f} s; the URL works once one does."
    )
    told = {"notices": list(exposure.notices)} if exposure.notices else {}
    return Answer(
        text="\n".join([*exposure.notices, f"{exposed.url} is port {port} of {exposed.sandbox}.", answers]),
        structured={
            "url": exposed.url,
            "host_port": exposed.host_port,
            "port": port,
            "sandbox": exposed.sandbox,
            "listening": bool(exposure.server),
            "server": exposure.server,
            **told,
        },
    )
