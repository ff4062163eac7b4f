# SPDX-License-Identifier: Apache-2.0
"""A client on gRPC's C core that plays one scene: client.py ADDRESS SCENE"""

import queue
import sys
import threading
import time

import grpc


class Call:
    def __init__(self, channel, timeout=None):
        self.requests = queue.Queue()
        self.stream = channel.stream_stream("/test.Talk/Talk")(iter(self.requests.get, None), timeout=timeout)

    def say(self, text):
        self.requests.put(text.encode())

    def ask(self, text):
        self.say(text)
        return next(self.stream).decode()

    def end(self):
        self.requests.put(None)

    def ended(self):
        """Reads to the end and returns its code."""
        try:
            for _ in self.stream:
                pass
        except grpc.RpcError as e:
            assert e.code() == self.stream.code()
        return self.stream.code()

    def bye(self):
        self.end()
        same(self.ended(), grpc.StatusCode.OK)


def same(got, want):
    assert got == want, f"{got!r}, want {want!r}"


def check(channel):
    return channel.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=30)


def talk(channel):
    call = Call(channel)
    for i in range(100):
        same(call.ask(f"echo {i}"), str(i))
    call.bye()


def large(channel):
    call = Call(channel)
    same(len(call.ask("big 20000000")), 20_000_000)
    same(call.ask("size".ljust(1_000_000)), "1000000")
    call.say("many 3000")
    call.end()
    same([len(m) for m in call.stream], [1000] * 3000)
    same(call.stream.code(), grpc.StatusCode.OK)


def slow(channel):
    """The server is held up by windows alone, and another call is not held up by that."""
    call = Call(channel)
    call.say("many 20000")
    call.end()
    time.sleep(1)
    other = Call(channel)
    for i in range(100):
        same(other.ask(f"echo {i}"), str(i))
    other.bye()
    n = 0
    for m in call.stream:
        same(len(m), 1000)
        n += 1
        if n % 4000 == 0:
            time.sleep(0.1)
    same(n, 20000)
    same(call.stream.code(), grpc.StatusCode.OK)


def status(channel):
    call = Call(channel)
    call.say("fail 8")
    same(call.ended(), grpc.StatusCode.RESOURCE_EXHAUSTED)
    same(call.stream.details(), "süß % so\nit is")
    assert b"RetryInfo" in dict(call.stream.trailing_metadata())["grpc-status-details-bin"]


def headers(channel):
    call = Call(channel)
    call.say("headers")
    same(dict(call.stream.initial_metadata())["before"], "1")
    call.bye()
    trailers = dict(call.stream.trailing_metadata())
    same((trailers["after"], trailers["raw-bin"]), ("2", b"\x00\xff"))


def deadline(channel):
    call = Call(channel, timeout=0.2)
    call.say("wait")
    same(call.ended(), grpc.StatusCode.DEADLINE_EXCEEDED)
    talk(channel)


def cancel(channel):
    call = Call(channel)
    same(call.ask("echo x"), "x")
    call.say("wait")
    call.stream.cancel()
    same(call.stream.code(), grpc.StatusCode.CANCELLED)
    Call(channel).bye()


def end(channel):
    call = Call(channel)
    call.say("end")
    same(call.ended(), grpc.StatusCode.ABORTED)
    Call(channel).bye()


def parallel(channel):
    failures = []

    def one(i):
        try:
            call = Call(channel)
            for j in range(20):
                same(call.ask(f"echo {i}.{j}"), f"{i}.{j}")
            call.bye()
        except BaseException as e:  # whatever it is, the scene failed
            failures.append(e)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(90)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(failures, [])


def keepalive(channel):
    call = Call(channel)
    same(call.ask("echo x"), "x")
    time.sleep(3.5)
    same(call.ask("echo y"), "y")
    call.bye()


def goaway(channel):
    call = Call(channel)
    same(call.ask("echo x"), "x")
    print("open", flush=True)
    sys.stdin.readline()
    same(call.ask("echo y"), "y")
    call.bye()


def handover(channel):
    same(check(channel), b"\x08\x01")


def mixed(channel):
    call = Call(channel)
    same(call.ask("echo x"), "x")
    same(check(channel), b"\x08\x01")
    same(call.ask("echo y"), "y")
    call.bye()


def unknown(channel):
    try:
        channel.unary_unary("/test.Talk/Nothing")(b"", timeout=30)
    except grpc.RpcError as e:
        same(e.code(), grpc.StatusCode.UNIMPLEMENTED)
    else:
        raise AssertionError("it was answered")


address, scene = sys.argv[1:]
with grpc.insecure_channel(address, options=[
    ("grpc.max_receive_message_length", -1),
    ("grpc.keepalive_time_ms", 1000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]) as chan:
    globals()[scene](chan)
