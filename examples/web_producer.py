"""A web application that publishes: each request has its answer in time, whatever happens to nsqd.

Start it with `python web_producer.py`, before or after nsqd.
"""

import os

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from nsqx import App, InvalidMessage, PublishFailed

app = App(os.environ.get("NSQD", "127.0.0.1:4150"), start_timeout="2s", publish_timeout="2s")
orders = app.publisher("orders", dict)


async def post_order(request: Request) -> JSONResponse:
    try:
        await orders.publish(await request.json())
    except (InvalidMessage, ValueError) as error:
        return JSONResponse({"error": str(error)}, 400)
    except PublishFailed as error:
        # The client may send the order again. If it may have been published, consumers must recognise the duplicate.
        body = {"error": str(error), "may_be_published": error.may_be_published}
        return JSONResponse(body, 503, headers={"Retry-After": "5"})
    return JSONResponse({"published": True}, 202)


async def ready(_: Request) -> JSONResponse:
    health = app.health["producer"]
    return JSONResponse({"nsqd": dict(health.failures) or "connected"}, 200 if app.is_connected else 503)


web = Starlette(
    routes=[Route("/orders", post_order, methods=["POST"]), Route("/ready", ready)],
    lifespan=app.lifespan,
)

if __name__ == "__main__":
    uvicorn.run(web, port=int(os.environ.get("PORT", "8000")), log_level="warning")
