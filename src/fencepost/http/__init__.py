"""Serve HTTP/1.1 to an ASGI application. The package knows nothing of the node: ASGI is its only seam.

    server            binds the port and runs uvicorn with `HttpConnection`
    protocol          one connection: parsing, framing checks, pipelining, deadlines
    request_cycle     one request and its response, as ASGI's `receive` and `send`
    websocket         a connection after its upgrade: uvicorn's protocol, counted as before
    connection_limits how many connections, from which peers, and how long each may wait for its client

What an application may rely on:

- One task per request; the requests of a connection run one after the other.
- A response of one body message is one write. The server sets `content-length`, `transfer-encoding` and `connection`.
- A response of several body messages (`more_body`) is a stream: each message is flushed as it is sent, `send` waits while
  the client does not read, and raises `ClientLeft` after the client has disconnected. An application that waits for
  something else meanwhile learns of it from `receive`, which returns `http.disconnect`. A client that reads nothing for
  `write_timeout_s` is disconnected. If the application fails, the stream ends without its last chunk.
- With `allow_websockets`, a handshake becomes a scope of type `websocket`. The application authenticates before it accepts.
  Messages of clients are bounded, dead clients are found by pings, and the connection counts towards the limits.
- On shutdown a running request has `STOP_TIMEOUT_S` to end, then its task is cancelled.
"""
